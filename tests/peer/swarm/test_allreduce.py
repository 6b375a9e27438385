from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from peer.swarm.allreduce import AllReduce, AllReduceReport, Contribution
from peer.swarm.codec import PIECE_ELEMENTS, Compression
from peer.swarm.errors import RoundFailed
from peer.swarm.node import Node
from peer.swarm.parts import divide
from peer.swarm.stream import Stream
from protocol.errors import LocalProtocolError

pytestmark = pytest.mark.swarm

PATIENCE = 8.0  # nobody fails here


@pytest.fixture(scope="module")
def averagers(company: Any) -> list[AllReduce]:
    found = [AllReduce(node, patience_seconds=PATIENCE) for node in company.nodes]
    for averager in found:
        company.runner.run(averager.start())
    return found


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """Keys of rounds must differ between tests."""
    return str(request.node.name)


def random_sums(count: int, size: int, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [(generator.standard_normal(size) * 10.0 ** (number % 3)).astype(np.float32) for number in range(count)]


def exact_mean(sums: list[np.ndarray], samples: list[int]) -> np.ndarray:
    total = np.zeros(len(sums[0]))
    for values, count in zip(sums, samples, strict=True):
        total += values.astype(np.float64) if count else 0
    return total / sum(samples)


def assert_equal_bits(reports: list[AllReduceReport]) -> np.ndarray:
    first = reports[0].mean
    for report in reports[1:]:
        assert report.mean.tobytes() == first.tobytes()
    return first


@pytest.mark.parametrize(
    ("samples", "shares", "size"),
    [
        ([7], [1], 100),
        ([7, 100], [1, 1], 3 * PIECE_ELEMENTS + 11),
        ([1, 1000], [0, 5], PIECE_ELEMENTS + 1),
        ([3, 0, 400], [2, 1, 3], 5 * PIECE_ELEMENTS),
        ([5, 1, 0, 90], [100, 60, 10, 0], 2 * PIECE_ELEMENTS + 3),
        ([2, 3, 4], [1, 1, 1], 2),  # fewer elements than members
    ],
)
def test_all_get_the_exact_weighted_mean_with_the_same_bits(
    company: Any, averagers: list[AllReduce], key: str, samples: list[int], shares: list[int], size: int
) -> None:
    async def scenario() -> None:
        nodes, reducers = company.nodes[: len(samples)], averagers[: len(samples)]
        members = [
            Contribution(node.peer_id, count, share) for node, count, share in zip(nodes, samples, shares, strict=True)
        ]
        sums = random_sums(len(nodes), size)
        for number, values in enumerate(sums):
            if not samples[number]:
                values[:] = 1e30  # must not matter
        for number, compression in enumerate[Compression](("none", "float16", "uniform8", "uniform4", "none")):
            reports = await asyncio.gather(
                *(r.run(f"{key}/{number}", members, s, compression) for r, s in zip(reducers, sums, strict=True))
            )
            mean, exact = assert_equal_bits(list(reports)), exact_mean(sums, samples)
            tolerance = {"none": 1e-6, "float16": 2.0**-10, "uniform8": 2.0**-6, "uniform4": 0.25}[compression]
            assert np.abs(mean - exact).max() <= tolerance * np.abs(exact).max()

    company.runner.run(scenario())


def test_compression_saves_traffic_and_reports_count_it(company: Any, averagers: list[AllReduce], key: str) -> None:
    async def scenario() -> None:
        nodes, reducers = company.nodes[:2], averagers[:2]
        members = [Contribution(node.peer_id, 4, 1) for node in nodes]
        sums = random_sums(2, 8 * PIECE_ELEMENTS)
        for compression, width in (
            ("none", 4),
            ("float16", 2),
            ("uniform8", 1 + 2 / 256),
            ("uniform4", 1 / 2 + 2 / 64),
        ):
            reports = await asyncio.gather(
                *(r.run(f"{key}/{compression}", members, s, compression) for r, s in zip(reducers, sums, strict=True))
            )
            for report in reports:  # half of the vector out, and half of it for the other
                assert report.bytes_sent == pytest.approx(8 * PIECE_ELEMENTS * width, rel=0.01)
                assert report.bytes_received == pytest.approx(8 * PIECE_ELEMENTS * width, rel=0.01)
                assert 0 < report.seconds < PATIENCE

    company.runner.run(scenario())


CHANGING_SHARES = [(0, 5, 1), (1, 1, 1), (3, 0, 2), (1, 7, 0)]


@pytest.mark.parametrize("compression", ["float16", "uniform8", "uniform4"])
def test_what_encoding_loses_is_in_the_residuals(
    company: Any, averagers: list[AllReduce], key: str, compression: Compression
) -> None:
    """All that members put in comes out, or is still owed; whoever has no samples owes what it owed."""

    async def scenario() -> None:
        nodes, reducers = company.nodes[:3], averagers[:3]
        residuals: list[np.ndarray | None] = [None] * 3
        size = 2 * PIECE_ELEMENTS + 300
        for number, shares in enumerate(CHANGING_SHARES):
            samples = [4, 3, 0 if number == 2 else 2]
            members = [
                Contribution(n.peer_id, count, share) for n, count, share in zip(nodes, samples, shares, strict=True)
            ]
            sums = random_sums(3, size, seed=number)
            before = [None if residual is None else residual.copy() for residual in residuals]
            reports = await asyncio.gather(
                *(
                    r.run(f"{key}/{number}", members, s, compression, owed)
                    for r, s, owed in zip(reducers, sums, residuals, strict=True)
                )
            )
            mean = assert_equal_bits(list(reports)).astype(np.float64)
            put_in = sum(s.astype(np.float64) for s, count in zip(sums, samples, strict=True) if count)
            put_in += sum(owed.astype(np.float64) for owed in before if owed is not None)
            for owed, kept in zip(residuals, before, strict=True):
                assert owed is None or owed.tobytes() == kept.tobytes()
            residuals = [report.residual for report in reports]
            still_owed = sum(owed.astype(np.float64) for owed in residuals if owed is not None)
            assert np.abs(put_in - still_owed - mean * sum(samples)).max() <= 1e-6 * np.abs(put_in).max()
            if number == 2:  # less a part of its own, of whose mean it owes the rounding
                part = divide(size, members)[0]
                assert residuals[2][: part.stop].tobytes() == before[2][: part.stop].tobytes()

    company.runner.run(scenario())


@pytest.mark.parametrize("compression", ["uniform8", "uniform4"])
def test_rounding_does_not_accumulate(
    company: Any, averagers: list[AllReduce], key: str, compression: Compression
) -> None:
    """The same sums again and again would err the same way each time."""

    async def scenario() -> None:
        nodes, reducers = company.nodes[:3], averagers[:3]
        sums = random_sums(3, PIECE_ELEMENTS)
        exact = exact_mean(sums, [4, 3, 2])
        rounds = 8

        async def total_error(with_residual: bool) -> float:
            residuals: list[np.ndarray | None] = [None] * 3
            total = np.zeros(PIECE_ELEMENTS)
            for number in range(rounds):
                shares = CHANGING_SHARES[number % len(CHANGING_SHARES)]
                members = [
                    Contribution(n.peer_id, count, share)
                    for n, count, share in zip(nodes, (4, 3, 2), shares, strict=True)
                ]
                reports = await asyncio.gather(
                    *(
                        r.run(f"{key}/{with_residual}/{number}", members, s, compression, owed)
                        for r, s, owed in zip(reducers, sums, residuals, strict=True)
                    )
                )
                total += reports[0].mean
                if with_residual:
                    residuals = [report.residual for report in reports]
            return float(np.sqrt(np.mean((total - rounds * exact) ** 2)))

        assert await total_error(True) < 0.35 * await total_error(False)

    company.runner.run(scenario())


def test_a_residual_enters_a_round_without_loss(company: Any, averagers: list[AllReduce], key: str) -> None:
    async def scenario() -> None:
        nodes, reducers = company.nodes[:2], averagers[:2]
        members = [Contribution(nodes[0].peer_id, 2, 1), Contribution(nodes[1].peer_id, 0, 1)]
        sums, owed = np.full(10, 4, np.float32), np.full(10, 2, np.float32)
        reports = await asyncio.gather(*(r.run(key, members, sums, "none", owed) for r in reducers))
        assert assert_equal_bits(list(reports)).tolist() == [3.0] * 10
        assert reports[0].residual is None
        assert reports[1].residual is not None and reports[1].residual.tolist() == [2.0] * 10

    company.runner.run(scenario())


def test_the_result_does_not_depend_on_who_comes_first(company: Any, averagers: list[AllReduce], key: str) -> None:
    async def scenario() -> None:
        nodes, reducers = company.nodes[:3], averagers[:3]
        members = [Contribution(node.peer_id, 3 + n, 1 + n) for n, node in enumerate(nodes)]
        sums = random_sums(3, PIECE_ELEMENTS)
        found = set()
        for late in range(3):
            tasks = {}
            for number in sorted(range(3), key=lambda n: n == late):  # the others' streams are held meanwhile
                if number == late:
                    await asyncio.sleep(0.3)
                tasks[number] = asyncio.create_task(
                    reducers[number].run(f"{key}/{late}", members, sums[number], "none")
                )
            found.add(assert_equal_bits([await task for task in tasks.values()]).tobytes())
        assert len(found) == 1

    company.runner.run(scenario())


def test_rounds_at_the_same_time_do_not_mix(company: Any, averagers: list[AllReduce], key: str) -> None:
    async def scenario() -> None:
        nodes, reducers = company.nodes[:3], averagers[:3]
        rounds = {}
        for number in range(4):
            members = [Contribution(node.peer_id, 1 + number, 1) for node in nodes]
            sums = random_sums(3, PIECE_ELEMENTS + number, seed=number)
            rounds[number] = (sums, members)
        reports = await asyncio.gather(
            *(
                reducers[n].run(f"{key}/{number}", members, sums[n], "none")
                for n in range(3)
                for number, (sums, members) in rounds.items()
            )
        )
        for number, (sums, members) in rounds.items():
            mean = assert_equal_bits([reports[4 * n + number] for n in range(3)])
            exact = exact_mean(sums, [member.samples for member in members])
            assert np.allclose(mean, exact, rtol=1e-6, atol=1e-6)

    company.runner.run(scenario())


def test_two_groups_side_by_side(company: Any, averagers: list[AllReduce], key: str) -> None:
    async def scenario() -> None:
        nodes, reducers = company.nodes[:4], averagers[:4]
        sums = random_sums(4, 1000)
        groups = [(0, 2), (1, 3)]
        for first, second in groups:
            members = [Contribution(nodes[n].peer_id, n + 1, 1) for n in (first, second)]
            reports = await asyncio.gather(
                *(reducers[n].run(f"{key}/{first}", members, sums[n], "none") for n in (first, second))
            )
            mean = assert_equal_bits(list(reports))
            exact = exact_mean([sums[first], sums[second]], [first + 1, second + 1])
            assert np.allclose(mean, exact, rtol=1e-6, atol=1e-7)

    company.runner.run(scenario())


def test_nothing_of_a_round_is_left(company: Any, averagers: list[AllReduce], key: str, tools: Any) -> None:
    async def scenario() -> None:
        nodes, reducers = company.nodes[:3], averagers[:3]
        members = [Contribution(node.peer_id, 1, 1) for node in nodes]
        sums = random_sums(3, 1000)
        await asyncio.gather(*(r.run(key, members, s, "none") for r, s in zip(reducers, sums, strict=True)))
        await tools.eventually(lambda: not any(node._inbound for node in nodes), 3)
        assert not any(reducer._running or reducer._held for reducer in reducers)

    company.runner.run(scenario())


def test_arguments_that_can_be_no_round(company: Any, averagers: list[AllReduce], tools: Any) -> None:
    async def scenario() -> None:
        node, reducer = company.nodes[0], averagers[0]
        me, other = node.peer_id, tools.make_key(9).peer_id
        sums = np.ones(10, np.float32)
        fine = [Contribution(me, 1, 1)]
        assert (await reducer.run("used", fine, sums, "none")).mean.tolist() == [1.0] * 10
        bad: list[tuple[str, list[Contribution], Any, Any]] = [
            ("used", fine, sums, "none"),
            ("", fine, sums, "none"),
            ("k" * 201, fine, sums, "none"),
            ("a", [], sums, "none"),
            ("a", [Contribution(other, 1, 1)], sums, "none"),
            ("a", [*fine, *fine], sums, "none"),
            ("a", [Contribution(me, 0, 1)], sums, "none"),
            ("a", [Contribution(me, 1, 0)], sums, "none"),
            ("a", [Contribution(me, -1, 1)], sums, "none"),
            ("a", fine, sums.astype(np.float64), "none"),
            ("a", fine, sums.reshape(2, 5), "none"),
            ("a", fine, sums[:0], "none"),
            ("a", fine, sums, "zip"),
        ]
        for key, members, values, compression in bad:
            with pytest.raises(LocalProtocolError, match="no such round can be"):
                await reducer.run(key, members, values, compression)
        for residual in (sums[:9], sums.astype(np.float64)):
            with pytest.raises(LocalProtocolError, match="no such round can be"):
                await reducer.run("a", fine, sums, "uniform8", residual)

    company.runner.run(scenario())


def test_leaving_a_round_ends_it_for_the_others(company: Any, averagers: list[AllReduce], key: str) -> None:
    async def scenario() -> None:
        nodes, reducers = company.nodes[:3], averagers[:3]
        members = [Contribution(node.peer_id, 1, 1) for node in nodes]
        sums = random_sums(3, 20 * PIECE_ELEMENTS)
        # The third never begins, so that the others are in the middle of it when one of them leaves.
        tasks = [asyncio.create_task(reducers[n].run(key, members, sums[n], "none")) for n in (0, 1)]
        await asyncio.sleep(0.3)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        with pytest.raises(RoundFailed) as caught:
            await asyncio.wait_for(tasks[1], 3)
        assert caught.value.blamed == (nodes[0].peer_id,)

    company.runner.run(scenario())


@pytest.mark.slow  # measures speed, which a busy machine spoils
@pytest.mark.netns
def test_a_slow_link_carries_both_ways_at_once(swarm: Any) -> None:
    """A member that reduces nothing needs little longer than it would to send its sums and receive nothing."""

    async def scenario() -> None:
        size = 1_075_000  # 4.3 MB as float32
        async with swarm.linked(100, 100, 20, 5) as (nodes, _):
            reducers = [AllReduce(node, patience_seconds=PATIENCE) for node in nodes]
            for reducer in reducers:
                await reducer.start()
            members = [
                Contribution(node.peer_id, 5, share) for node, share in zip(nodes, (100, 100, 20, 0), strict=True)
            ]
            sums = random_sums(4, size)
            rounds, one_way = [], []
            for number in range(3):
                begin = time.monotonic()
                reports = await asyncio.gather(
                    *(r.run(f"round {number}", members, s, "uniform8") for r, s in zip(reducers, sums, strict=True))
                )
                rounds.append(time.monotonic() - begin)
                assert_equal_bits(list(reports))
                one_way.append(await time_to_send(nodes[3], nodes[0], reports[3].bytes_sent, f"sink {number}"))
            assert min(rounds) < 1.35 * min(one_way), (rounds, one_way)

    asyncio.run(scenario())


async def time_to_send(sender: Node, receiver: Node, num_bytes: int, name: str) -> float:
    """Seconds until so many bytes have arrived, in one stream with nothing coming back."""

    async def take(_: str, stream: Stream) -> None:
        await stream.receive(num_bytes)
        await stream.send({})

    await receiver.serve(name, take)
    stream = await sender.open(receiver.peer_id, name)
    begin = time.monotonic()
    await stream.send({}, bytes(num_bytes))
    await stream.receive()
    stream.close()
    return time.monotonic() - begin
