from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from peer.swarm import probe
from peer.swarm.errors import PeerGone, PeerMisbehaves, PeerUnreachable
from peer.swarm.node import Node
from peer.swarm.probe import MIN_PIECE_BYTES, PROBE_BYTES, Prober, ProbeResult
from peer.swarm.stream import Header, Stream

pytestmark = pytest.mark.swarm

MBIT = 125_000.0


class Observer:
    """A node that measures others, and what it has seen."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.seen: list[tuple[str, float, float]] = []
        self.prober = Prober(node, lambda peer, up, down: self.seen.append((peer, up, down)))

    @classmethod
    async def start(cls, node: Node) -> Observer:
        observer = cls(node)
        await observer.prober.serve()
        return observer


@pytest.fixture(scope="module")
def shared_observer(company: Any) -> Observer:
    return company.runner.run(Observer.start(company.nodes[0]))


@pytest.fixture
def observer(shared_observer: Observer) -> Observer:
    """It has seen nobody yet."""
    shared_observer.seen.clear()
    shared_observer.prober._sessions.clear()
    return shared_observer


def callers(company: Any) -> list[Prober]:
    return [Observer(node).prober for node in company.nodes[1:]]


async def begin(node: Node, peer: str, what: str) -> tuple[Stream, Header]:
    stream = await node.open(peer, "probe")
    await stream.send({"measure": what})
    answer, _ = await stream.receive()
    return stream, answer


def test_both_sides_learn_the_same(company: Any, observer: Observer, tools: Any) -> None:
    async def scenario() -> None:
        caller = company.nodes[1]
        result = await Prober(caller, observer.prober._observed).probe(observer.node.peer_id)
        ((peer, up, down),) = observer.seen
        assert peer == caller.peer_id
        assert result == ProbeResult(pytest.approx(up, abs=1), pytest.approx(down, abs=1))
        assert 10 * MBIT < up <= 1.25e9 and 10 * MBIT < down <= 1.25e9
        await tools.eventually(lambda: not observer.node._inbound)

    company.runner.run(scenario())


def test_the_same_peer_is_not_measured_again_soon(
    company: Any, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        first, second, _ = callers(company)
        await first.probe(observer.node.peer_id)
        with pytest.raises(PeerUnreachable, match="has measured this peer less than 25 s ago"):
            await first.probe(observer.node.peer_id)
        await second.probe(observer.node.peer_id)
        monkeypatch.setattr(probe, "AGAIN_SECONDS", 0.0)
        await first.probe(observer.node.peer_id)
        assert len(observer.seen) == 3

    company.runner.run(scenario())


def test_few_are_measured_at_once(company: Any, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        opened = [await begin(node, observer.node.peer_id, "up") for node in company.nodes[1:3]]
        assert [answer for _, answer in opened] == [{"go": True}] * 2
        third = callers(company)[2]
        with pytest.raises(PeerUnreachable, match="it is measuring others just now"):
            await third.probe(observer.node.peer_id)
        monkeypatch.setattr(probe, "GIVEN_UP_SECONDS", 0.0)  # those two never go on
        await third.probe(observer.node.peer_id)
        for stream, _ in opened:
            stream.close()

    company.runner.run(scenario())


def test_many_identities_gain_little(company: Any, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(probe, "PER_MINUTE", 2)
        first, second, third = callers(company)
        await first.probe(observer.node.peer_id)
        await second.probe(observer.node.peer_id)
        with pytest.raises(PeerUnreachable):
            await third.probe(observer.node.peer_id)

    company.runner.run(scenario())


@pytest.mark.parametrize("what", ["down", "result", "sideways", None, {"a": 1}])
def test_only_what_is_next_is_answered(company: Any, observer: Observer, what: Any) -> None:
    async def scenario() -> None:
        stream, answer = await begin(company.nodes[1], observer.node.peer_id, what)
        assert answer == {"refused": "there is nothing to measure"}
        stream.close()

    company.runner.run(scenario())


async def be_measured_up(node: Node, peer: str) -> None:
    stream, answer = await begin(node, peer, "up")
    assert answer == {"go": True}
    for _ in range(PROBE_BYTES // MIN_PIECE_BYTES):
        await stream.send({}, bytes(MIN_PIECE_BYTES))
        await stream.receive()
    stream.close()


def test_whoever_answers_without_having_the_pieces_is_not_believed(
    company: Any, observer: Observer, tools: Any
) -> None:
    async def scenario() -> None:
        node, peer = company.nodes[1], observer.node.peer_id
        await be_measured_up(node, peer)
        stream, answer = await begin(node, peer, "down")
        assert answer == {"go": True}
        for _ in range(3):
            await stream.send({"have": "00" * 8})
        await tools.eventually(lambda: not observer.node._inbound)
        stream.close()
        assert not observer.seen

    company.runner.run(scenario())


def test_whoever_sends_too_much_or_something_else_is_cut_off(
    company: Any, observer: Observer, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(probe, "AGAIN_SECONDS", 0.0)
        for piece in (bytes(MIN_PIECE_BYTES), b"", bytes(10_000_000)):
            stream, answer = await begin(company.nodes[1], observer.node.peer_id, "up")
            assert answer == {"go": True}
            with pytest.raises(PeerGone):
                for _ in range(40 * PROBE_BYTES // max(len(piece), 1000)):
                    await stream.send({}, piece)
            stream.close()
            await tools.eventually(lambda: not observer.node._inbound)

    company.runner.run(scenario())


def test_an_observer_that_tells_nonsense(company: Any) -> None:
    async def scenario() -> None:
        caller, observer = company.nodes[1], company.nodes[3]
        answers: list[Header] = []

        async def answer(_: str, stream: Stream) -> None:
            header, _body = await stream.receive()
            if header["measure"] == "result":
                await stream.send(answers[0])
                await stream.finish()
                return
            await stream.send({"go": True})
            if header["measure"] == "down":
                await stream.send({}, bytes(MIN_PIECE_BYTES))
            await stream.receive(MIN_PIECE_BYTES)
            stream.close()

        await observer.serve("probe", answer)
        bad: list[Header] = [{}, {"up": 1}, {"up": -1, "down": 5}, {"up": "1", "down": 5}, {"up": 10**12, "down": 5}]
        for said in bad:
            answers[:] = [said]
            with pytest.raises(PeerMisbehaves):
                await Prober(caller, lambda *_: None).probe(observer.peer_id)

    company.runner.run(scenario())


@pytest.mark.slow  # measures speed, which a busy machine spoils
@pytest.mark.netns
def test_links_are_measured_within_a_fifth(swarm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers are measured one after another, three times each, since the computer may be busy with other things."""

    async def scenario() -> None:
        monkeypatch.setattr(probe, "AGAIN_SECONDS", 0.0)
        links = (100, 20, 5, 1)
        async with swarm.linked(0, *links) as (nodes, _):
            observer = await Observer.start(nodes[0])
            for node, mbits in zip(nodes[1:], links, strict=True):
                results, seconds = [], []
                for _ in range(3):
                    started = time.monotonic()
                    results.append(await Prober(node, lambda *_: None).probe(observer.node.peer_id))
                    seconds.append(time.monotonic() - started)
                for found in (sorted(r.up for r in results)[1], sorted(r.down for r in results)[1]):
                    assert found == pytest.approx(mbits * MBIT, rel=0.2), results
                assert min(seconds) < 3.0

    asyncio.run(scenario())
