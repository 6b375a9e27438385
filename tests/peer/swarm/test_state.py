from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from peer.swarm.errors import PeerGone, SpoolFailed, StateUnavailable
from peer.swarm.node import Node
from peer.swarm.snapshot import CHUNK_SIZE, Snapshot, root_of
from peer.swarm.state import MAX_TRANSFERS, OFFER_SECONDS, FetchedState, StateServer, fetch_state
from peer.swarm.stream import Stream
from protocol.units import Epoch

pytestmark = pytest.mark.swarm

SIZE = 12 * CHUNK_SIZE + 12345


def payload_of(seed: int, size: int = SIZE) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def snapshot_of(seed: int, size: int = SIZE, epoch: Epoch = 7, **header: Any) -> Snapshot:
    return Snapshot(epoch, {"lineage": "x", **header}, payload_of(seed, size))


class Donors:
    """What the donors among the company serve at present: replaced by each test."""

    def __init__(self) -> None:
        self.serves: dict[str, Snapshot | None] = {}
        self.asked: list[tuple[str, str, Epoch | None]] = []
        self.held: dict[str, asyncio.Event] = {}
        """who makes no offer before that"""

    def of(self, node: Node) -> Any:
        async def provide(kind: str, epoch: Epoch | None) -> Snapshot | None:
            self.asked.append((node.peer_id, kind, epoch))
            if node.peer_id in self.held:
                await self.held[node.peer_id].wait()
            return self.serves.get(node.peer_id)

        return provide


@pytest.fixture(scope="module")
def all_donors(company: Any) -> Donors:
    donors = Donors()
    for node in company.nodes[1:]:
        company.runner.run(StateServer(node, donors.of(node)).start())
    return donors


@pytest.fixture
def donors(all_donors: Donors) -> Iterator[Donors]:
    yield all_donors
    all_donors.serves.clear()
    all_donors.asked.clear()
    all_donors.held.clear()


class Fetcher:
    """Fetches with the first of the company, from the others."""

    def __init__(self, company: Any, spool: Path) -> None:
        self.company, self.spool = company, spool
        self.node: Node = company.nodes[0]
        self.others: list[Node] = company.nodes[1:]
        self.progress: list[tuple[int, int]] = []

    async def fetch(
        self,
        *donors: Node,
        epoch: Epoch | None = None,
        size: int = SIZE,
        kind: str = "state",
        header: dict[str, Any] | None = None,
    ) -> FetchedState:
        ids = [donor.peer_id for donor in donors or self.others]
        return await fetch_state(
            self.node,
            ids,
            kind,
            epoch,
            self.spool,
            lambda done, total: self.progress.append((done, total)),
            expected_size=size,
            header=header,
        )

    def run(self, *donors: Node, **options: Any) -> FetchedState:
        found: FetchedState = self.company.runner.run(self.fetch(*donors, **options))
        return found


@pytest.fixture
def fetcher(company: Any, tmp_path: Path) -> Iterator[Fetcher]:
    yield Fetcher(company, tmp_path / "spool")


@contextlib.contextmanager
def served_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """(fetcher, chunk) for each chunk that any server of this process sends."""
    sent: list[tuple[str, int]] = []
    send = Stream.send

    async def recorded(self: Stream, header: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        await send(self, header, *args, **kwargs)
        if "chunk" in header and (args or "body" in kwargs):
            sent.append((self.peer, header["chunk"]))

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "send", recorded)
        yield sent


@pytest.mark.parametrize("size", [0, 1, CHUNK_SIZE, CHUNK_SIZE + 1, SIZE])
def test_a_state_arrives_whole(fetcher: Fetcher, donors: Donors, size: int) -> None:
    donors.serves = {fetcher.others[0].peer_id: snapshot_of(1, size, step=3)}
    found = fetcher.run(fetcher.others[0], size=size)
    assert found.payload.tobytes() == payload_of(1, size)
    assert (found.epoch, found.header) == (7, {"lineage": "x", "step": 3})
    assert found.root == snapshot_of(1, size, step=3).root
    assert not found.payload.flags.writeable
    assert fetcher.progress[-1] == (size, size)
    assert not fetcher.spool.exists()
    assert donors.asked == [(fetcher.others[0].peer_id, "state", None)]


