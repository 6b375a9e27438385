"""The daemon's side of a worker process. Everything here runs in the daemon's event loop and never blocks it.

A worker that dies or hangs costs at most the microbatch in flight: `finish` gives what was committed before.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from peer.errors import WorkerFailed
from peer.training import wire
from peer.training.arena import Arena
from peer.training.launch import explain_end, last_words, spawn
from protocol.manifest import Manifest
from protocol.units import Epoch, PeerId

CLOSE_SECONDS = 3.0
HAND_IN_SECONDS = 2.0
"""how long after a deadline or `stop` a worker may be silent, besides two microbatches, until we go on without it"""
LAST_CALL_SECONDS = 0.1
"""from when we give up a worker's work until we go on"""
REFRESH_SECONDS = 20.0
"""how long, besides two microbatches, a worker may take to load new weights until it is ended"""
SMOOTHING = 0.3
"""weight of the newest epoch in `throughput`"""
REMEDY = "; start the peer again"


@dataclass(frozen=True)
class Measurement:
    microbatch: int
    """samples"""
    throughput: float
    """samples per second; of the emulated device if there is one"""


@dataclass(frozen=True)
class Gathered:
    """What a worker handed in for an epoch."""

    epoch: Epoch
    samples: int
    loss_sum: float
    """nats per byte, summed over the samples"""
    seconds: float
    """spent in microbatches"""
    slot: int
    """`arena.slots[slot]` is the sum of the samples' gradients, if there are any; it stays while the next epoch is
    gathered, by whichever workers, until the `begin` of the epoch after that, or of the same epoch once more"""
    overruns: int
    """microbatches that took longer than they would have on the emulated device"""
    stale: int
    """samples worked before the epoch's weights were there: with those of an earlier epoch, or predicted ones"""
    remark: str
    """what went wrong, as a sentence for the user; usually empty"""


class _WorkInHand:
    """An epoch's work between `begin` and `finish`."""

    def __init__(self, number: int, epoch: Epoch) -> None:
        self.number, self.epoch = number, epoch
        self.samples, self.loss_sum, self.seconds, self.overruns, self.stale, self.slot = 0, 0.0, 0.0, 0, 0, 0
        self.handed_in: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None

    def hand_in(self, remark: str) -> None:
        if not self.handed_in.done():
            self.handed_in.set_result(remark)


