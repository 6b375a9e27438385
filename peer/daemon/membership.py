"""Whether this peer is in the plan, and how it comes in: it finds the others, comes into step, follows until a term
begins whose plan includes it; and goes on alone where nobody else is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from peer import events
from peer.daemon.keeping import remembered_peers
from peer.daemon.standings import Standing, choose_goal
from peer.daemon.watching import watch_swarm
from peer.errors import PeerError
from peer.policy.link import Seen
from peer.swarm.errors import NobodyAnswers
from peer.swarm.probe import ProbeResult
from protocol.lanes import Work
from protocol.multiaddr import peer_at
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
MEASURE_AGAIN_SECONDS, MEASURE_AT_LEAST_SECONDS = 30.0, 1800.0
FOLLOWING_PART = 0.8
"""of an epoch, in which its gradient has to be here"""
MAX_STATE_SECONDS = 600.0
MAX_TRIES = 3
"""to catch up with the others, by a state or by gradients, before the slow lane is better"""
TRY_AGAIN_SECONDS = 300.0
RETRY_SECONDS = 0.3


class Membership:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._is_measured = False
        self._measured_at, self._measure_after = 0.0, MEASURE_AGAIN_SECONDS
        self._keeps_step = True
        """whether our link can fetch what every epoch brings, as far as we know"""
        self._num_tries = 0
        """to catch up, since this peer was last a member"""
        self._gave_up = 0.0
        self.in_step = False
        """whether this peer stands where the others stand"""
        self.is_fetching = False
        """what it lacks, so that its link is not free to measure others"""
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
        others = {peer_at(address) for address in daemon.config.initial_peers} | set(daemon.roster.progress)
        others.discard(daemon.me)
        daemon.status.activity("catching up", "it has to stand where the others stand before it can train with them")
        deadline = time.monotonic() + COME_IN_SECONDS
        while others and time.monotonic() < deadline and not daemon.is_stopping:
            standings = await daemon.catchup.standings(sorted(others))
            if not standings and daemon.may_be_alone():
                break
            others |= {peer for s in standings for peer in members(s.plan)} - {daemon.me}
            before = daemon.replica.lineage
            if await self._enter(standings):
                return
            if daemon.replica.lineage != before:  # on its way, however slow
                deadline = time.monotonic() + COME_IN_SECONDS
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
            return self.is_slow() or (not self._keeps_step and self._adopt(goal))
        self._adopt(reached)
        daemon.epochs.hand_in_by(reached.deadline)
        return True

    async def _be_measured(self, plan: Plan) -> None:
        """Let up to two members measure our link; those who are busy with other newcomers are asked again."""
        daemon = self._daemon
        found = [m for m in plan.step if m.peer != daemon.me]
        # Who reduces most has the fastest link: it sees most.
        observers = [m.peer for m in sorted(found, key=lambda m: (-m.share, m.peer))][:OBSERVERS]
        seen: dict[PeerId, ProbeResult] = {}
        self._measured_at = time.monotonic()
        for _ in range(PROBE_TRIES):
            for observer in observers:
                if observer not in seen:
                    with contextlib.suppress(PeerError):
                        seen[observer] = await daemon.prober.probe(observer)
            if len(seen) == len(observers):
                break
            await asyncio.sleep(PROBE_PAUSE_SECONDS)
        if seen:
            # The most: whoever saw less may have been in the way.
            up, down = (max(rates) for rates in zip(*((s.up, s.down) for s in seen.values()), strict=True))
            self.own_link = Seen(int(up), int(down))
            daemon.listener(events.LinkMeasured(min(up, down), len(seen)))

    async def _come_into_step(self, standings: Sequence[Standing]) -> Standing | None:
        """Where this peer now stands with the others; meanwhile it casts the ballots that are due.

        None also if a plan has a place for this peer in the slow lane, or the peer is to end. Gives up for a while if
        the others are always gone meanwhile.
        """
        daemon, placed = self._daemon, asyncio.Event()
        before = daemon.catchup.num_tries

        def on_plan() -> None:
            if self.is_slow():
                placed.set()

        self.is_fetching = True
        coming = asyncio.create_task(self._come_along_or_from_afar(standings))
        peers = [standing.peer for standing in standings]
        others = (watch_swarm(daemon, lambda: peers, on_plan), placed.wait(), daemon.stopping())
        tasks = [coming, *(asyncio.create_task(work) for work in others)]
        try:
            for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                task.result()
            reached = coming.result() if coming.done() else None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.is_fetching = False
        self.in_step = reached is not None
        self._num_tries += daemon.catchup.num_tries - before
        if self._num_tries > MAX_TRIES:
            self._keeps_step, self._num_tries, self._gave_up = False, 0, time.monotonic()
        return reached

    async def _come_along_or_from_afar(self, standings: Sequence[Standing]) -> Standing | None:
        """Who was in step and lacks one gradient is as good as in step; who lacks more is not, as its ballots say."""
        daemon = self._daemon
        reached = await daemon.catchup.step_along(standings)
        if reached is None:
            self.in_step = False
            daemon.status.activity("catching up", "it fetches what the others have committed without it")
            reached = await daemon.catchup.come_into_step(standings)
        return reached

    def _may_try_step(self) -> bool:
        return self._keeps_step or time.monotonic() - self._gave_up > TRY_AGAIN_SECONDS

    def _can_follow(self, rate: float, plan: Plan) -> bool:
        """Whether a link of `rate` bytes per second brings each epoch's gradient within the epoch."""
        daemon = self._daemon
        manifest = daemon.signed.manifest
        throughput = sum(plan.weights.values()) + daemon.throughput()
        epoch_seconds = 1000 * manifest.training.target_batch_size / throughput
        averaging = manifest.averaging
        work = Work(
            daemon.replica.num_parameters, manifest.training.target_batch_size, averaging.overlap, averaging.compression
        )
        gradient = work.size(work.codecs[-1])
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
        if len(members(plan)) > 1 and self._is_to_be_measured(plan):
            daemon.in_background(self._be_measured(plan))
        self.announce()

    def _is_to_be_measured(self, plan: Plan) -> bool:
        """The first of a run had nobody to measure it. Whoever averages nothing for others for the sake of its link
        sends and gets so little that nobody would see the link become faster: it asks again, less and less often."""
        now, me = time.monotonic(), self._daemon.me
        if not self._is_measured:
            self._is_measured = True
            return True
        if any(m.share for m in plan.step if m.peer == me):
            self._measure_after = MEASURE_AGAIN_SECONDS
        elif now - self._measured_at > self._measure_after:
            self._measure_after = min(2 * self._measure_after, MEASURE_AT_LEAST_SECONDS)
            return True
        return False

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
        plan, reason = self._daemon.council.plan, self._daemon.council.reason
        shares = events.shares_of(plan, self._daemon.roster.name_of)
        self._daemon.listener(events.PlanAdopted(plan.term, shares, reason))

    async def follow(self) -> None:
        """Come into step with the next epoch that the others commit, or wait for a plan that includes this peer."""
        daemon = self._daemon
        replica = daemon.replica
        daemon.own.state = "catching-up"
        self._keeps_step = self._keeps_step or (self._is_wanted_in_step() and self._may_try_step())
        waits = "it is in step and waits" if self._keeps_step else "its link is slow; it waits"
        daemon.status.activity("following", f"{waits} for the next term, whose plan will include it")
        alone_since = time.monotonic()
        before = replica.epoch
        known = replica.epoch if self._keeps_step else daemon.own.epoch
        daemon.council.begin(known, daemon.ballot, replica.absent)
        while not daemon.is_stopping:
            others = sorted({*members(daemon.council.plan), *daemon.roster.progress} - {daemon.me})
            asking = asyncio.create_task(daemon.catchup.standings(others, after=known))
            if not await daemon.unless_stopped(asking):
                return
            standings = asking.result()
            reached = await self._stay_with(standings)
            if reached is not None:
                self._adopt(reached)
                daemon.own.epoch = reached.epoch
                if replica.epoch > before:
                    before = replica.epoch
                    await daemon.epochs.after_commit()
                daemon.epochs.hand_in_by(reached.deadline)
                if self.is_member():
                    self._num_tries = 0
                if reached.epoch > known or self.is_member():
                    return
            if self.is_slow():
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
    return [member.peer for member in plan.step]
