"""How a peer that is not in step comes into step: where do the others stand, what do I lack, fetch it.

Whoever is one epoch behind needs that epoch's averaged gradient (4 bytes a parameter); whoever is further behind,
or has another history, needs the whole state (12). Both come from any peers of the plan, in hashed chunks. A peer
that is not yet in the plan follows in this way, epoch by epoch, until a term begins whose plan includes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peer import events
from peer.daemon.replica import Committed, Replica
from peer.errors import PeerError
from peer.events import Listener
from peer.swarm.codec import Compression
from peer.swarm.node import Node
from peer.swarm.state import FetchedState, Snapshot, StateServer, fetch_state
from peer.swarm.vectors import decode_vector, encode_vector, encoded_size
from protocol.errors import RemoteProtocolError
from protocol.plan import Plan
from protocol.progress import quorum_epoch
from protocol.units import Epoch, PeerId

STANDING_SECONDS = 10.0
STRAGGLER_SECONDS = 1.0
SPOOL_FILE = "catch-up.spool"
AVERAGE = "average-"
"""kind of what is served of a round under way, before the number of the attempt"""


@dataclass(frozen=True)
class Standing:
    """What one peer says of the run."""

    peer: PeerId
    epoch: Epoch
    lineage: str
    plan: Plan
    absent: dict[PeerId, Epoch]
    remaining_seconds: float
    """until its deadline for gathering the present epoch"""

    @classmethod
    def parse(cls, peer: PeerId, value: dict[str, Any]) -> Standing:
        """Raises `RemoteProtocolError` if a peer says nonsense."""
        match value:
            case {
                "epoch": int(epoch),
                "lineage": str(lineage),
                "plan": plan,
                "absent": dict(absent),
                "remaining_ms": int(remaining),
            } if epoch >= 0 and all(isinstance(e, int) for e in absent.values()):
                return cls(peer, epoch, lineage, Plan.from_data(plan), absent, max(0, remaining) / 1000)
        raise RemoteProtocolError("a standing lacks a field or has one of the wrong type")


class CatchUp:
    def __init__(self, node: Node, replica: Replica, state_dir: Path, listener: Listener) -> None:
        self._node, self._replica, self._listener = node, replica, listener
        self._spool = state_dir / SPOOL_FILE
        self._copy: Snapshot | None = None
        self.bytes_received = self.num_states = 0
        self.compression: Callable[[], Compression] = lambda: "none"
        """of rounds in the present plan"""
        self.uncommitted: Callable[[Epoch | None, str], Snapshot | None] | None = None
        """gives the average of an attempt that this peer has, but has not committed yet"""

    async def serve(self) -> StateServer:
        """Let others catch up from this peer."""
        server = StateServer(self._node, self._provide)
        await server.start()
        return server

    async def _provide(self, kind: str, epoch: Epoch | None) -> Snapshot | None:
        replica = self._replica
        if kind == "state":
            if self._copy is None or self._copy.epoch != replica.epoch:
                header, payload = await replica.copy_state()
                self._copy = Snapshot(header["epoch"], header, payload)
            return self._copy
        if kind == "gradient" and replica.last_commit is not None and epoch == replica.last_commit.epoch:
            return gradient_snapshot(replica.last_commit)
        if kind.startswith(AVERAGE) and self.uncommitted is not None:
            return self.uncommitted(epoch, kind.removeprefix(AVERAGE))
        return None

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

    async def come_into_step(self, standings: Sequence[Standing]) -> Standing | None:
        """Fetch what is lacking to stand where the quorum of `standings` stands; the standing reached, or None.

        None means: the others went on meanwhile, or nobody gave what was needed; ask again.
        """
        goal = choose_goal(standings)
        replica = self._replica
        if goal is None or goal.epoch < replica.epoch:
            return None
        donors = [s.peer for s in standings if (s.epoch, s.lineage) == (goal.epoch, goal.lineage)]
        if (goal.epoch, goal.lineage) == (replica.epoch, replica.lineage.digest):
            replica.has_weights = True
            return goal
        if goal.epoch == replica.epoch + 1 and await self._apply_gradient(replica.epoch, donors):
            return goal if replica.lineage.digest == goal.lineage else None
        await self._fetch_state(donors)
        return goal if (goal.epoch, goal.lineage) == (replica.epoch, replica.lineage.digest) else None

    async def fetch_gradient(self, kind: str, epoch: Epoch, donors: Sequence[PeerId]) -> Committed | None:
        """The averaged gradient by which others went on from our weights of `epoch`, or None if nobody gives it.

        `kind` is "gradient" for the committed one, or `AVERAGE` and an attempt for one that is still in its round.
        """
        plain: Compression = "none"
        for compression in dict.fromkeys((self.compression(), plain)):
            with contextlib.suppress(PeerError, ValueError, KeyError):  # gone, or a donor that says nonsense
                return await self._fetch_gradient(kind, epoch, donors, compression)
        return None

    async def _fetch_gradient(
        self, kind: str, epoch: Epoch, donors: Sequence[PeerId], compression: Compression
    ) -> Committed | None:
        size = self._replica.num_parameters
        fetched = await self._fetch(donors, kind, epoch, encoded_size(size, compression))
        match fetched.header:
            case {"before": str(before), "attempt": int(attempt), "members": list(members)} if (
                before == self._replica.lineage.digest
            ):
                counted = tuple((str(peer), int(samples)) for peer, samples in members)
                mean = decode_vector(fetched.payload.data, size, compression)
                return Committed(epoch, attempt, counted, self._replica.lineage, mean, compression)
        return None

    async def _apply_gradient(self, epoch: Epoch, donors: Sequence[PeerId]) -> bool:
        found = await self.fetch_gradient("gradient", epoch, donors)
        if found is None:
            return False
        await self._replica.apply(found)
        return True

    async def _fetch_state(self, donors: Sequence[PeerId]) -> None:
        began = time.monotonic()
        fetched = await self._fetch(donors, "state", None, self._replica.state_bytes)
        self.num_states += 1
        await self._replica.load_state(fetched.header, np.frombuffer(fetched.payload, dtype=np.uint8))
        self._listener(events.CaughtUp(self._replica.epoch, self._replica.state_bytes, time.monotonic() - began))

    async def _fetch(self, donors: Sequence[PeerId], kind: str, epoch: Epoch | None, size: int) -> FetchedState:
        def on_progress(done: int, total: int) -> None:
            self._listener(events.Transferring("fetching the state", done, total))

        spool = self._spool.with_suffix(f".{kind}")
        fetched = await fetch_state(
            self._node,
            donors,
            kind,
            epoch,
            spool,
            on_progress if kind == "state" else _silent,
            expected_size=size,
        )
        self.bytes_received += size
        return fetched


def gradient_snapshot(commit: Committed) -> Snapshot:
    """An averaged gradient as it is served: what it was made of, and its bytes, as small as they came."""
    compression = commit.compression
    encoded = encode_vector(commit.mean, compression)
    if not np.array_equal(decode_vector(memoryview(encoded), len(commit.mean), compression), commit.mean):
        encoded = encode_vector(commit.mean, "none")  # where parts met within a block, its scale can differ
    header = {
        "before": commit.before.digest,
        "attempt": commit.attempt,
        "members": [list(member) for member in commit.members],
    }
    return Snapshot(commit.epoch, header, encoded)


def _silent(_done: int, _total: int) -> None:
    """A gradient comes every epoch; nobody wants to watch it."""


def choose_goal(standings: Sequence[Standing]) -> Standing | None:
    """The standing to reach: that of the quorum, weighted by the plan that most weight stands by."""
    if not standings:
        return None
    plans = Counter(s.plan.digest for s in standings)
    plan = max(standings, key=lambda s: (plans[s.plan.digest], s.plan.term, s.plan.digest)).plan
    weights = {m.peer: m.throughput for group in plan.groups for m in group.members}
    epochs = {s.peer: s.epoch for s in standings if s.peer in weights}
    present = {peer: weights[peer] for peer in epochs}
    if not epochs:
        return None
    quorum, _ = quorum_epoch(epochs, present)
    assert quorum is not None  # every one of `present` has spoken
    reached = [s for s in standings if s.peer in epochs and s.epoch >= quorum]
    lineages: Counter[tuple[Epoch, str]] = Counter()
    for standing in reached:
        lineages[standing.epoch, standing.lineage] += weights[standing.peer]
    # The heaviest history at or just above the quorum; a lone peer far ahead has little weight.
    return max(reached, key=lambda s: (lineages[s.epoch, s.lineage], -s.epoch, s.peer))
