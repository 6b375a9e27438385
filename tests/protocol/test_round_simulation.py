"""Whole rounds on a simulated network: virtual time, delays, losses, crashes, freezes, averages that fail.

The network is the judge of the machine: it checks what must hold whatever happens, not how it comes about.
"""

from __future__ import annotations

import heapq
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.lineage import Counted, Lineage
from protocol.round import RoundMachine
from protocol.round_messages import (
    AverageFailed,
    AverageFinished,
    CancelAverage,
    CatchUp,
    Commit,
    Event,
    FetchFailed,
    FetchFinished,
    FetchResult,
    GatheringFinished,
    MessageReceived,
    PeerUnreachable,
    PlanDiffers,
    RoundMessage,
    Send,
    StartAverage,
    Tick,
)
from protocol.signing import SigningKey

examples = settings(max_examples=int(os.environ.get("ROUND_EXAMPLES", "200")), deadline=None)
"""set ROUND_EXAMPLES to search longer"""

RUN = "ab" * 32
GRACE = 4.0
AVERAGING = 6.0  # limit of an average, enforced by the machine
PACE = 2.0  # after which the votes of the others are due
PATIENCE = 3.0  # after which an average itself gives up waiting
CALL_TIMEOUT = GRACE / 2
GATHERING_DEADLINE = 10.0
PEERS = sorted(SigningKey(bytes([n]) * 32).peer_id for n in range(6))

Result = tuple[int, tuple[Counted, ...]]


@dataclass(frozen=True)
class Faults:
    """What goes wrong. Times in seconds; peers by index."""

    seed: int = 0
    delay: float = 0.2
    """largest delay of a message one way"""
    loss: float = 0.0
    """probability that a message or an answer is lost"""
    average_failure: float = 0.0
    """probability that an average fails at one member"""
    crashes: dict[int, float] = field(default_factory=dict)
    crash_after_sends: dict[int, int] = field(default_factory=dict)
    """the process dies right after so many messages, perhaps within one batch"""
    dies_at_commit: frozenset[int] = frozenset()
    """the process dies between its commit and the first message about it"""
    freezes: dict[int, tuple[float, float]] = field(default_factory=dict)
    """start and length: nothing is handled, then all that has come meanwhile"""
    cuts: tuple[tuple[int, int, float, float], ...] = ()
    """two peers, start, length: nothing passes between them"""
    gathering: dict[int, float] = field(default_factory=dict)
    """when a peer has gathered its samples; else at some time before the deadline"""
    samples: dict[int, int] = field(default_factory=dict)
    restarts: dict[int, tuple[float, float]] = field(default_factory=dict)
    """start and length of the absence of a process that comes back without memory of the round"""
    lineages: dict[int, Lineage] = field(default_factory=dict)
    """of peers that come from another history"""


@dataclass
class Node:
    peer: str
    machine: RoundMachine
    alive: bool = True
    frozen_until: float = 0.0
    sends_left: int | None = None
    calls: dict[str, RoundMessage | None] = field(default_factory=dict)
    """peer -> the message that waits while a call to it is in flight"""
    results: set[Result] = field(default_factory=set)
    averages: list[Result] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    said_ready: set[int] = field(default_factory=set)
    outcome: Commit | CatchUp | None = None
    ended_at: float = 0.0
    tick: int = 0
    has_restarted: bool = False


