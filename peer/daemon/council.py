"""This peer's part in voting the plan of each term (`protocol/plan.py`).

A term is `term_epochs` epochs. In its last but one, peers cast ballots for the next term; in its last, each tallies the
ballots that it sees and votes for the plan that follows from them; where two thirds of the live weight voted for the
same plan, it holds from the next term's first epoch on, else the present one goes on. All of it happens beside the
training; nobody waits for a vote.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from peer.daemon.roster import expiry
from peer.errors import PeerError
from peer.swarm.node import Node
from protocol.manifest import Manifest
from protocol.plan import Plan, decide
from protocol.reasons import Verdict
from protocol.records import Ballot, PlanVote
from protocol.tally import tally
from protocol.units import Epoch, PeerId, RunId

POLL_SECONDS = 0.5


class Council:
    def __init__(self, node: Node, run: RunId, manifest: Manifest, num_parameters: int, plan: Plan) -> None:
        self._node, self._run, self._manifest = node, run, manifest
        self._num_parameters = num_parameters
        self.plan, self.reason = plan, "not in the run yet"
        self.reasons: dict[PeerId, str] = {}
        """why each peer has its place, where this peer tallied the present plan itself"""
        self._decided: tuple[Plan, Verdict] | None = None
        self._casting: asyncio.Task[None] | None = None
        self._voting: asyncio.Task[None] | None = None

    def take_effect(self, epoch: Epoch) -> bool:
        """Go by the decided plan if its term has begun; whether the plan changed."""
        decided = self._decided
        if decided is None or epoch < decided[0].term * self._manifest.averaging.term_epochs:
            return False
        plan, verdict = decided
        self.adopt(plan, verdict.reason, verdict.of_peer)
        return True

    def adopt(self, plan: Plan, reason: str, reasons: Mapping[PeerId, str] = MappingProxyType({})) -> None:
        self.plan, self.reason, self.reasons = plan, reason, dict(reasons)
        if self._decided is not None and self._decided[0].term <= plan.term:
            self._decided = None

    def ballot_epoch(self, term: int) -> Epoch:
        """The epoch in which ballots for `term` are cast."""
        return max(0, term * self._manifest.averaging.term_epochs - 2)

    def begin(self, epoch: Epoch, ballot: Callable[[int], Ballot], absent: Mapping[PeerId, Epoch]) -> None:
        """Do what is due in this epoch, in the background. `ballot` makes this peer's for a term."""
        term_epochs = self._manifest.averaging.term_epochs
        term, phase = epoch // term_epochs + 1, epoch % term_epochs
        if epoch == self.ballot_epoch(term):
            self._casting = asyncio.create_task(_quietly(self._cast(ballot(term))))
        elif phase == term_epochs - 1:
            if self._voting is not None:
                self._voting.cancel()
            if self.plan.group_of(self._node.peer_id) is not None:
                self._voting = asyncio.create_task(_quietly(self._vote(term, dict(absent))))

    async def _cast(self, ballot: Ballot) -> None:
        await self._node.publish(ballot)

    def tally(
        self, term: int, ballots: Sequence[Ballot], absent: Mapping[PeerId, Epoch], previous: Plan | None
    ) -> tuple[Plan | None, Verdict]:
        """The plan that ballots make for this run."""
        manifest = self._manifest
        return tally(
            self._run,
            term,
            ballots,
            absent,
            manifest.training.target_batch_size,
            manifest.limits.max_peers,
            num_parameters=self._num_parameters,
            overlap=manifest.averaging.overlap,
            compression=manifest.averaging.compression,
            previous=previous,
        )

    async def _vote(self, term: int, absent: dict[PeerId, Epoch]) -> None:
        ballots = [r for r in await self._node.fetch("ballot", term) if isinstance(r, Ballot)]
        plan, verdict = self.tally(term, ballots, absent, self.plan)
        if plan is None:
            return
        vote = PlanVote(
            run=self._run, peer=self._node.peer_id, expires=expiry("plan-vote"), term=term, plan=plan.digest
        )
        await self._node.publish(vote)
        while await self.verdict(term, absent) != plan.digest:
            await asyncio.sleep(POLL_SECONDS)
        self._decided = plan, verdict

    async def verdict(self, term: int, absent: Mapping[PeerId, Epoch]) -> str | None:
        """Digest of the plan that two thirds of the live weight of the present plan voted for, if there is one."""
        votes = {r.peer: r.plan for r in await self._node.fetch("plan-vote", term) if isinstance(r, PlanVote)}
        weights = {m.peer: m.throughput for m in self.plan.step if m.peer not in absent}
        return decide(votes, weights)[0]

    def stop(self) -> None:
        for task in (self._casting, self._voting):
            if task is not None:
                task.cancel()


async def _quietly(coroutine: Coroutine[Any, Any, None]) -> None:
    """A vote that fails is a term in which the present plan goes on."""
    with contextlib.suppress(PeerError, OSError):
        await coroutine
