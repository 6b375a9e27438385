"""Records in the DHT: what is published is found, and nothing else gets in or out."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hivemind.dht.node import DHTNode
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer

from peer.swarm import engine
from peer.swarm.node import Node
from peer.swarm.validator import RecordValidator, key_bytes
from protocol.errors import LocalProtocolError
from protocol.records import Ballot, Presence, Progress, record_key, sign_record


@pytest.mark.swarm
def test_what_is_published_is_found_by_all(company: Any, tools: Any) -> None:
    async def scenario() -> None:
        nodes = company.nodes[:3]
        for node in nodes:
            assert await node.publish(tools.make_presence(node.peer_id, name=f"peer {node.peer_id[-4:]}"))
        for node in nodes:
            found = await node.fetch("presence")
            assert [(record.peer, record.name) for record in found] == [
                (other.peer_id, f"peer {other.peer_id[-4:]}") for other in nodes
            ]
            assert await node.fetch("progress") == []

    company.runner.run(scenario())


@pytest.mark.swarm
def test_the_newest_record_of_a_peer_counts(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with swarm.nodes(3) as (a, b, c):
            for seconds, name in ((20, "first"), (40, "second"), (30, "late")):
                accepted = await a.publish(tools.make_presence(a.peer_id, seconds=seconds, name=name))
                assert accepted == (name != "late")
                for node in (b, c):  # at once: nothing is kept from an earlier look
                    (found,) = await node.fetch("presence")
                    assert found.name == (name if name != "late" else "second")

    asyncio.run(scenario())


@pytest.mark.swarm
def test_a_stale_copy_at_hand_does_not_hide_the_newest(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with swarm.nodes(2) as (a, b):
            keys = {tools.make_key(n).peer_id: tools.make_key(n) for n in (1, 2)}
            old = tools.make_presence(a.peer_id, seconds=20, name="old")
            assert await a.publish(tools.make_presence(a.peer_id, seconds=40, name="new"))
            storage = b._dht.protocol.storage
            storage.clear()
            data = MSGPackSerializer.dumps(sign_record(old, keys[a.peer_id]))
            key = engine.DHTID.generate(record_key(tools.run, "presence"))
            storage.store(key, data, old.expires / 1000, subkey=a.peer_id)
            (found,) = await b.fetch("presence")
            assert found.name == "new"

    asyncio.run(scenario())


@pytest.mark.swarm
def test_records_of_a_term_are_kept_apart(company: Any, tools: Any) -> None:
    async def scenario() -> None:
        a, b = company.nodes[:2]
        for term in (3, 4):
            ballot = Ballot(
                run=tools.run,
                peer=a.peer_id,
                expires=int((time.time() + 60) * 1000),
                term=term,
                epoch=term * 4,
                throughput=1,
            )
            assert await a.publish(ballot)
        for term in (3, 4):
            (found,) = await b.fetch("ballot", term)
            assert isinstance(found, Ballot) and (found.term, found.epoch) == (term, term * 4)
        assert await b.fetch("ballot", 5) == []

    company.runner.run(scenario())


@pytest.mark.swarm
def test_expired_records_are_gone(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with swarm.nodes(2) as (a, b):
            assert await a.publish(tools.make_presence(a.peer_id, seconds=1.0))
            assert len(await b.fetch("presence")) == 1
            await asyncio.sleep(1.05)
            assert await b.fetch("presence") == await a.fetch("presence") == []

    asyncio.run(scenario())


@pytest.mark.swarm
def test_a_peer_cannot_publish_for_another_or_too_much(company: Any, tools: Any) -> None:
    async def scenario() -> None:
        a = company.nodes[3]
        with pytest.raises(LocalProtocolError):
            await a.publish(tools.make_presence(tools.make_key(9).peer_id))
        address = "/dns4/" + "a" * 60 + "." + "b" * 60 + "." + "c" * 59 + f"/tcp/1/p2p/{a.peer_id}"
        largest = tools.make_presence(a.peer_id, addresses=[address] * 8, devices="d" * 200)
        assert await a.publish(largest)

    company.runner.run(scenario())


# An attacker has a peer of its own, whose node checks nothing.


def disarm(node: Node) -> None:
    node._dht.protocol.record_validator = None


def hostile_entries(attacker: Any, victim: Any, tools: Any) -> dict[str, tuple[str, Any, Any, float]]:
    """(key, subkey, value, expiration) by what is wrong with it."""
    now = time.time()
    own = tools.make_presence(attacker.peer_id)
    data, until = sign_record(own, attacker), own.expires / 1000
    about_victim = tools.make_presence(victim.peer_id)
    forged = data[:64] + sign_record(about_victim, victim)[64:]
    key = record_key(tools.run, "presence")
    far = tools.make_presence(attacker.peer_id, seconds=10**8)
    other_run = tools.make_presence(attacker.peer_id, run="cd" * 32)
    progress = Progress(
        run=tools.run,
        peer=attacker.peer_id,
        expires=own.expires,
        epoch=1,
        samples=1,
        total_samples=1,
        throughput=1,
    )
    return {
        "forged": (key, victim.peer_id, forged, until),
        "under another's subkey": (key, victim.peer_id, data, until),
        "under a subkey of its own choice": (key, "me, again", data, until),
        "without a subkey": (key, None, data, until),
        "under another kind's key": (record_key(tools.run, "progress"), attacker.peer_id, data, until),
        "under a foreign key": ("something else", attacker.peer_id, data, until),
        "of another kind": (key, attacker.peer_id, sign_record(progress, attacker), until),
        "of another run": (key, attacker.peer_id, sign_record(other_run, attacker), until),
        "with a longer life than it says": (key, attacker.peer_id, data, until + 3600),
        "with a shorter life than it says": (key, attacker.peer_id, data, until - 1),
        "for years": (key, attacker.peer_id, sign_record(far, attacker), far.expires / 1000),
        "oversized": (key, attacker.peer_id, data + bytes(4096), until),
        "large": (key, attacker.peer_id, bytes(100_000), until),
        "not bytes": (key, attacker.peer_id, {"name": "me"}, until),
        "garbage": (key, attacker.peer_id, bytes(200), now + 30),
    }


@pytest.mark.swarm
def test_hostile_records_are_neither_stored_nor_believed(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with swarm.nodes(3) as nodes:
            attacker, victim, reader = nodes
            keys = {tools.make_key(n).peer_id: tools.make_key(n) for n in (1, 2, 3)}
            disarm(attacker)
            assert await victim.publish(tools.make_presence(victim.peer_id, name="true"))
            entries = hostile_entries(keys[attacker.peer_id], keys[victim.peer_id], tools)
            for wrong, (key, subkey, value, until) in entries.items():
                stored = await attacker._dht.store(key, value, until, subkey=subkey, exclude_self=True)
                assert not stored, f"a record {wrong} was stored"
            for wrong, (key, subkey, value, until) in entries.items():
                if subkey is not None:  # and now the attacker keeps them itself, and offers them
                    data = MSGPackSerializer.dumps(value)
                    attacker._dht.protocol.storage.store(engine.DHTID.generate(key), data, until, subkey=subkey)
                    found = await reader.fetch("presence")
                    assert [(r.peer, r.name) for r in found] == [(victim.peer_id, "true")], wrong
            for node in (victim, reader):
                assert await node.fetch("progress") == []

    asyncio.run(scenario())


@pytest.mark.swarm
def test_one_bad_entry_at_an_unprotected_node_hides_nobody(swarm: Any, tools: Any) -> None:
    """hivemind as it comes would refuse the whole dictionary: readers would see nobody."""

    async def scenario() -> None:
        async with swarm.nodes(2) as (a, b):
            stock = await swarm.start(tools.make_key(66), initial_peers=await a.addresses())
            protocol = stock._dht.protocol
            protocol.record_validator = None
            del protocol._validate_dictionary  # the method of hivemind's class
            for node in (a, b):
                assert await node.publish(tools.make_presence(node.peer_id))
            key = engine.DHTID.generate(record_key(tools.run, "presence"))
            protocol.storage.store(key, b"nonsense", time.time() + 100, subkey="nobody")
            # The unprotected node is now the only one that has the records.
            for node in (a, b):
                node._dht.protocol.storage.clear()
                found = [record.peer for record in await node.fetch("presence")]
                assert found == [a.peer_id, b.peer_id]
            # Nor does it spread when the node hands its dictionary on to a newcomer.
            c = await swarm.start(tools.make_key(67), initial_peers=await stock.addresses())
            assert [record.peer for record in await c.fetch("presence")] == [a.peer_id, b.peer_id]
            kept = c._dht.protocol.storage.get(key)
            assert kept is None or "nobody" not in dict(kept.value.items())
            await c.close()
            await stock.close()

    asyncio.run(scenario())


@pytest.mark.swarm
def test_a_node_cannot_choose_its_place_in_the_dht(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with swarm.nodes(1) as (a,):
            other = await swarm.start(tools.make_key(2))
            key = engine.DHTID.generate(record_key(tools.run, "presence"))
            p2p = await engine.attach(other._daemon.control, "/minga/1/" + tools.run[:16] + "/")
            await other._dht.protocol.shutdown()
            squatter = await DHTNode.create(p2p=p2p, node_id=key, record_validator=RecordValidator(tools.run))
            await engine.dial(other._daemon.control, a.peer_id, await a.addresses(), 10)
            node_id = await squatter.protocol.call_ping(engine.PeerID.from_base58(a.peer_id))
            assert node_id == engine.dht_id(a._p2p.peer_id)  # they do talk,
            await asyncio.sleep(0.2)
            assert a.num_neighbours == 0  # but it is given no place
            await p2p.shutdown()
            await other.close()

    asyncio.run(scenario())


# The validator by itself.


def record_of(body: Presence, signer: Any, **changes: Any) -> DHTRecord:
    values = {
        "key": key_bytes(body.run, body),
        "subkey": MSGPackSerializer.dumps(body.peer),
        "value": MSGPackSerializer.dumps(sign_record(body, signer)),
        "expiration_time": body.expires / 1000,
    }
    return DHTRecord(**(values | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"key": bytes(20)},
        {"subkey": MSGPackSerializer.dumps(None)},
        {"subkey": b""},
        {"subkey": b"\xd9\x03abc"},
        {"value": b""},
        {"value": b"\xc4"},
        {"value": b"\xc4\xff" + bytes(20)},
        {"value": b"\xc7\x05\x50abcde"},
        {"value": bytes(10**6)},
        {"expiration_time": float("inf")},
        {"expiration_time": float("nan")},
        {"expiration_time": 0.0},
    ],
)
def test_the_validator_refuses_anything_out_of_place(tools: Any, changes: dict[str, Any]) -> None:
    key = tools.make_key(1)
    body = tools.make_presence(key.peer_id)
    validator = RecordValidator(tools.run)
    for _ in range(2):  # also when the record itself is known already
        assert not validator.validate(record_of(body, key, **changes))
        assert validator.validate(record_of(body, key))


def test_msgpack_of_another_spelling_is_refused(tools: Any) -> None:
    key = tools.make_key(1)
    body = tools.make_presence(key.peer_id)
    data = sign_record(body, key)
    longer = b"\xc6" + len(data).to_bytes(4, "big") + data
    assert MSGPackSerializer.loads(longer) == data
    assert not RecordValidator(tools.run).validate(record_of(body, key, value=longer))


def test_a_remembered_record_expires_all_the_same(tools: Any) -> None:
    key = tools.make_key(1)
    body = tools.make_presence(key.peer_id)
    validator, data, until = RecordValidator(tools.run), sign_record(body, key), body.expires / 1000
    assert validator.admit(data, until - 1) == body
    assert validator.admit(data, until - 0.001) == body
    assert validator.admit(data, until) is None


def test_the_memory_of_the_validator_is_bounded(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.swarm.validator.MAX_REMEMBERED", 5)
    key, now = tools.make_key(1), time.time()
    validator = RecordValidator(tools.run)
    for number in range(20):
        data = sign_record(tools.make_presence(key.peer_id, name=str(number)), key)
        assert validator.admit(data, now) is not None
        assert len(validator._admitted) <= 5
