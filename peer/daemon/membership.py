"""Whether this peer is in the plan, and how it comes in: it finds the others, comes into step, follows until a term
begins whose plan includes it; and goes on alone where nobody else is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from peer import events
from peer.daemon.catchup import Standing, choose_goal
from peer.daemon.entrance import peer_in
from peer.daemon.keeping import remembered_peers
from peer.errors import PeerError
from peer.policy.link import Seen
from peer.swarm.errors import NobodyAnswers
from peer.swarm.probe import ProbeResult
from peer.swarm.vectors import encoded_size
from protocol.plan import Plan
from protocol.units import PeerId

if TYPE_CHECKING:
    from peer.daemon.lifecycle import Daemon

COME_IN_SECONDS = 60.0
ALONE_AFTER_SECONDS = 30.0
LINGER_SECONDS = 5.0
OBSERVERS = 2
PROBE_TRIES = 5
PROBE_PAUSE_SECONDS = 1.0
FOLLOWING_PART = 0.8
"""of an epoch, in which its gradient has to be here"""
MAX_STATE_SECONDS = 600.0
MAX_STATES = 3
"""that are fetched in order to become a member, before the slow lane is better"""
TRY_AGAIN_SECONDS = 300.0
RETRY_SECONDS = 0.3


class Membership:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._is_measured = False
        self._keeps_step = True
        """whether our link can fetch what every epoch brings, as far as we know"""
        self._num_states = 0
        """fetched since this peer was last a member"""
        self._gave_up = 0.0
        self.in_step = False
        """whether this peer stands where the others stand"""
        self.own_link: Seen | None = None
        """as others saw it; what this peer says of itself counts while nobody else has a vote"""

    def is_member(self) -> bool:
        """Whether the plan of the present epoch asks this peer for samples."""
        daemon = self._daemon
        return daemon.council.plan.group_of(daemon.me) is not None and daemon.me not in daemon.replica.absent

    def is_slow(self) -> bool:
        """Whether the present plan has this peer in the slow lane, to stay there."""
        place = self._daemon.council.plan.slow_member(self._daemon.me)
        return place is not None and not (place.promote and self._may_try_step())

    async def come_in(self) -> None:
        """Find out whether the run is under way, and enter it; else begin or resume it alone.

        Raises `NobodyAnswers` if this peer may do neither.
        """
        daemon = self._daemon
        await daemon.roster.look()
        others = {peer_in(address) for address in daemon.config.initial_peers} | set(daemon.roster.progress)
        others.discard(daemon.me)
        daemon.status.activity("catching up", "it has to stand where the others stand before it can train with them")
        deadline = time.monotonic() + COME_IN_SECONDS
        while others and time.monotonic() < deadline and not daemon.is_stopping:
            standings = await daemon.catchup.standings(sorted(others))
            if not standings and daemon.may_be_alone():
                break
            others |= {peer for s in standings for peer in members(s.plan)} - {daemon.me}
            if await self._enter(standings):
                return
            await asyncio.sleep(RETRY_SECONDS)
        if daemon.is_stopping:
            return
        if others and not daemon.may_be_alone():
            raise NobodyAnswers(
                "no peer of the invite gives the run's state; try again in a minute or ask for a new invite"
            )
        if daemon.config.initial_peers or remembered_peers(daemon.config.state.path):
            daemon.listener(
                events.Notice(
                    "no peer known from before answers, so this one goes on alone from its checkpoint; if others are "
                    "training, stop this peer and join them by an invite of theirs"
                )
            )
        self._go_alone("no other peer is there")

    async def _enter(self, standings: Sequence[Standing]) -> bool:
        """Be measured, then come into step, or with a slow link go by the plan until one has a place for us."""
        daemon = self._daemon
        goal = choose_goal(standings)
        if goal is None:
            return False
        if not self._is_measured:
            self._is_measured = True
            await self._be_measured(goal.plan)
            if self.own_link is not None:
                self._keeps_step = self._can_follow(min(self.own_link.up, self.own_link.down), goal.plan)
        if not self._keeps_step:
            self._adopt(goal)
            return True
        reached = await self._come_into_step(standings)
        if reached is None:
            return not self._keeps_step and self._adopt(goal)
        self._adopt(reached)
        daemon.epochs.hand_in_within(reached.remaining_seconds)
        return True

    async def _be_measured(self, plan: Plan) -> None:
        """Let up to two members measure our link; those who are busy with other newcomers are asked again."""
        daemon = self._daemon
        observers = [peer for peer in members(plan) if peer != daemon.me][:OBSERVERS]
        seen: dict[PeerId, ProbeResult] = {}
        for _ in range(PROBE_TRIES):
            for observer in observers:
                if observer not in seen:
                    with contextlib.suppress(PeerError):
                        seen[observer] = await daemon.prober.probe(observer)
            if len(seen) == len(observers):
                break
            await asyncio.sleep(PROBE_PAUSE_SECONDS)
        if seen:
            up = sorted(result.up for result in seen.values())[(len(seen) - 1) // 2]
            down = sorted(result.down for result in seen.values())[(len(seen) - 1) // 2]
            self.own_link = Seen(int(up), int(down))
            daemon.listener(events.LinkMeasured(min(up, down), len(seen)))

    async def _come_into_step(self, standings: Sequence[Standing]) -> Standing | None:
        """Where this peer now stands with the others. Gives up for a while if the others are always gone meanwhile."""
        catchup = self._daemon.catchup
        before = catchup.num_states
        reached = await catchup.come_into_step(standings)
        self.in_step = reached is not None
        self._num_states += catchup.num_states - before
        if self._num_states > MAX_STATES:
            self._keeps_step, self._num_states, self._gave_up = False, 0, time.monotonic()
        return reached

    def _may_try_step(self) -> bool:
        return self._keeps_step or time.monotonic() - self._gave_up > TRY_AGAIN_SECONDS

    def _can_follow(self, rate: float, plan: Plan) -> bool:
        """Whether a link of `rate` bytes per second brings each epoch's gradient within the epoch."""
        daemon = self._daemon
        manifest = daemon.signed.manifest
        throughput = sum(plan.weights.values()) + daemon.throughput()
        epoch_seconds = 1000 * manifest.training.target_batch_size / throughput
        chosen = manifest.averaging.compression
        gradient = encoded_size(daemon.replica.num_parameters, "uniform8" if chosen == "auto" else chosen)
        state_seconds = daemon.replica.state_bytes / rate
        return gradient / rate < FOLLOWING_PART * epoch_seconds and state_seconds < MAX_STATE_SECONDS

    def lone_plan(self, term: int) -> Plan:
        """The plan of a swarm of one."""
        plan, _ = self._daemon.council.tally(term, [self._daemon.ballot(term)], {}, None)
        assert plan is not None
        return plan

    def _go_alone(self, why: str) -> None:
        daemon = self._daemon
        daemon.replica.absent, daemon.replica.has_weights = {}, True
        self.in_step = True
        term = daemon.replica.epoch // daemon.signed.manifest.averaging.term_epochs
        daemon.council.adopt(self.lone_plan(term), why)
        self.announce()

    def _adopt(self, standing: Standing) -> bool:
        """Go by what a peer with which we are in step goes by."""
        daemon = self._daemon
        daemon.replica.absent = dict(standing.absent)
        if standing.plan.digest != daemon.council.plan.digest:
            daemon.council.adopt(standing.plan, "the plan that the swarm goes by")
            self.announce()
        return True

    def begin_plan(self) -> None:
        """A plan that this peer has voted with the others takes effect.

        Its members are present again, but for those excluded since they cast their ballots.
        """
        daemon = self._daemon
        plan = daemon.council.plan
        cast = daemon.council.ballot_epoch(plan.term)
        absent = daemon.replica.absent
        daemon.replica.absent = {p: e for p, e in absent.items() if plan.group_of(p) is None or e >= cast}
        if not self._is_measured and len(members(plan)) > 1:  # the first of a run had nobody to measure it
            self._is_measured = True
            daemon.in_background(self._be_measured(plan))
        self.announce()

    def set_aside(self) -> None:
        """This peer is out of step: it follows until a plan takes it in again."""
        self._daemon.replica.absent[self._daemon.me] = self._daemon.replica.epoch
        self.in_step = False

    async def take_plan_of(self, peer: PeerId, term: int) -> bool:
        """Go by the later plan that `peer` goes by, if two thirds voted for it; whether this peer is in it."""
        daemon = self._daemon
        standings = await daemon.catchup.standings([peer])
        verdict = await daemon.council.verdict(term, daemon.replica.absent)
        if not standings or standings[0].plan.digest != verdict or standings[0].plan.term != term:
            self.set_aside()
            return False
        daemon.council.adopt(standings[0].plan, f"two thirds voted for it in term {term}")
        self.begin_plan()
        return self.is_member()

    def announce(self) -> None:
        """Tell the owner of the plan."""
        daemon = self._daemon
        shares = tuple(
            events.Share(m.peer, daemon.roster.name_of(m.peer), m.throughput / 1000, m.quota)
            for group in daemon.council.plan.groups
            for m in group.members
        )
        daemon.listener(events.PlanAdopted(daemon.council.plan.term, shares, daemon.council.reason))

    async def follow(self) -> None:
        """Come into step with the next epoch that the others commit, or wait for a plan that includes this peer."""
        daemon = self._daemon
        replica = daemon.replica
        daemon.own.state = "catching-up"
        self._keeps_step = self._keeps_step or (self._is_wanted_in_step() and self._may_try_step())
        waits = "it is in step and waits" if self._keeps_step else "its link is slow; it waits"
        daemon.status.activity("following", f"{waits} for the next term, whose plan will include it")
        alone_since = time.monotonic()
        known = replica.epoch if self._keeps_step else daemon.own.epoch
        daemon.council.begin(known, daemon.ballot, replica.absent)
        while not daemon.is_stopping:
            others = sorted({*members(daemon.council.plan), *daemon.roster.progress} - {daemon.me})
            asking = asyncio.create_task(daemon.catchup.standings(others, after=known))
            if not await daemon.unless_stopped(asking):
                return
            standings = asking.result()
            before = replica.epoch
            reached = await self._stay_with(standings)
            if reached is not None:
                self._adopt(reached)
                daemon.own.epoch = reached.epoch
                if replica.epoch > before:
                    await daemon.epochs.after_commit()
                daemon.epochs.hand_in_within(reached.remaining_seconds)
                if self.is_member():
                    self._num_states = 0
                if reached.epoch > known or self.is_member() or self.is_slow():
                    return
            if standings:
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > ALONE_AFTER_SECONDS:
                self._go_alone("all other peers have gone")
                return
            if reached is None:
                await asyncio.sleep(RETRY_SECONDS)

    async def _stay_with(self, standings: Sequence[Standing]) -> Standing | None:
        """Where the others stand, having come into step with them if our link can."""
        if self._keeps_step:
            return await self._come_into_step(standings)
        return choose_goal(standings)

    def _is_wanted_in_step(self) -> bool:
        """Whether the plan keeps this peer in the slow lane only until it is in step."""
        place = self._daemon.council.plan.slow_member(self._daemon.me)
        return place is not None and place.promote

    async def linger(self) -> None:
        """At the end of the run, stay for a few seconds until the others have the last epoch too."""
        daemon = self._daemon
        others = [p for p in members(daemon.council.plan) if p != daemon.me and p not in daemon.replica.absent]
        deadline = time.monotonic() + LINGER_SECONDS
        while others and time.monotonic() < deadline and not daemon.is_stopping:
            standings = await daemon.catchup.standings(others)
            if all(standing.epoch >= daemon.replica.epoch for standing in standings):
                return
            await asyncio.sleep(RETRY_SECONDS)


def members(plan: Plan) -> list[PeerId]:
    return [member.peer for group in plan.groups for member in group.members]
