"""Real nodes with replicas: who is behind replays what it missed, and takes nothing from those who tell tales."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer import events
from peer.daemon import catchup
from peer.daemon.catchup import CatchUp
from peer.daemon.history import Committed
from peer.daemon.replica import Replica
from peer.daemon.services import StandingBoard
from peer.daemon.standings import Standing
from peer.places import RuntimeDirectory
from peer.swarm.node import Node
from peer.swarm.snapshot import Snapshot
from peer.swarm.state import StateServer
from peer.swarm.vectors import decode_vector, encode_vector, encoded_size
from protocol.manifest import Manifest, parse_manifest
from protocol.plan import Group, Member, genesis
from protocol.signing import SigningKey

pytestmark = pytest.mark.swarm

RUN = "cd" * 32
KEYS = [SigningKey(bytes([number]) * 32) for number in (1, 2, 3)]


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return parse_manifest({"run": {"name": "test"}, "model": {"preset": "nano"}, "host": KEYS[0].peer_id})


@dataclass
class Peer:
    node: Node
    replica: Replica
    catchup: CatchUp
    told: list[events.Event] = field(default_factory=list)

    @property
    def fetched(self) -> list[tuple[int, int]]:
        """(gradients, bytes) of each time that it caught up."""
        return [(event.gradients, event.size) for event in self.told if isinstance(event, events.CaughtUp)]

    async def commit(self, count: int) -> None:
        """The same commits on whoever is at the same epoch."""
        for _ in range(count):
            replica = self.replica
            size, epoch = replica.num_parameters, replica.epoch
            raw = np.random.default_rng(epoch).standard_normal(size).astype(np.float32)
            mean = decode_vector(memoryview(encode_vector(raw, "uniform8")), size, "uniform8")
            members = ((KEYS[0].peer_id, 5), (KEYS[1].peer_id, 3))
            await replica.apply(Committed(epoch, 0, members, replica.lineage, "uniform8", mean))

    def state(self) -> tuple[Any, ...]:
        replica = self.replica
        return replica.epoch, replica.lineage, *(vector.tobytes() for vector in (replica.weights, replica.m, replica.v))


class Scene:
    """A newcomer and two donors, on one event loop."""

    def __init__(self, manifest: Manifest, home: Path) -> None:
        self._manifest, self._home = manifest, home
        donors = sorted(key.peer_id for key in KEYS[1:])
        group = Group(tuple(Member(peer, throughput=1000, quota=8, share=1) for peer in donors))
        self._plan = replace(genesis(manifest, RUN), groups=(group,)).to_data()
        self._stack = contextlib.AsyncExitStack()
        self.peers: list[Peer] = []

    async def __aenter__(self) -> Scene:
        runtime = RuntimeDirectory()
        self._stack.callback(runtime.remove)
        addresses: list[str] = []
        for number, key in enumerate(KEYS):
            node = await Node.start(key, runtime_dir=runtime.path, run=RUN, host="127.0.0.1", initial_peers=addresses)
            self._stack.push_async_callback(node.close)
            addresses = addresses or await node.addresses()
            await self._serve(node, self._home / str(number))
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def _serve(self, node: Node, directory: Path) -> None:
        replica = Replica(RUN, self._manifest)
        directory.mkdir()
        told: list[events.Event] = []
        peer = Peer(node, replica, CatchUp(node, replica, directory, told.append), told)
        await peer.catchup.serve()
        await StandingBoard(lambda: self.standing(replica)).start(node)
        self.peers.append(peer)

    def standing(self, replica: Replica) -> dict[str, Any]:
        return {
            "epoch": replica.epoch,
            "lineage": replica.lineage.digest,
            "plan": self._plan,
            "absent": {},
            "remaining_ms": 0,
        }

    async def come(self) -> Standing | None:
        newcomer, *donors = self.peers
        standings = await newcomer.catchup.standings([peer.node.peer_id for peer in donors])
        return await newcomer.catchup.come_into_step(standings)


@pytest.fixture
def scene(manifest: Manifest, tmp_path: Path) -> Iterator[Callable[[Callable[[Scene], Awaitable[None]]], None]]:
    def run(story: Callable[[Scene], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with Scene(manifest, tmp_path) as made:
                await story(made)

        asyncio.run(whole())

    yield run


def test_missed_epochs_are_replayed_and_older_ones_are_not(scene: Any) -> None:
    async def story(scene: Scene) -> None:
        newcomer, one, two = scene.peers
        gradient = encoded_size(newcomer.replica.num_parameters, "uniform8")
        for donor in (one, two):
            await donor.commit(7)
        assert await scene.come() is not None
        assert newcomer.fetched == [(7, 7 * gradient)]
        assert newcomer.state() == one.state() == two.state()
        assert newcomer.replica.has_weights and newcomer.replica.is_exact

        for donor in (one, two):
            await donor.commit(1)
        assert await scene.come() is not None
        assert newcomer.state() == one.state()

        # It serves others in turn what it has replayed.
        one_has = await one.replica.history.at(3)
        new_has = await newcomer.replica.history.at(3)
        assert one_has is not None and new_has is not None and one_has.root == new_has.root

        for donor in (one, two):
            await donor.commit(14)
        assert await scene.come() is not None
        assert newcomer.fetched[1:] == [(0, newcomer.replica.state_bytes)], "further back than the history reaches"
        assert newcomer.state() == one.state()

        await newcomer.replica.take_weights(newcomer.replica.weights * 2, newcomer.replica.epoch, is_difference=False)
        assert await scene.come() is not None
        assert newcomer.fetched[2:] == [(0, newcomer.replica.state_bytes)], "of no history"
        assert newcomer.state() == one.state()

    scene(story)


def test_what_is_committed_during_the_state_is_replayed_after_it(scene: Any) -> None:
    async def story(scene: Scene) -> None:
        newcomer, one, two = scene.peers
        for donor in (one, two):
            await donor.commit(20)
        load_state = newcomer.replica.load_state

        async def slowly(*arguments: Any) -> None:
            for donor in (one, two):
                await donor.commit(6)
            await load_state(*arguments)

        newcomer.replica.load_state = slowly  # type: ignore[method-assign]
        assert await scene.come() is not None
        assert [gradients for gradients, _ in newcomer.fetched] == [0, 6]
        assert newcomer.catchup.num_tries == 1
        assert newcomer.state() == one.state() == two.state()

    scene(story)


def test_who_comes_no_nearer_gives_up(scene: Any) -> None:
    async def story(scene: Scene) -> None:
        newcomer, one, two = scene.peers
        for donor in (one, two):
            await donor.commit(3)
        apply = newcomer.replica.apply

        async def slowly(commit: Committed) -> Any:
            for donor in (one, two):
                await donor.commit(1)
            return await apply(commit)

        newcomer.replica.apply = slowly  # type: ignore[method-assign]
        assert await scene.come() is None
        assert newcomer.catchup.num_tries == 1
        assert newcomer.replica.epoch == 3 and one.replica.epoch == 6

    scene(story)


class Liar:
    """A history that is not what it should be."""

    def __init__(self, peer: Peer, lie: str) -> None:
        self._true, self._lie = peer.replica.history, lie

    async def since(self, epoch: int, lineage: str) -> list[dict[str, Any]]:
        headers = await self._true.since(epoch, lineage)
        match self._lie:
            case "order":
                return headers[::-1]
            case "lineage":
                return [{**header, "attempt": 1} for header in headers[:1]] + headers[1:]
            case "members":
                return headers[:-1] + [{**header, "members": []} for header in headers[-1:]]
            case "compression":
                return [{**header, "compression": "none"} for header in headers]
            case "endless":
                return headers * 100
        return headers

    async def at(self, epoch: int) -> Snapshot | None:
        true = await self._true.at(epoch)
        if true is None:
            return None
        match self._lie:
            case "another":
                return await self._true.at(epoch - 1 or 1)
            case "header":
                return Snapshot(epoch, {**true.header, "attempt": 1}, true.payload)
            case "short":
                return Snapshot(epoch, true.header, true.view[:-1])
            case "long":
                return Snapshot(epoch, true.header, bytes(true.view) + b"\0")
            case "nonsense":
                return Snapshot(epoch, true.header, b"\xff" * len(true.view))
            case "truncated":
                cut = Snapshot(epoch, true.header, true.payload)
                assert cut.hashes
                cut.__dict__["view"] = Half(true.view)
                return cut
            case "silent":
                await asyncio.Event().wait()
        return true


class Half:
    """Bytes of which only half come out."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __len__(self) -> int:
        return len(self._view)

    def __getitem__(self, part: slice) -> memoryview:
        return self._view[part][: len(self._view) // 2]


LIES = ["order", "lineage", "members", "compression", "endless"]
GIFTS = ["another", "header", "short", "long", "nonsense", "truncated", "silent"]


def test_a_donor_that_lies_is_passed_over(scene: Any) -> None:
    async def story(scene: Scene) -> None:
        newcomer, liar, honest = scene.peers
        gradient = encoded_size(newcomer.replica.num_parameters, "uniform8")
        history = liar.replica.history
        for number, lie in enumerate([*LIES, *GIFTS]):
            liar.replica.history = history
            for donor in (liar, honest):
                await donor.commit(2)
            liar.replica.history = Liar(liar, lie)  # type: ignore[assignment]
            assert await scene.come() is not None, lie
            assert newcomer.state() == honest.state(), lie
            ((gradients, size),) = newcomer.fetched[number:]
            most = 4 if lie == "nonsense" else 2  # what that one gave may have been chosen first, both times
            assert gradients == 2 and 2 * gradient <= size <= most * gradient, lie

    scene(story)


@pytest.mark.parametrize("lie", ["order", "lineage", "members", "header", "short", "nonsense", "truncated"])
def test_of_liars_alone_nothing_is_taken(scene: Any, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        newcomer, *donors = scene.peers
        for donor in donors:
            await donor.commit(3)
            donor.replica.history = Liar(donor, lie)  # type: ignore[assignment]
        before = newcomer.state()
        fetches: list[str] = []

        async def no_state(*_: Any) -> bool:
            assert newcomer.state() == before
            fetches.append("state")
            return False

        monkeypatch.setattr(newcomer.catchup, "_fetch_state", no_state)
        assert await scene.come() is None
        assert fetches == ["state"], "the state is tried instead"
        assert newcomer.state() == before
        assert not newcomer.fetched

    scene(story)


def test_a_gradient_that_never_ends_is_given_up(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A donor whose chunk does not come holds up a gradient for a while, and no more than that."""
    monkeypatch.setattr(catchup, "IDLE_SECONDS", 2.0)
    monkeypatch.setattr(catchup, "SLOWEST_RATE", 10**9)

    async def story(scene: Scene) -> None:
        newcomer, one, two = scene.peers
        for donor in (one, two):
            await donor.commit(2)
        send_chunks = StateServer._send_chunks

        async def stuck(server: StateServer, *arguments: Any) -> None:
            if server._node is one.node:
                await asyncio.Event().wait()
            await send_chunks(server, *arguments)

        monkeypatch.setattr(StateServer, "_send_chunks", stuck)
        assert await scene.come() is not None
        assert newcomer.state() == two.state()

    scene(story)