class Network:
    def __init__(self, size: int, faults: Faults) -> None:
        self.faults, self.random, self.now = faults, random.Random(faults.seed), 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.joined: dict[Result, dict[str, float]] = {}
        self.members = PEERS[:size]
        self.nodes = {peer: Node(peer, self._machine(index)) for index, peer in enumerate(self.members)}
        for index, time in faults.crashes.items():
            self.at(time, partial(self._crash, self._of(index)))
        for index, (start, length) in faults.freezes.items():
            self.at(start, partial(self._freeze, self._of(index), start + length))
        for index, (start, length) in faults.restarts.items():
            self.at(start, partial(self._crash, self._of(index)))
            self.at(start + length, partial(self._restart, index))
        for index, node in enumerate(self.nodes.values()):
            node.sends_left = faults.crash_after_sends.get(index)
            self._gather(node, faults.gathering.get(index, self.random.uniform(0.0, GATHERING_DEADLINE)))

    def _machine(self, index: int) -> RoundMachine:
        return RoundMachine(
            run=RUN,
            epoch=7,
            me=self.members[index],
            members=self.members,
            term=1,
            plan_digest="cd" * 32,
            lineage=self.faults.lineages.get(index, Lineage.genesis(RUN)),
            grace_seconds=GRACE,
            averaging_seconds=AVERAGING,
            pace_seconds=PACE,
            gathering_deadline=self.now + GATHERING_DEADLINE,
            started=round(1000 * self.now) + index,
        )

    def _gather(self, node: Node, seconds: float) -> None:
        index = PEERS.index(node.peer)
        samples = self.faults.samples.get(index, 10 + index)
        self.at(self.now + seconds, lambda: self.deliver(node, GatheringFinished(samples)))

    def _restart(self, index: int) -> None:
        if self._of(index).outcome is None:
            self.nodes[PEERS[index]] = Node(PEERS[index], self._machine(index), has_restarted=True)
            self._gather(self._of(index), self.random.uniform(0.0, GATHERING_DEADLINE))

    def _of(self, index: int) -> Node:
        return self.nodes[PEERS[index]]

    def at(self, time: float, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (max(time, self.now), self.count, action))

    def run(self, until: float = 1000.0) -> None:
        while self.queue and self.queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self.queue)
            action()
            assert self.count < 200_000, "the peers flood each other"

    # Faults

    def _crash(self, node: Node) -> None:
        node.alive = False

    def _freeze(self, node: Node, end: float) -> None:
        node.frozen_until = end

    def _passes(self, a: str, b: str) -> bool:
        pair = {PEERS.index(a), PEERS.index(b)}
        return not any(
            {x, y} == pair and start <= self.now < start + length for x, y, start, length in self.faults.cuts
        )

    def _delay(self) -> float:
        return self.random.uniform(0.0, self.faults.delay)

    # A node

    def deliver(self, node: Node, event: Event) -> None:
        if not node.alive:
            return
        if self.now < node.frozen_until:
            self.at(node.frozen_until, lambda: self.deliver(node, event))
            return
        for effect in node.machine.handle(event, self.now):
            if node.alive:
                self._do(node, effect)
        node.tick += 1
        deadline = node.machine.deadline()
        if node.alive and deadline is not None:
            assert deadline > self.now - 1e-6 or not isinstance(event, Tick), "a deadline that is over already"
            self.at(deadline, partial(self._tick, node, node.tick))

    def _tick(self, node: Node, tick: int) -> None:
        if tick == node.tick:
            self.deliver(node, Tick())

    def _do(self, node: Node, effect: Any) -> None:
        assert node.outcome is None or isinstance(effect, Send), "something was done after the end"
        match effect:
            case Send(peer, message):
                self._send(node, peer, message)
            case StartAverage(attempt, members):
                assert all(attempt > earlier for earlier, _ in node.averages), "attempts must grow"
                node.results.clear()
                node.averages.append((attempt, members))
                self._join(node, (attempt, members))
            case CancelAverage(attempt):
                node.cancelled.add(attempt)
            case FetchResult(peer, attempt, members):
                self._fetch(node, self.nodes[peer], (attempt, members))
            case Commit(attempt, members):
                assert (attempt, members) in node.results, "committed without the average"
                node.outcome, node.ended_at = effect, self.now
                node.alive = PEERS.index(node.peer) not in self.faults.dies_at_commit
            case CatchUp():
                node.outcome, node.ended_at = effect, self.now
            case PlanDiffers():
                raise AssertionError("there is one plan only")

    def _send(self, node: Node, peer: str, message: RoundMessage) -> None:
        if node.sends_left is not None:
            if node.sends_left == 0:
                node.alive = False
                return
            node.sends_left -= 1
        if message.stage == "ready":
            node.said_ready.add(message.samples)
        if peer in node.calls:
            node.calls[peer] = message
            return
        node.calls[peer] = None
        call = object()
        open_calls = {call}

        def finish(event: Event) -> None:
            if call in open_calls:
                open_calls.clear()
                waiting = node.calls.pop(peer)
                self.deliver(node, event)
                if waiting is not None and node.alive and peer not in node.calls:
                    self._send(node, peer, waiting)

        self.at(self.now + CALL_TIMEOUT, lambda: finish(PeerUnreachable(peer)))
        if self._lost(node.peer, peer):
            return
        data = message.to_bytes()

        def arrive() -> None:
            other = self.nodes[peer]
            if not other.alive:
                self.at(self.now + self._delay(), lambda: finish(PeerUnreachable(peer)))
            elif self.now < other.frozen_until:
                self.at(other.frozen_until, arrive)
            else:
                self.deliver(other, MessageReceived(node.peer, RoundMessage.from_bytes(data)))
                answer = other.machine.message
                if other.alive and not self._lost(peer, node.peer):
                    self.at(self.now + self._delay(), lambda: finish(MessageReceived(peer, answer)))

        self.at(self.now + self._delay(), arrive)

    def _lost(self, a: str, b: str) -> bool:
        return not self._passes(a, b) or self.random.random() < self.faults.loss

    # Averages

    def _join(self, node: Node, result: Result) -> None:
        """All members must come within patience; then data is exchanged until each has all, or breaks off."""
        joined = self.joined.setdefault(result, {})
        joined[node.peer] = self.now
        members = [self.nodes[peer] for peer, _ in result[1]]
        if len(joined) < len(members):
            self.at(self.now + PATIENCE, lambda: self._give_up(node, result))
            return
        exchanged = self.now + self.random.uniform(0.1, 1.0)
        sent = {member.peer: exchanged + self.random.uniform(0.0, 1.0) for member in members}
        broken: dict[str, set[str]] = {member.peer: set() for member in members}

        def check(member: Node) -> None:
            """When it should have sent everything."""
            here = member.alive and self.now >= member.frozen_until and result[0] not in member.cancelled
            for other in members:
                if not here or not self._passes(member.peer, other.peer):
                    broken[other.peer].add(member.peer)
                    broken[member.peer].add(other.peer)

        def end(member: Node) -> None:
            blamed = tuple(sorted(broken[member.peer] - {member.peer}))
            if not blamed and self.random.random() < self.faults.average_failure:
                blamed = tuple(p for p, _ in result[1] if p != member.peer and self.random.random() < 0.3)
                self._averaged(member, result, AverageFailed(result[0], blamed))
            elif blamed or broken[member.peer]:
                self._averaged(member, result, AverageFailed(result[0], blamed))
            else:
                self._averaged(member, result, AverageFinished(result[0]))

        for member in members:
            self.at(sent[member.peer], partial(check, member))
        for member in members:
            # who has received all may end while others still wait
            own = max(sent.values()) + self.random.uniform(0.0, 1.0)
            self.at(own, partial(end, member))

    def _give_up(self, node: Node, result: Result) -> None:
        missing = tuple(peer for peer, _ in result[1] if peer not in self.joined[result])
        if missing:
            self._averaged(node, result, AverageFailed(result[0], missing))

    def _averaged(self, node: Node, result: Result, event: AverageFinished | AverageFailed) -> None:
        if self.now < node.frozen_until:
            self.at(node.frozen_until, lambda: self._averaged(node, result, event))
        elif node.alive and result[0] not in node.cancelled and node.averages[-1:] == [result]:
            if isinstance(event, AverageFinished):
                node.results.add(result)
            self.deliver(node, event)

    def _fetch(self, node: Node, source: Node, result: Result) -> None:
        def arrive() -> None:
            up = source.alive and self.now >= source.frozen_until and self._passes(node.peer, source.peer)
            if up and result in source.results:
                node.results.add(result)
                self.deliver(node, FetchFinished(result[0]))
            else:
                self.deliver(node, FetchFailed(result[0]))

        self.at(self.now + self.random.uniform(0.1, 1.0), arrive)


