"""What a worker process does for its daemon: measures, gathers, evaluates."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from peer.errors import WorkerFailed
from peer.training import wire
from peer.training.arena import Arena
from peer.training.data import Corpus, open_corpus
from peer.training.device import Device, is_out_of_memory
from peer.training.gathering import Gathering, Work
from peer.training.measuring import Memory, find_microbatch, find_paced_microbatch, find_threads
from peer.training.microbatch import Replica
from peer.training.pacing import Pace
from peer.training.presets import PRESETS, num_parameters
from protocol.manifest import Manifest
from protocol.order import sample_start
from protocol.units import Epoch, PeerId

Send = Callable[[wire.Message], None]


class Session:
    def __init__(
        self,
        manifest: Manifest,
        peer: PeerId,
        arena: Arena,
        device: Device,
        corpus: Corpus,
        threads: list[int],
        refresh_order: Callable[[], wire.Message],
        send: Send,
    ) -> None:
        """`threads`: numbers of processor threads to choose from, by measuring.

        `refresh_order` gives the daemon's last order to load the weights anew; `send` speaks to the daemon.
        """
        self._seed, self._peer = manifest.training.seed, peer
        self._device, self._corpus, self._threads = device, corpus, threads
        self._replica = Replica(manifest, arena, device)
        self._pace: Pace | None = None
        self._refresh_order, self._send = refresh_order, send
        self._loaded: wire.Message = {"number": -1, "epoch": -1}
        self._gathering = self._make_gathering()

    @property
    def device(self) -> str:
        """As torch names it."""
        return str(self._device.torch)

    def emulate(self, throughput: float) -> None:
        """Be as slow as a device of `throughput` samples/s."""
        self._pace = Pace(throughput)
        self._pace.attach(list(self._replica.model.blocks))
        self._gathering = self._make_gathering()

    def _make_gathering(self) -> Gathering:
        return Gathering(self._replica, self._tokens, self._pace, self._device.release, self._refresh)

    def _refresh(self) -> Epoch:
        """Load the weights if the daemon has ordered it since the last time; the epoch that they belong to.

        Predicted ones belong to the epoch that they were predicted from.
        """
        order = self._refresh_order()
        if order["number"] != self._loaded["number"]:
            self._replica.load_weights(ahead=order["ahead"])
            self._loaded = order
            self._send({"is": "refreshed", "number": order["number"]})
        return int(order["epoch"])

    def answer(self, message: wire.Message, is_stopped: Callable[[int], bool]) -> None:
        """Do what the daemon asks. Raises `PeerError` where this worker cannot go on."""
        send = self._send
        match message["do"]:
            case "measure":
                send({"is": "answered", "request": message["request"], **self._measure(message["slot"])})
            case "gather":
                work = Work(**message["work"])
                remark = self._gathering.gather(
                    work,
                    lambda: is_stopped(work.number),
                    lambda commit: send({"is": "committed", "work": work.number, "commit": vars(commit)}),
                )
                send({"is": "gathered", "work": work.number, "remark": remark})
            case "refresh":
                self._refresh()
            case "evaluate":
                send({"is": "answered", "request": message["request"], "bits_per_byte": self._evaluate()})

    def _tokens(self, epoch: Epoch, first_index: int, count: int) -> npt.NDArray[np.int64]:
        population = self._corpus.population
        indices = range(first_index, first_index + count)
        return self._corpus.samples(
            [sample_start(self._seed, epoch, self._peer, index, population) for index in indices]
        )

    def _measure(self, slot: int) -> dict[str, float]:
        self._replica.load_weights()
        memory = Memory(self._device.free_bytes, self._device.peak_bytes)
        pace = self._pace

        def work(size: int) -> bool:
            return self._gathering.try_once(size, slot)

        if pace:
            found = find_paced_microbatch(work, memory, pace.throughput)
        else:
            found = find_threads(lambda: find_microbatch(work, memory), self._threads, torch.set_num_threads)
        self._gathering.microbatch, self._gathering.cost = found.microbatch, found.cost
        return {"microbatch": found.microbatch, "throughput": found.rate}

    def _evaluate(self) -> float:
        self._refresh()
        loss = self._replica.mean_loss(self._corpus.evaluation(), self._gathering.microbatch)
        return loss / math.log(2)


def open_session(
    settings: wire.Message, arena_fd: int, refresh_order: Callable[[], wire.Message], send: Send
) -> Session:
    """Set up everything that training needs. Raises `WorkerFailed` or `DataUnavailable`."""
    manifest = Manifest.model_validate_json(settings["manifest"])
    device = Device(settings["device"])
    if device.torch.type != "cpu" or settings["threads"]:
        threads = [settings["threads"] or torch.get_num_threads()]
    else:
        threads = sorted({1, max(1, torch.get_num_threads() - 1)})  # one processor is left to the daemon and to people
    torch.set_num_threads(threads[0])
    data_dir = Path(settings["data_dir"]) if settings["data_dir"] else None
    corpus = open_corpus(manifest, data_dir, Path(settings["cache_dir"]))
    size = num_parameters(PRESETS[manifest.model.preset])
    arena = Arena.attach(arena_fd, size, ahead=bool(manifest.averaging.overlap))
    try:
        session = Session(manifest, settings["peer"], arena, device, corpus, threads, refresh_order, send)
        if settings["emulate_throughput"]:
            session.emulate(settings["emulate_throughput"])
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise WorkerFailed(
            f"the model does not fit in the memory of {device.torch}; close other programs, choose another "
            "--device, or join a run with a smaller model"
        ) from None
    return session
