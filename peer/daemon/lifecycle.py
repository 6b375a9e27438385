"""One peer from its start to its end: brings the parts up, lets it train epoch by epoch, takes the parts down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Coroutine
from typing import Any

from peer import events
from peer.control import ControlServer
from peer.daemon.catchup import CatchUp
from peer.daemon.council import Council
from peer.daemon.entrance import PeerConfig, enter_swarm, far_reaching, fetch_manifest
from peer.daemon.epoch import EpochRunner, Stopped
from peer.daemon.gathering import Gatherer, Owed
from peer.daemon.keeping import Keeper
from peer.daemon.membership import Membership
from peer.daemon.replica import Replica
from peer.daemon.roster import Own, Roster, expiry
from peer.daemon.services import StandingBoard, serve_manifest
from peer.daemon.slow_lane import SlowLane
from peer.daemon.sponsor import Sponsor
from peer.daemon.status import StatusBoard
from peer.errors import EndedUnderWay, PeerError, WorkerFailed
from peer.hardware.system import computer_name, processor_name
from peer.places import CHECKPOINTS, RuntimeDirectory, cache_root, read_manifest
from peer.policy.evaluation import evaluator
from peer.policy.link import LinkBook
from peer.swarm.probe import Prober
from peer.training import checkpoint
from peer.training.worker_process import Measurement, Worker
from protocol.invite import Invite, format_invite
from protocol.plan import genesis
from protocol.records import MAX_LINKS_SEEN, Ballot, LinkSeen
from protocol.units import PeerId

FAREWELL_SECONDS = 2.0
MAX_OWN_ADDRESSES = 4
MAX_INVITED_PEERS = 7
"""an invite has to fit into a chat message"""
DEATHS_SECONDS = 600.0
MAX_DEATHS = 3
DEATH_REMEDY = "look for a lack of memory or a failing driver, then start the peer again"


class Daemon:
    def __init__(self, config: PeerConfig, listener: events.Listener) -> None:
        self.config, self.listener = config, listener
        self._stop = asyncio.Event()
        self._stop_reason = ""
        self._stack = contextlib.AsyncExitStack()
        self._background: set[asyncio.Task[Any]] = set()
        self._failure: EndedUnderWay | None = None
        self._worker_deaths: list[float] = []

    @property
    def me(self) -> PeerId:
        return self.node.peer_id

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    async def stopping(self) -> None:
        """Until this peer is to end."""
        await self._stop.wait()

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def leave(self, reason: str) -> None:
        """Ask the peer to end cleanly."""
        if not self._stop.is_set():
            self._stop_reason = reason
            self._stop.set()

    async def run(self) -> None:
        """Take part until asked to leave or the run is over. Raises `PeerError` where it cannot start or go on."""
        async with self._stack:
            starting = asyncio.create_task(self._start())
            if not await self.unless_stopped(starting):
                return
            try:
                await self._take_part()
            except PeerError as error:
                raise EndedUnderWay(str(error)) from error
            finally:
                await self._farewell()
            if self._failure is not None:
                raise self._failure

    async def unless_stopped(self, task: asyncio.Task[Any]) -> bool:
        """Wait for `task`; False if we were asked to stop meanwhile."""
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            return False
        task.result()
        return True

    # Start ------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        config, stack = self.config, self._stack
        runtime = RuntimeDirectory()
        stack.callback(config.state.release)
        stack.callback(runtime.remove)
        self.listener(events.Preparing("starting the network"))
        self.node = await enter_swarm(config, runtime.path, self.may_be_alone())
        stack.push_async_callback(self.node.close)
        self.signed = config.signed or read_manifest(config.state.path) or await fetch_manifest(self.node, config)
        config.state.write_manifest(self.signed)
        manifest = self.signed.manifest

        self.listener(events.Preparing("preparing model and data"))
        self.replica = await asyncio.to_thread(Replica, config.run, manifest)
        saved = await asyncio.to_thread(checkpoint.load_latest, config.state.path / CHECKPOINTS, config.run)
        if saved is not None:
            self.replica.restore(saved)
        self.keeper = Keeper(config.state.path, self.replica, self.listener)
        self.keeper.saved_epoch = saved.epoch if saved else -1
        self.worker = await self._start_worker()
        stack.push_async_callback(self._close_worker)

        self.own = Own(config.name or self._default_name(), self._devices(), epoch=self.replica.epoch)
        self.roster = Roster(self.node, config.run, self.own, self._on_roster)
        self.catchup = CatchUp(self.node, self.replica, config.state.path, self.listener)
        self.membership = Membership(self)
        plan = genesis(manifest, config.run)
        self.council = Council(self.node, config.run, manifest, self.replica.num_parameters, plan)
        self.gatherer, self.owed = Gatherer(self), Owed()
        self.links = LinkBook()
        self.prober = Prober(
            self.node, self._saw_link, lambda: self.membership.in_step and not self.membership.is_fetching
        )
        self.sponsor = Sponsor(self)
        self.slow_lane = SlowLane(self)
        self.epochs = EpochRunner(self)
        self.status = StatusBoard(self)
        self.standing = StandingBoard(self._standing)
        await serve_manifest(self.node, self.signed)
        await self.catchup.serve()
        await self.standing.start(self.node)
        await self.epochs.serve()
        await self.sponsor.serve()
        await self.prober.serve()
        control = ControlServer(
            {
                "status": self.status.command,
                "invite": self._invite_command,
                "leave": self._leave_command,
                "checkpoint": self._checkpoint_command,
            }
        )
        await control.start(runtime.path, config.state.path)
        stack.callback(control.close)
        stack.push_async_callback(self._end_background)
        self.in_background(self.roster.keep_current())
        self.in_background(self._watch_engine())
        self.listener(
            events.Started(
                run=config.run,
                name=manifest.run.name,
                peer=self.node.peer_id,
                peer_name=self.own.name,
                state_dir=str(config.state.path),
                invite=await self.invite(),
                num_parameters=self.replica.num_parameters,
                target_batch_size=manifest.training.target_batch_size,
            )
        )

    def may_be_alone(self) -> bool:
        """The host may begin a run without others, and whoever has a checkpoint may resume it."""
        checkpoints = self.config.state.path / CHECKPOINTS
        return self.config.signed is not None or any(checkpoints.glob(checkpoint.PATTERN))

    async def _start_worker(self) -> Worker:
        config = self.config
        return await Worker.start(
            self.signed.manifest,
            self.replica.arena,
            device=config.device,
            peer=self.node.peer_id,
            data_dir=config.data_dir,
            cache_dir=cache_root(),
            emulate_throughput=config.emulate_throughput,
        )

    async def ensure_worker(self) -> None:
        """Replace a worker that has died. Raises `WorkerFailed` if it dies again and again."""
        if not self.worker.died.done():
            return
        reason, now = self.worker.died.result(), time.monotonic()
        self._worker_deaths = [when for when in self._worker_deaths if now - when < DEATHS_SECONDS] + [now]
        if len(self._worker_deaths) > MAX_DEATHS:
            raise WorkerFailed(f"{reason}, {MAX_DEATHS + 1} times in {DEATHS_SECONDS / 60:.0f} minutes; {DEATH_REMEDY}")
        self.listener(events.Notice(f"{reason}; starting another, at most one microbatch is lost"))
        await self._close_worker()
        self.worker = await self._start_worker()
        await self.worker.measure()
        await self.replica.show_to(self.worker)

    async def _close_worker(self) -> None:
        await self.worker.close()

    def _default_name(self) -> str:
        """The computer's name, numbered where several peers of a run share it."""
        slot = self.config.state.path.name
        return f"{computer_name()[:30]}-{slot}" if slot.isdecimal() and slot != "1" else computer_name()

    def _devices(self) -> str:
        device = self.worker.device
        name = processor_name() if device == "cpu" else device
        emulated = self.config.emulate_throughput
        return f"{name}, emulated {emulated:g} samples/s" if emulated else name

    # Take part --------------------------------------------------------------------------------------------------

    async def _take_part(self) -> None:
        measuring = asyncio.create_task(self._measure())
        if not await self.unless_stopped(measuring):
            return
        try:
            await self.membership.come_in()
            while not self.is_stopping:
                if self._is_over():
                    await self.keeper.save_checkpoint(self.council.plan.term)
                    if evaluator(self.council.plan) == self.me:
                        await self.epochs.evaluate()
                    await self.membership.linger()
                    self.leave(f"the run has reached its last epoch, {self.replica.epoch}")
                elif self.membership.is_member():
                    await self.epochs.run_one()
                else:
                    await self.gatherer.owe_ahead()
                    await (self.slow_lane.take_part() if self.membership.is_slow() else self.membership.follow())
        except Stopped:
            pass

    def _is_over(self) -> bool:
        last = self.signed.manifest.training.stop_at_epoch
        return bool(last) and self.replica.epoch >= last

    async def _measure(self) -> None:
        self.listener(events.Preparing("measuring this machine"))
        measured: Measurement = await self.worker.measure()
        self.own.throughput = self.throughput()
        emulated = self.config.emulate_throughput is not None
        self.listener(events.Measured(self.worker.device, measured.throughput, measured.microbatch, emulated))
        with contextlib.suppress(PeerError):
            await self.roster.publish_progress()

    def _saw_link(self, peer: PeerId, up: float, down: float) -> None:
        self.links.saw_alone(peer, up, down, time.monotonic())

    def ballot(self, term: int) -> Ballot:
        """What this peer brings to the plan of a term, and what it has seen of others."""
        links = self.links.seen(time.monotonic())
        if self.membership.own_link is not None:
            links[self.me] = self.membership.own_link
        seen = sorted(links.items())[:MAX_LINKS_SEEN]
        return Ballot(
            run=self.config.run,
            peer=self.me,
            expires=expiry("ballot"),
            term=term,
            epoch=max(self.replica.epoch, self.own.epoch),
            throughput=self.throughput(),
            in_step=self.membership.in_step and self.replica.is_exact,
            links=[LinkSeen(peer=peer, up=link.up, down=link.down) for peer, link in seen],
        )

    def throughput(self) -> int:
        """This peer's, in samples per 1000 s."""
        samples_per_second: float = self.worker.throughput
        return max(1, round(samples_per_second * 1000))

    # End --------------------------------------------------------------------------------------------------------

    async def _farewell(self) -> None:
        """Tell the others, keep a checkpoint."""
        self.own.state = "leaving"
        self.council.stop()
        with contextlib.suppress(Exception):  # whatever happens here, the checkpoint comes next
            async with asyncio.timeout(FAREWELL_SECONDS):
                await asyncio.gather(self.epochs.say_farewell(), self.roster.publish_presence())
        if self.replica.epoch > 0:
            await self.keeper.save_checkpoint(self.council.plan.term)
        self.listener(
            events.Left(self.replica.epoch, self._stop_reason or "it could not go on", self.own.total_samples)
        )

    async def _end_background(self) -> None:
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_engine(self) -> None:
        reason = await asyncio.shield(self.node.died)
        self._failure = EndedUnderWay(f"{reason}; start the peer again, it goes on from its checkpoint")
        self.leave(str(self._failure))

    # What others and commands ask ----------------------------------------------------------------------------------

    def _standing(self) -> dict[str, Any]:
        return {
            "epoch": self.replica.epoch,
            "lineage": self.replica.lineage.digest,
            "plan": self.council.plan.to_data(),
            "absent": dict(self.replica.absent),
            "remaining_ms": round(1000 * self.epochs.remaining_seconds),
        }

    async def invite(self) -> str:
        """An invite that leads to this peer and, should it leave, to others that it knows."""
        own = far_reaching(await self.node.addresses())[:MAX_OWN_ADDRESSES]
        known = [far_reaching(addresses)[:1] for addresses in self.roster.known_addresses.values()]
        others = [address for addresses in known for address in addresses]
        return format_invite(Invite(self.config.run, tuple(dict.fromkeys([*own, *others]))[:MAX_INVITED_PEERS]))

    async def _invite_command(self, _request: dict[str, Any]) -> dict[str, Any]:
        return {"invite": await self.invite()}

    async def _leave_command(self, _request: dict[str, Any]) -> dict[str, Any]:
        self.leave("asked to by `minga leave`")
        return {"pid": os.getpid()}

    async def _checkpoint_command(self, _request: dict[str, Any]) -> dict[str, Any]:
        if not await self.keeper.save_checkpoint(self.council.plan.term):
            raise PeerError("the checkpoint could not be written; free some disk space")
        heldout = self.roster.heldout
        return {"epoch": self.replica.epoch, "heldout_bits_per_byte": heldout[1] if heldout else None}

    def _on_roster(self) -> None:
        self.keeper.remember_peers(self.roster.known_addresses)