def committed(network: Network) -> dict[str, Result]:
    return {
        node.peer: (node.outcome.attempt, node.outcome.members)
        for node in network.nodes.values()
        if isinstance(node.outcome, Commit)
    }


def check_safety(network: Network) -> None:
    """What must hold in every case, crashed members included."""
    results = committed(network)
    for one, result in results.items():
        machine = network.nodes[one].machine
        for other, another in results.items():
            if network.nodes[one].has_restarted or network.nodes[other].has_restarted:
                continue  # it has forgotten what it had said: README, "Limits"
            if result != another:
                suspected = other in machine.suspects or one in network.nodes[other].machine.suspects
                assert suspected, f"{one} and {other} committed differently without suspecting each other"
            else:
                mine, theirs = network.nodes[one].outcome, network.nodes[other].outcome
                assert isinstance(mine, Commit) and isinstance(theirs, Commit)
                assert mine.lineage == theirs.lineage
        assert sum(samples for _, samples in result[1]) > 0, "an update by no samples"
        for peer, samples in result[1]:
            node = network.nodes[peer]
            own_samples = network.faults.samples.get(PEERS.index(peer), 10 + PEERS.index(peer))
            assert samples == own_samples
            assert samples in node.said_ready or peer == one or not node.alive or node.has_restarted