def test_all_donors_of_the_same_state_share_the_work(
    fetcher: Fetcher, donors: Donors, monkeypatch: pytest.MonkeyPatch
) -> None:
    donors.serves = {node.peer_id: snapshot_of(1) for node in fetcher.others}
    by_donor: dict[str, int] = dict.fromkeys(donors.serves, 0)
    receive = Stream.receive

    async def counted(self: Stream, *args: Any, **kwargs: Any) -> Any:
        header, body = await receive(self, *args, **kwargs)
        if "chunk" in header and body:
            by_donor[self.peer] += 1
        return header, body

    monkeypatch.setattr(Stream, "receive", counted)
    assert fetcher.run().payload.tobytes() == payload_of(1)
    assert sum(by_donor.values()) == 13
    assert all(count >= 2 for count in by_donor.values())
    done = [done for done, _ in fetcher.progress]
    assert done == sorted(done) and done[-1] == SIZE


def test_the_state_that_most_donors_have_is_followed(fetcher: Fetcher, donors: Donors) -> None:
    a, b, c = (node.peer_id for node in fetcher.others)
    donors.serves = {a: snapshot_of(1, epoch=9), b: snapshot_of(2), c: snapshot_of(2)}
    assert fetcher.run().epoch == 7
    donors.serves = {a: snapshot_of(1, epoch=9), b: snapshot_of(2)}
    assert fetcher.run().epoch == 9


def test_an_epoch_may_be_asked_for(fetcher: Fetcher, donors: Donors) -> None:
    a, b, _ = fetcher.others
    donors.serves = {a.peer_id: snapshot_of(1, epoch=3), b.peer_id: snapshot_of(1, epoch=4)}
    found = fetcher.run(epoch=4, kind="gradient")
    assert found.epoch == 4
    assert {asked[1:] for asked in donors.asked} == {("gradient", 4)}
    with pytest.raises(StateUnavailable, match=r"no peer gives the gradient .*contradicts itself"):
        fetcher.run(a, epoch=4, kind="gradient")