class Worker:
    """One worker process. Made by `start`.

    `died` is done when it has ended unexpectedly, with the reason: a sentence that leaves the remedy to the daemon.
    """

    def __init__(self, process: asyncio.subprocess.Process, arena: Arena, device: str) -> None:
        loop = asyncio.get_running_loop()
        self.device = device
        self.pid = process.pid
        self.microbatch = 0
        self.throughput = 0.0
        """samples per second of computing, over the last epochs"""
        self.died: asyncio.Future[str] = loop.create_future()
        self._process, self._arena = process, arena
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[wire.Message]] = {}
        self._number = 0
        self._work: _WorkInHand | None = None
        self._silence = ""
        """why it was ended from here, if it was"""
        self._end = ""
        """why it has ended, once it has"""
        self._remedy = ""
        self._is_closing = False
        self._refreshing: asyncio.Future[None] | None = None
        self._ordered, self._ordered_epoch = 0, -1

    @classmethod
    async def start(
        cls,
        manifest: Manifest,
        arena: Arena,
        *,
        device: str,
        peer: PeerId,
        data_dir: Path | None,
        cache_dir: Path,
        emulate_throughput: float | None,
        threads: int | None = None,
    ) -> Worker:
        """Start a worker on `device` ("auto": a GPU if there is one) and wait until model and data are ready.

        `threads`: of the processor that it uses; None: one if it emulates a speed, else what measures best.
        Raises `WorkerFailed` with the reason: no such device, unusable data, not enough memory.
        """
        threads = threads or (1 if emulate_throughput else None)
        ours, theirs = socket.socketpair()
        with theirs:
            process = await spawn(theirs.fileno(), arena.fd, threads)
        worker = cls(process, arena, device)
        reader, worker._writer = await asyncio.open_unix_connection(sock=ours)
        worker._listening = asyncio.create_task(worker._listen(reader))
        settings: wire.Message = {
            "do": "start",
            "manifest": manifest.model_dump_json(),
            "device": device,
            "peer": peer,
            "data_dir": str(data_dir) if data_dir else None,
            "cache_dir": str(cache_dir),
            "emulate_throughput": emulate_throughput,
            "threads": threads,
        }
        try:
            worker.device = str((await worker._ask(settings))["device"])
        except BaseException:
            await worker.close()
            raise
        return worker

    @property
    def samples_so_far(self) -> int:
        """Committed in the work in hand."""
        return self._work.samples if self._work else 0

    async def measure(self) -> Measurement:
        """Find the size of microbatches and the throughput: seconds. To be done once, before the first `begin`.

        Raises `WorkerFailed`.
        """
        answer = await self._ask({"do": "measure", "slot": self._arena.spare})
        self.microbatch, self.throughput = answer["microbatch"], answer["throughput"]
        return Measurement(self.microbatch, self.throughput)

    async def evaluate(self) -> float:
        """Bits per byte on the run's held-out samples, with the weights last ordered by `refresh`.

        It waits for work in hand. Raises `WorkerFailed`.
        """
        return float((await self._ask({"do": "evaluate"}))["bits_per_byte"])

    def refresh(self, epoch: Epoch) -> None:
        """Order the worker to take the weights that are now in the arena, those of `epoch`, before its next microbatch.

        They must not change before `refreshed`.
        """
        self._order_weights(epoch, ahead=False)

    def refresh_ahead(self, epoch: Epoch) -> None:
        """Like `refresh`, for the weights that were predicted from those of `epoch`; nothing if newer were ordered.

        Samples of the next epoch that are worked with them are `stale`.
        """
        if self._ordered_epoch <= epoch:
            self._order_weights(epoch, ahead=True)

    def _order_weights(self, epoch: Epoch, *, ahead: bool) -> None:
        self._number += 1
        self._ordered, self._ordered_epoch = self._number, epoch
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_future()
        if self._end:
            self._refreshing.set_result(None)
        self._send({"do": "refresh", "number": self._number, "epoch": epoch, "ahead": ahead})

    async def refreshed(self) -> None:
        """Wait until the worker has taken the weights last ordered, or has died.

        One that hangs is ended: without that, the weights could not change again.
        """
        while self._refreshing and not self._refreshing.done():
            await asyncio.wait((self._refreshing,), timeout=REFRESH_SECONDS + self._two_microbatches)
            if not self._refreshing.done() and not self._answers:  # measuring and evaluating take their time
                self._silence = f"the worker on {self.device} did not take new weights in time and was ended"
                self._kill()

    def begin(self, epoch: Epoch, quota: int, first_index: int, deadline: float | None) -> None:
        """Gather up to `quota` samples from `first_index` on, until `deadline` (of `time.monotonic`).

        The worker starts at once. Each `begin` is followed by one `finish`.
        """
        assert self._work is None and self.microbatch > 0, "measure first, and finish what was begun"
        self._number += 1
        work = self._work = _WorkInHand(self._number, epoch)
        self._arena.begin(epoch)
        if self._end:
            work.hand_in(self._end)
            return
        asked = {"number": work.number, "epoch": epoch, "quota": quota, "first_index": first_index}
        self._send({"do": "gather", "work": {**asked, "deadline": deadline, "held": self._arena.held}})
        if deadline is not None:
            self._expect_within(deadline - time.monotonic())

    def stop(self) -> None:
        """Ask for what there is: the worker hands in after the microbatch in flight."""
        if self._work and not self._work.handed_in.done():
            self._send({"do": "stop", "work": self._work.number})
            self._expect_within(0.0)

    async def finish(self) -> Gathered:
        """Wait until the quota or the deadline is reached, or the worker was stopped or is gone."""
        assert self._work is not None, "begin first"
        work = self._work
        remark = await asyncio.shield(work.handed_in)
        if work.timer:
            work.timer.cancel()
        if work.samples:
            self._arena.hand_in(work.epoch, work.slot)
        if work.seconds > 0:
            self.throughput += SMOOTHING * (work.samples / work.seconds - self.throughput)
        self._work = None
        return Gathered(
            work.epoch, work.samples, work.loss_sum, work.seconds, work.slot, work.overruns, work.stale, remark
        )

    async def close(self) -> None:
        """End the process, and wait until it has ended."""
        self._is_closing = True
        if self._writer:
            self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._kill()
        finally:
            if self._listening:
                await asyncio.shield(self._listening)

    # ------------------------------------------------------------------------------------------------------------

    def _send(self, message: wire.Message) -> None:
        if self._writer and not self._end and not self._writer.is_closing():
            self._writer.write(wire.encode(message))

    async def _ask(self, message: wire.Message) -> wire.Message:
        if self._end:
            raise WorkerFailed(self._end + self._remedy)
        self._number += 1
        number = self._number
        self._answers[number] = asyncio.get_running_loop().create_future()
        self._send({**message, "request": number})
        try:
            return await self._answers[number]
        finally:
            del self._answers[number]

    @property
    def _two_microbatches(self) -> float:
        return 2 * self.microbatch / max(self.throughput, 1e-9)

    def _expect_within(self, seconds: float) -> None:
        work = self._work
        assert work is not None
        if work.timer:
            work.timer.cancel()
        patience = max(0.0, seconds) + HAND_IN_SECONDS + self._two_microbatches
        work.timer = asyncio.get_running_loop().call_later(patience, self._give_up, work)

    def _give_up(self, work: _WorkInHand) -> None:
        # When the worker comes to itself it sees this before it writes to the slot that we hand in. Perhaps it was we
        # who were suspended: what it has said meanwhile is read first.
        self._send({"do": "stop", "work": work.number})
        remark = "the worker was silent at the deadline, so only what it had committed was handed in"
        work.timer = asyncio.get_running_loop().call_later(LAST_CALL_SECONDS, work.hand_in, remark)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        hearing_last_words = asyncio.create_task(last_words(self._process))
        failure = ""
        while message := await wire.read(reader):
            if message["is"] == "failed":
                failure = message["reason"]
            else:
                self._take(message)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._kill()
        status = await self._process.wait()
        self._end = failure or self._silence or explain_end(self.device, status, await hearing_last_words)
        self._remedy = "" if failure else REMEDY
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(WorkerFailed(self._end + self._remedy))
        if self._work:
            self._work.hand_in(self._end)
        if self._refreshing and not self._refreshing.done():
            self._refreshing.set_result(None)
        if not self._is_closing:
            self.died.set_result(self._end)

    def _take(self, message: wire.Message) -> None:
        match message["is"]:
            case "committed":
                self._note_commit(message["work"], message["commit"])
            case "refreshed":
                if self._refreshing and message["number"] == self._ordered and not self._refreshing.done():
                    self._refreshing.set_result(None)
            case "gathered":
                if self._work and self._work.number == message["work"]:
                    self._work.hand_in(message["remark"])
            case "answered":
                answer = self._answers.get(message["request"])
                if answer and not answer.done():
                    answer.set_result(message)

    def _note_commit(self, number: int, commit: wire.Message) -> None:
        self.microbatch = commit["microbatch"]
        work = self._work
        if work is None or work.number != number or work.handed_in.done():
            return  # a worker that was given up still reports
        work.samples, work.loss_sum, work.seconds = commit["samples"], commit["loss_sum"], commit["seconds"]
        work.overruns, work.stale, work.slot = commit["overruns"], commit["stale"], commit["slot"]

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