def check_ended(network: Network, within: float) -> None:
    for node in network.nodes.values():
        if node.alive:
            assert node.outcome is not None, (node.machine.phase, node.machine.story())
            assert node.ended_at <= within, (node.ended_at, node.machine.story())


sizes = st.integers(2, 6)
seeds = st.integers(0, 2**32)
times = st.floats(0.0, 30.0)


@examples
@given(sizes, seeds, st.dictionaries(st.integers(0, 5), st.floats(0.0, GATHERING_DEADLINE + GRACE - 1)))
def test_without_faults_one_attempt_merges_all(size: int, seed: int, gathering: dict[int, float]) -> None:
    network = Network(size, Faults(seed=seed, gathering=gathering))
    network.run()
    check_safety(network)
    everybody = tuple((peer, 10 + index) for index, peer in enumerate(PEERS[:size]))
    assert committed(network) == dict.fromkeys(PEERS[:size], (0, everybody))
    assert all(len(node.averages) == 1 for node in network.nodes.values())


@st.composite
def crashing(draw: st.DrawFn) -> tuple[int, Faults]:
    size = draw(sizes)
    indices = st.integers(0, size - 1)
    crashes = draw(st.dictionaries(indices, times, max_size=size - 1))
    sends = draw(st.dictionaries(indices, st.integers(0, 40), max_size=size - 1 - len(crashes)))
    gathering = draw(st.dictionaries(indices, st.floats(0.0, GATHERING_DEADLINE + GRACE - 1)))
    faults = Faults(draw(seeds), crashes=crashes, crash_after_sends=sends, gathering=gathering)
    return size, faults


@examples
@given(crashing())
def test_survivors_of_crashes_commit_the_same(case: tuple[int, Faults]) -> None:
    size, faults = case
    network = Network(size, faults)
    network.run()
    check_safety(network)
    survivors = {node.peer for node in network.nodes.values() if node.alive}
    results = {peer: result for peer, result in committed(network).items() if peer in survivors}
    assert set(results) == survivors, [n.machine.story() for n in network.nodes.values()]
    assert len(set(results.values())) == 1, [n.machine.story() for n in network.nodes.values()]
    _, members = next(iter(results.values()))
    assert survivors <= {peer for peer, _ in members}, "a survivor's samples were lost"
    # nobody waits longer than until the deadline, for grace, for each of two averages, and their votes
    check_ended(network, GATHERING_DEADLINE + 2 * GRACE + 2 * (AVERAGING + GRACE) * max(1, len(faults.crashes)))


@st.composite
def one_fault(draw: st.DrawFn) -> tuple[int, Faults]:
    """Of one peer, or of one connection where others can tell of it."""
    size = draw(sizes)
    index = draw(st.integers(0, size - 1))
    other = draw(st.integers(0, size - 1).filter(lambda one: one != index))
    start, length = draw(st.floats(0.0, 16.0)), draw(st.floats(0.1, 60.0))
    faults: list[dict[str, Any]] = [
        {"crashes": {index: start}},
        {"crash_after_sends": {index: draw(st.integers(0, 40))}},
        {"dies_at_commit": frozenset({index})},
        {"freezes": {index: (start, length)}},
    ]
    if size > 2:
        faults.append({"cuts": ((index, other, start, length),)})
    average_failure = draw(st.sampled_from([0.0, 0.2, 0.6]))
    return size, Faults(draw(seeds), average_failure=average_failure, **draw(st.sampled_from(faults)))


