"""How a peer that is not in step comes into step: where do the others stand, what do I lack, fetch it.

Whoever has missed some epochs of the history that the others stand on replays them: it fetches their averaged
gradients, 4 bytes a parameter at most and mostly one, and ends where the others stand, bit for bit. Which commits lead
there is told first, and the lineage proves it. Whoever lacks more than the others keep, or is of another history,
needs the whole state (12), and then replays what was committed meanwhile. All of it comes from any peers of the plan,
in hashed chunks. A peer that is not yet in the plan follows in this way, epoch by epoch, until a term begins whose plan
includes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from peer import events
from peer.daemon.history import Committed, Step, gradient_size, read_steps
from peer.daemon.replica import Replica
from peer.daemon.services import Reply, serve_calls
from peer.daemon.standings import Standing, choose_goal
from peer.errors import PeerError
from peer.events import Listener
from peer.swarm.codec import MalformedPiece
from peer.swarm.errors import StateUnavailable
from peer.swarm.node import Node
from peer.swarm.state import IDLE_SECONDS, SLOWEST_RATE, Snapshot, StateServer, fetch_state
from peer.swarm.vectors import decode_vector
from protocol.encoding import canonical_bytes
from protocol.errors import RemoteProtocolError
from protocol.units import Epoch, PeerId

STANDING_SECONDS = 10.0
STRAGGLER_SECONDS = 1.0
MAX_TOLD = 8
"""donors that are asked, one after the other, which commits this peer lacks"""
STEPS_AHEAD = 2
"""gradients on their way at once, so that the link never rests"""
SPOOL_FILE = "catch-up.spool"
AVERAGE = "average-"
"""kind of what is served of a round under way, before the number of the attempt"""


class CatchUp:
    def __init__(self, node: Node, replica: Replica, state_dir: Path, listener: Listener) -> None:
        self._node, self._replica, self._listener = node, replica, listener
        self._spool = state_dir / SPOOL_FILE
        self._copy: Snapshot | None = None
        self.bytes_received = 0
        self.num_tries = 0
        """fetches of the whole state, or of gradients during which the others came no nearer"""
        self.uncommitted: Callable[[Epoch | None, str], Snapshot | None] | None = None
        """gives the average of an attempt that this peer has, but has not committed yet"""

    async def serve(self) -> None:
        """Let others catch up from this peer."""
        await StateServer(self._node, self._provide).start()
        await serve_calls(self._node, "commits", self._tell_commits)

    async def _provide(self, kind: str, epoch: Epoch | None) -> Snapshot | None:
        replica = self._replica
        if kind == "state":
            if self._copy is None or self._copy.epoch != replica.epoch:
                header, payload = await replica.copy_state()
                self._copy = Snapshot(header["epoch"], header, payload)
            return self._copy
        if kind == "gradient" and epoch is not None:
            return await replica.history.at(epoch)
        if kind.startswith(AVERAGE) and self.uncommitted is not None:
            return self.uncommitted(epoch, kind.removeprefix(AVERAGE))
        return None

    async def _tell_commits(self, _peer: PeerId, header: dict[str, Any], _body: bytes) -> Reply:
        """Which commits followed the weights of a lineage at an epoch."""
        match header:
            case {"epoch": int(epoch), "lineage": str(lineage)}:
                return {}, canonical_bytes(await self._replica.history.since(epoch, lineage))
        return {}, canonical_bytes([])

    def release_copy(self) -> None:
        """Free the copy made for newcomers; transfers under way keep theirs."""
        self._copy = None

    async def standings(self, peers: Sequence[PeerId], after: Epoch = -1) -> list[Standing]:
        """Ask `peers`, all at once; those that do not answer sensibly, or long after the first one, are left out.

        With `after`, they answer when they have committed more than that many epochs.
        """

        async def ask(peer: PeerId) -> Standing | None:
            with contextlib.suppress(PeerError, RemoteProtocolError):
                header, _ = await self._node.call(peer, "standing", {"after": after}, timeout=STANDING_SECONDS)
                return Standing.parse(peer, header)
            return None

        asking = {asyncio.create_task(ask(peer)) for peer in peers}
        found: list[Standing] = []
        patience = None
        try:
            while asking:
                done, asking = await asyncio.wait(asking, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                found += [answer for task in done if (answer := task.result()) is not None]
                patience = STRAGGLER_SECONDS if found else None
        finally:
            for task in asking:
                task.cancel()
        return found

    async def step_along(self, standings: Sequence[Standing]) -> Standing | None:
        """Where the quorum of `standings` stands, if this peer stands there, or has gone there by one gradient."""
        goal, replica = choose_goal(standings), self._replica
        if goal is None:
            return None
        lacks_one = goal.epoch == replica.epoch + 1
        is_there = self._is_at(goal) or (lacks_one and await self._replay_to(goal, _donors(goal, standings)))
        return goal if is_there else None

    async def come_into_step(self, standings: Sequence[Standing]) -> Standing | None:
        """Fetch what is lacking to stand where the quorum of `standings` stands, and what is committed meanwhile.

        Returns the standing reached. None means: the others go on faster, or nobody gave what was needed; ask again.
        """
        replica = self._replica
        behind, has_state = math.inf, False
        while (goal := choose_goal(standings)) is not None and goal.epoch >= replica.epoch:
            if self._is_at(goal):
                return goal
            lacking = goal.epoch - replica.epoch
            if lacking >= behind:
                self.num_tries += 1
                return None
            donors = _donors(goal, standings)
            if await self._replay_to(goal, donors):
                behind = lacking
                if lacking == 1:
                    return goal  # the others have hardly gone on meanwhile
            elif has_state or not await self._fetch_state(donors):
                return None
            else:
                has_state = True
            standings = await self.standings([s.peer for s in standings])
        return None

    def _is_at(self, goal: Standing) -> bool:
        """Whether this peer has come to where others stand; then it may train."""
        replica = self._replica
        is_there = (goal.epoch, goal.lineage) == (replica.epoch, replica.lineage.digest)
        replica.has_weights = replica.has_weights or is_there
        return is_there

    async def _replay_to(self, goal: Standing, donors: Sequence[PeerId]) -> bool:
        """Go on to `goal` by the gradients that we lack; False if the state is the only way, or the better one."""
        tried: list[list[Step]] = []
        for donor in donors[:MAX_TOLD]:
            steps = await self._steps_to(goal, donor)
            if steps and steps not in tried:
                if await self._replay(steps, donors):
                    return self._is_at(goal)
                tried.append(steps)
        return False

    async def _steps_to(self, goal: Standing, donor: PeerId) -> list[Step]:
        """The commits that lead from here to `goal`, as its lineage proves; none if `donor` knows no short way."""
        replica = self._replica
        lacking = goal.epoch - replica.epoch
        ours = {"epoch": replica.epoch, "lineage": replica.lineage.digest}
        if replica.is_exact and lacking:
            with contextlib.suppress(PeerError, RemoteProtocolError):
                _, listing = await self._node.call(donor, "commits", ours, timeout=STANDING_SECONDS)
                steps = read_steps(listing, replica.epoch, replica.lineage)[:lacking]
                size = sum(gradient_size(replica.num_parameters, step) for step in steps)
                if len(steps) == lacking and steps[-1].lineage.digest == goal.lineage and size < replica.state_bytes:
                    return steps
        return []

    async def _replay(self, steps: Sequence[Step], donors: Sequence[PeerId]) -> bool:
        """Apply the gradients of `steps`, the next ones being fetched meanwhile; whether all came."""
        began, received = time.monotonic(), self.bytes_received
        todo = deque(steps)
        fetching: deque[asyncio.Task[Committed | None]] = deque()
        try:
            while todo or fetching:
                while todo and len(fetching) < STEPS_AHEAD:
                    fetching.append(asyncio.create_task(self.fetch_gradient("gradient", todo.popleft(), donors)))
                commit = await fetching[0]
                if commit is None:
                    return False
                fetching.popleft()
                await asyncio.shield(self._replica.apply(commit))  # whoever gives up meanwhile finds it applied
        finally:
            for task in fetching:
                task.cancel()
            await asyncio.gather(*fetching, return_exceptions=True)
        if len(steps) > 1:  # one comes in every epoch; nobody wants to watch it
            self._tell(len(steps), self.bytes_received - received, began)
        return True

    async def fetch_gradient(self, kind: str, step: Step, donors: Sequence[PeerId]) -> Committed | None:
        """A step with its averaged gradient, or None if nobody gives it.

        `kind` is "gradient" for the committed one, or `AVERAGE` and an attempt for one that is still in its round.
        """
        alone = [[donor] for donor in donors] if len(donors) > 1 else []
        for plain in dict.fromkeys((step, replace(step, compression="none"))):
            for asked in (donors, *alone):  # alone only if they gave together what was no gradient, or did not end
                with contextlib.suppress(MalformedPiece, TimeoutError):
                    try:
                        return await self._fetch_gradient(kind, plain, asked)
                    except PeerError:
                        break
        return None

    async def _fetch_gradient(self, kind: str, step: Step, donors: Sequence[PeerId]) -> Committed:
        size = gradient_size(self._replica.num_parameters, step)
        spool = self._spool.with_suffix(f".{kind}-{step.epoch % STEPS_AHEAD}")
        async with asyncio.timeout(IDLE_SECONDS + size / SLOWEST_RATE):
            fetched = await fetch_state(
                self._node, donors, kind, step.epoch, spool, _silent, expected_size=size, header=step.header
            )
        self.bytes_received += size
        mean = await asyncio.to_thread(
            decode_vector, fetched.payload.data, self._replica.num_parameters, step.compression
        )
        return Committed(step.epoch, step.attempt, step.members, step.before, step.compression, mean)

    async def _fetch_state(self, donors: Sequence[PeerId]) -> bool:
        def on_progress(done: int, total: int) -> None:
            self._listener(events.Transferring("fetching the state", done, total))

        began, size = time.monotonic(), self._replica.state_bytes
        self.num_tries += 1
        try:
            fetched = await fetch_state(self._node, donors, "state", None, self._spool, on_progress, expected_size=size)
            self.bytes_received += size
            await self._replica.load_state(fetched.header, np.frombuffer(fetched.payload, dtype=np.uint8))
        except (StateUnavailable, RemoteProtocolError) as failure:
            self._listener(events.Notice(str(failure)))
            return False
        self._tell(0, size, began)
        return True

    def _tell(self, num_gradients: int, size: int, began: float) -> None:
        self._listener(events.CaughtUp(self._replica.epoch, size, time.monotonic() - began, num_gradients))


def _donors(goal: Standing, standings: Sequence[Standing]) -> list[PeerId]:
    """Those who stand there."""
    return [s.peer for s in standings if (s.epoch, s.lineage) == (goal.epoch, goal.lineage)]


def _silent(_done: int, _total: int) -> None:
    """A gradient comes every epoch; nobody wants to watch it."""