def test_nobody_has_it(fetcher: Fetcher, donors: Donors, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.swarm.state.QUIET_SECONDS", 1.0)
    with pytest.raises(StateUnavailable, match="does not have it"):
        fetcher.run()
    with pytest.raises(StateUnavailable, match="there is no other"):
        fetcher.run(fetcher.node)
    gone = SimpleNamespace(peer_id=tools.make_key(88).peer_id)
    with pytest.raises(StateUnavailable, match="cannot be reached"):
        fetcher.run(gone)  # type: ignore[arg-type]


@pytest.mark.parametrize("offered", [SIZE + 1, SIZE - 1, SIZE + CHUNK_SIZE])
def test_another_size_than_expected_is_refused_before_anything_is_kept(
    fetcher: Fetcher, donors: Donors, offered: int
) -> None:
    donors.serves = {fetcher.others[0].peer_id: snapshot_of(1, offered)}
    with pytest.raises(StateUnavailable, match=f"offers {offered} bytes instead of {SIZE}|announces"):
        fetcher.run(fetcher.others[0])
    assert not fetcher.spool.exists()


def test_a_break_is_no_loss(fetcher: Fetcher, donors: Donors, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that is cancelled half way goes on from there, from another donor."""
    a, b, _ = fetcher.others
    donors.serves = {a.peer_id: snapshot_of(1), b.peer_id: snapshot_of(1)}

    async def break_off() -> None:
        task = asyncio.create_task(fetcher.fetch(a))
        while not fetcher.progress or fetcher.progress[-1][0] < 5 * CHUNK_SIZE:
            await asyncio.sleep(0)
            assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    fetcher.company.runner.run(break_off())
    assert fetcher.spool.stat().st_size == SIZE
    fetcher.progress.clear()
    with served_chunks(monkeypatch) as sent:
        assert fetcher.run(b).payload.tobytes() == payload_of(1)
    assert fetcher.progress[0][0] >= 5 * CHUNK_SIZE
    assert len(sent) <= 8


def test_what_a_spool_holds_is_believed_only_if_it_is_right(fetcher: Fetcher, donors: Donors) -> None:
    donors.serves = {fetcher.others[0].peer_id: snapshot_of(1)}
    right = payload_of(1)
    fetcher.spool.write_bytes(right[: 3 * CHUNK_SIZE] + bytes(CHUNK_SIZE) + right[4 * CHUNK_SIZE :] + b"more")
    assert fetcher.run(fetcher.others[0]).payload.tobytes() == right
    assert fetcher.progress[0] == (SIZE - CHUNK_SIZE, SIZE)


def test_a_donor_that_dies_half_way_is_replaced(swarm: Any, tools: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with swarm.nodes(3) as (me, first, second):
            for node in (first, second):
                await StateServer(node, _always(snapshot_of(1, 40 * CHUNK_SIZE))).start()
            killing: list[asyncio.Task[None]] = []

            def on_progress(done: int, _total: int) -> None:
                if done >= 10 * CHUNK_SIZE and not killing:
                    killing.append(asyncio.create_task(tools.kill(first)))

            found = await fetch_state(
                me,
                [first.peer_id, second.peer_id],
                "state",
                None,
                tmp_path / "spool",
                on_progress,
                expected_size=40 * CHUNK_SIZE,
            )
            assert found.payload.tobytes() == payload_of(1, 40 * CHUNK_SIZE)
            await killing[0]
        assert not tools.tasks()

    asyncio.run(scenario())


def _always(snapshot: Snapshot) -> Any:
    async def provide(_kind: str, _epoch: Epoch | None) -> Snapshot | None:
        return snapshot

    return provide


def test_a_donor_of_bad_chunks_is_found_out_and_not_asked_again(
    fetcher: Fetcher, donors: Donors, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = fetcher.others[:2]
    altered = snapshot_of(1)
    hashes, root = altered.hashes, altered.root
    changed = bytearray(payload_of(1))
    changed[SIZE // 2] ^= 1
    altered = Snapshot(7, {"lineage": "x"}, bytes(changed))
    altered.__dict__["hashes"], altered.__dict__["root"] = hashes, root  # it claims what others have
    donors.serves = {good.peer_id: snapshot_of(1), bad.peer_id: altered}
    for chosen in ((good, bad), (bad, good)):
        donors.asked.clear()
        assert fetcher.run(*chosen).payload.tobytes() == payload_of(1)
    with pytest.raises(StateUnavailable, match="sends a chunk that its own hash contradicts"):
        fetcher.run(bad)
    assert [peer for peer, _, _ in donors.asked].count(bad.peer_id) == 2  # once in each of the last two
    fetcher.spool.unlink()


def test_an_offer_that_contradicts_itself_is_refused(fetcher: Fetcher, donors: Donors) -> None:
    claims = snapshot_of(1)
    claims.__dict__["root"] = snapshot_of(2).root
    donors.serves = {fetcher.others[0].peer_id: claims}
    with pytest.raises(StateUnavailable, match="contradicts itself"):
        fetcher.run(fetcher.others[0])


def test_an_offer_of_another_header_than_the_given_one_is_refused(fetcher: Fetcher, donors: Donors) -> None:
    one, other = fetcher.others[:2]
    donors.serves = {one.peer_id: snapshot_of(1, of="this"), other.peer_id: snapshot_of(2, of="that")}
    for wanted, seed in (("this", 1), ("that", 2)):
        found = fetcher.run(one, other, header={"lineage": "x", "of": wanted})
        assert found.payload.tobytes() == payload_of(seed)
    with pytest.raises(StateUnavailable, match="another one than it was asked for"):
        fetcher.run(one, other, header={"lineage": "x"})


def test_nobody_waits_long_for_a_donor_that_hangs(fetcher: Fetcher, donors: Donors) -> None:
    good, hanging = fetcher.others[:2]
    donors.serves = {node.peer_id: snapshot_of(1) for node in (good, hanging)}

    async def scenario() -> FetchedState:
        released = donors.held[hanging.peer_id] = asyncio.Event()
        try:
            async with asyncio.timeout(OFFER_SECONDS / 3):
                return await fetcher.fetch(hanging, good)
        finally:
            released.set()

    assert fetcher.company.runner.run(scenario()).payload.tobytes() == payload_of(1)


def test_a_donor_serves_only_so_many_at_once(fetcher: Fetcher, donors: Donors, tools: Any) -> None:
    donor = fetcher.others[0]
    donors.serves = {donor.peer_id: snapshot_of(1)}

    async def scenario() -> None:
        held = []
        for _ in range(MAX_TRANSFERS):
            stream = await fetcher.node.open(donor.peer_id, "state")
            await stream.send({"kind": "state", "epoch": None})
            assert (await stream.receive(13 * 32))[0]["size"] == SIZE
            held.append(stream)
        fetching = asyncio.create_task(fetcher.fetch(donor))
        refused = await fetcher.node.open(donor.peer_id, "state")
        await refused.send({"kind": "state", "epoch": None})
        assert await refused.receive() == ({"none": "it serves others already"}, b"")
        refused.close()
        await asyncio.sleep(0.3)
        assert not fetching.done()
        held.pop().close()
        assert (await fetching).payload.tobytes() == payload_of(1)
        for stream in held:
            stream.close()
        await tools.eventually(lambda: not donor._inbound)

    fetcher.company.runner.run(scenario())


def test_a_donor_does_not_wait_for_ever(
    fetcher: Fetcher, donors: Donors, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.swarm.state.IDLE_SECONDS", 0.3)
    donor = fetcher.others[0]
    donors.serves = {donor.peer_id: snapshot_of(1)}

    async def scenario() -> None:
        stream = await fetcher.node.open(donor.peer_id, "state")
        await stream.send({"kind": "state", "epoch": None})
        await stream.receive(13 * 32)
        with pytest.raises(PeerGone):
            await stream.receive(timeout=10)
        stream.close()

    fetcher.company.runner.run(scenario())


@pytest.mark.parametrize(
    "request_", [{}, {"kind": 3, "epoch": None}, {"kind": "state", "epoch": "7"}, {"kind": "state", "epoch": True}]
)
def test_requests_that_make_no_sense_end_the_stream(fetcher: Fetcher, donors: Donors, request_: dict[str, Any]) -> None:
    async def scenario() -> None:
        stream = await fetcher.node.open(fetcher.others[0].peer_id, "state")
        await stream.send(request_)
        with pytest.raises(PeerGone):
            await stream.receive()
        stream.close()

    fetcher.company.runner.run(scenario())
    assert donors.asked == []


@pytest.mark.parametrize("number", [-1, 13, "0", None, True, 1.5])
def test_chunks_that_are_not_there_end_the_stream(fetcher: Fetcher, donors: Donors, number: Any) -> None:
    donors.serves = {fetcher.others[0].peer_id: snapshot_of(1)}

    async def scenario() -> None:
        stream = await fetcher.node.open(fetcher.others[0].peer_id, "state")
        await stream.send({"kind": "state", "epoch": None})
        await stream.receive(13 * 32)
        await stream.send({"chunk": number})
        with pytest.raises(PeerGone):
            await stream.receive(CHUNK_SIZE)
        stream.close()

    fetcher.company.runner.run(scenario())


# The disk.


def test_a_disk_without_room_is_noticed_before_anything_is_fetched(
    fetcher: Fetcher, donors: Donors, monkeypatch: pytest.MonkeyPatch
) -> None:
    donors.serves = {fetcher.others[0].peer_id: snapshot_of(1)}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000_000))
    with (
        served_chunks(monkeypatch) as sent,
        pytest.raises(SpoolFailed, match=r"needs 13 MB in .*, where only 5 MB are free; make room"),
    ):
        fetcher.run(fetcher.others[0])
    assert sent == []


def test_a_disk_that_fills_up_meanwhile_is_named(
    fetcher: Fetcher, donors: Donors, monkeypatch: pytest.MonkeyPatch
) -> None:
    donors.serves = {node.peer_id: snapshot_of(1) for node in fetcher.others}
    writes = itertools.count()
    pwrite = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if next(writes) >= 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(SpoolFailed, match=r"\(No space left on device\); make room there"):
            fetcher.run()
    fetcher.progress.clear()
    assert fetcher.run().payload.tobytes() == payload_of(1)  # what had been written is used
    assert fetcher.progress[0][0] >= 4 * CHUNK_SIZE


def test_a_spool_that_cannot_be_is_named(fetcher: Fetcher, donors: Donors, tmp_path: Path) -> None:
    donors.serves = {fetcher.others[0].peer_id: snapshot_of(1)}
    (tmp_path / "file").touch()
    fetcher.spool = tmp_path / "file" / "spool"
    with pytest.raises(SpoolFailed, match="cannot be kept"):
        fetcher.run(fetcher.others[0])


# Roots.


def test_the_root_covers_all_that_a_state_is() -> None:
    base = snapshot_of(1, 100)
    roots = {
        base.root,
        snapshot_of(2, 100).root,
        snapshot_of(1, 101).root,
        snapshot_of(1, 100, epoch=8).root,
        snapshot_of(1, 100, more=1).root,
        root_of(7, {"lineage": "x"}, 101, base.hashes),
    }
    assert len(roots) == 6
    assert snapshot_of(1, 100).root == base.root


def test_any_buffer_can_be_a_payload() -> None:
    values = np.arange(1000, dtype=np.float32)
    roots = {Snapshot(1, {}, form).root for form in (values, memoryview(values), values.tobytes())}
    assert len(roots) == 1


def test_a_header_must_be_small() -> None:
    with pytest.raises(ValueError, match="header"):
        Snapshot(1, {"x": "y" * 40_000}, b"")