@examples
@given(one_fault())
def test_one_fault_makes_no_two_histories(case: tuple[int, Faults]) -> None:
    """Not even one that committed and then died or froze is contradicted by the others."""
    network = Network(*case)
    network.run()
    check_safety(network)
    check_ended(network, 120.0)
    assert len(set(committed(network).values())) <= 1
    if not case[1].average_failure:
        assert all(isinstance(node.outcome, Commit) for node in network.nodes.values() if node.alive)


@st.composite
def anything(draw: st.DrawFn) -> tuple[int, Faults]:
    size = draw(sizes)
    indices = st.integers(0, size - 1)
    cut = st.tuples(indices, indices, times, st.floats(0.0, 60.0))
    faults = Faults(
        seed=draw(seeds),
        delay=draw(st.sampled_from([0.05, 0.5, 2.0])),
        loss=draw(st.sampled_from([0.0, 0.1, 0.3])),
        average_failure=draw(st.sampled_from([0.0, 0.2, 0.7, 1.0])),
        crashes=draw(st.dictionaries(indices, times, max_size=2)),
        crash_after_sends=draw(st.dictionaries(indices, st.integers(0, 60), max_size=2)),
        dies_at_commit=draw(st.frozensets(indices, max_size=1)),
        freezes=draw(st.dictionaries(indices, st.tuples(times, st.floats(0.1, 60.0)))),
        cuts=tuple(draw(st.lists(cut, max_size=6))),
        gathering=draw(st.dictionaries(indices, st.floats(0.0, 40.0))),
        samples=draw(st.dictionaries(indices, st.integers(0, 3))),
        restarts=draw(st.dictionaries(indices, st.tuples(times, st.floats(0.1, 20.0)), max_size=2)),
    )
    return size, faults


@examples
@given(anything())
def test_whatever_happens(case: tuple[int, Faults]) -> None:
    network = Network(*case)
    network.run()
    check_safety(network)
    check_ended(network, 400.0)


def test_the_majority_goes_on_and_the_minority_of_another_history_leaves() -> None:
    other = Lineage("ee" * 32, 10**6)  # more samples do not outweigh more members
    network = Network(3, Faults(lineages={2: other}))
    network.run()
    first, second, third = network.nodes.values()
    assert committed(network)[first.peer] == committed(network)[second.peer]
    assert [peer for peer, _ in committed(network)[first.peer][1]] == [first.peer, second.peer]
    assert isinstance(third.outcome, CatchUp)
    assert third.outcome.donors == (first.peer, second.peer)


@examples
@given(seeds, st.permutations([10, 20, 30]))
def test_of_three_lone_histories_the_one_with_most_samples_goes_on(seed: int, samples: list[int]) -> None:
    lineages = {index: Lineage(f"{index:064x}", count) for index, count in enumerate(samples)}
    network = Network(3, Faults(seed=seed, lineages=lineages))
    network.run()
    winner = PEERS[samples.index(30)]
    assert set(committed(network)) == {winner}
    assert all(isinstance(n.outcome, CatchUp) for n in network.nodes.values() if n.peer != winner)


@pytest.mark.parametrize("length", [2.0, 10.0, 60.0])
def test_a_frozen_peer_comes_back_to_the_commit_of_the_others(length: float) -> None:
    for start in (0.5, 3.0, 9.0, 10.5, 11.0, 12.0):
        network = Network(3, Faults(freezes={1: (start, length)}))
        network.run()
        assert len(committed(network)) == 3
        assert len(set(committed(network).values())) == 1


@pytest.mark.parametrize("size", [2, 3, 6])
def test_a_killed_peer_delays_the_others_by_less_than_grace(size: int) -> None:
    undisturbed = Network(size, Faults())
    undisturbed.run()
    network = Network(size, Faults(crashes={0: 1.0}))
    network.run()
    survivors = [node for node in network.nodes.values() if node.alive]
    assert all(isinstance(node.outcome, Commit) for node in survivors)
    normal = max(node.ended_at for node in undisturbed.nodes.values())
    assert max(node.ended_at for node in survivors) < normal + GRACE
