"""What we use of hivemind 1.1.12 without its promise: each test names one such thing and fails if it has changed."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import subprocess
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import hivemind.dht.protocol
import msgpack
import pytest
from hivemind.dht import DHTID
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol, ValidationError
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, PeerID, ServicerBase
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
from hivemind.proto import crypto_pb2, p2pd_pb2
from hivemind.utils import MSGPackSerializer
from hivemind.utils.multiaddr import Multiaddr

from peer.swarm import engine
from peer.swarm.p2pd import _arguments
from protocol.signing import peer_id_of


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def source(thing: Any) -> str:
    return inspect.getsource(thing)


def test_the_version_that_was_read() -> None:
    assert version("hivemind") == "1.1.12"


def test_p2p_replicate_puts_its_socket_under_the_class_prefix() -> None:
    assert P2P._UNIX_SOCKET_PREFIX == "/unix/tmp/hivemind-"
    assert parameters(P2P.replicate) == ["daemon_listen_maddr"]
    assert 'cls._UNIX_SOCKET_PREFIX + f"p2pclient-{socket_uid}.sock"' in source(P2P.replicate)
    assert "token_urlsafe(8)" in source(P2P.replicate)  # 11 characters: `P2pd.launch` counts on it
    assert 'os.remove(self._client_listen_maddr["unix"])' in source(P2P._terminate)


def test_servicers_reach_p2p_through_the_methods_that_we_prefix() -> None:
    assert parameters(P2P.add_protobuf_handler)[:3] == ["self", "name", "handler"]
    assert parameters(P2P.remove_protobuf_handler)[:2] == ["self", "name"]
    assert parameters(P2P.call_protobuf_handler)[:3] == ["self", "peer_id", "name"]
    assert "p2p.add_protobuf_handler(" in source(ServicerBase.add_p2p_handlers)
    assert "p2p.remove_protobuf_handler(" in source(ServicerBase.remove_p2p_handlers)
    assert "self._p2p.call_protobuf_handler(" in source(ServicerBase._make_rpc_caller)
    for name in ("rpc_ping", "rpc_store", "rpc_find"):  # none of which streams
        assert "Iterator" not in str(inspect.signature(getattr(DHTProtocol, name)))


def test_binary_streams() -> None:
    assert parameters(P2P.add_binary_stream_handler) == ["self", "name", "handler", "balanced"]
    assert "await handler(stream_info, reader, writer)" in source(ControlClient._handler)


def test_requests_to_the_daemon_can_be_made_by_ourselves() -> None:
    assert inspect.iscoroutinefunction(write_pbmsg) and inspect.iscoroutinefunction(read_pbmsg_safe)
    request = p2pd_pb2.StreamOpenRequest(peer=b"x", proto=["/a"], timeout=3)
    assert p2pd_pb2.StreamOpenRequest.FromString(request.SerializeToString()).timeout == 3
    request = p2pd_pb2.ConnectRequest(peer=b"x", addrs=[b"a"], timeout=3)
    assert p2pd_pb2.ConnectRequest.FromString(request.SerializeToString()).timeout == 3
    assert (p2pd_pb2.Request.CONNECT, p2pd_pb2.Request.STREAM_OPEN) == (1, 2)
    assert p2pd_pb2.Response.ERROR == 1


def test_the_daemon_knows_our_flags(tmp_path: Any) -> None:
    binary, *flags = _arguments(tmp_path / "a", tmp_path / "b", ["/ip4/127.0.0.1/tcp/0"], loopback=False)
    assert binary == str(files("hivemind.hivemind_cli") / "p2pd")
    usage = subprocess.run([binary, "-help"], capture_output=True, text=True).stderr
    known = {line.split()[0] for line in usage.splitlines() if line.startswith("  -")}
    assert {flag.split("=")[0] for flag in flags} <= known


def test_an_identity_file_may_hold_an_ed25519_key() -> None:
    assert crypto_pb2.KeyType.Ed25519 == 1
    message = crypto_pb2.PrivateKey(key_type=crypto_pb2.KeyType.Ed25519, data=bytes(64))
    assert message.SerializeToString() == b"\x08\x01\x12\x40" + bytes(64)


def test_peer_ids_are_spelled_as_ours() -> None:
    ours = peer_id_of(bytes(range(32)))
    assert PeerID.from_base58(ours).to_base58() == ours
    assert PeerID.from_base58(ours).to_bytes() == bytes.fromhex("002408011220") + bytes(range(32))


def test_multiaddresses_as_bytes() -> None:
    assert Multiaddr("/ip4/127.0.0.1/tcp/80").to_bytes() == bytes.fromhex("047f000001060050")


def test_ids_in_the_dht() -> None:
    assert DHTID.generate(source=b"abc").to_bytes() == hashlib.sha1(b"abc").digest()
    assert DHTID.generate(source="abc").to_bytes() == hashlib.sha1(msgpack.packb("abc")).digest()


def test_serialization_of_keys_and_values() -> None:
    assert MSGPackSerializer.dumps("abc") == b"\xa3abc"
    for size, head in ((0, b"\xc4\x00"), (255, b"\xc4\xff"), (256, b"\xc5\x01\x00"), (4096, b"\xc5\x10\x00")):
        assert MSGPackSerializer.dumps(bytes(size)) == head + bytes(size)


def test_a_node_takes_what_we_give_it() -> None:
    wanted = {
        "p2p",
        "node_id",
        "wait_timeout",
        "cache_locally",
        "cache_nearest",
        "cache_on_store",
        "record_validator",
    }
    assert wanted <= set(parameters(DHTNode.create))
    assert parameters(DHTNode.store)[1:5] == ["key", "value", "expiration_time", "subkey"]
    assert parameters(DHTNode.get)[1:3] == ["key", "latest"]
    assert parameters(DHTNode.find_nearest_nodes)[1] == "queries"
    shutdown = source(DHTNode.shutdown)
    assert "self.is_alive = False" in shutdown  # `end_dht` does this much of it


def test_records_are_validated_on_each_way_into_and_out_of_a_node() -> None:
    assert parameters(RecordValidatorBase.validate) == ["self", "record"]
    fields = ["key", "subkey", "value", "expiration_time"]
    assert list(DHTRecord.__dataclass_fields__) == fields
    assert parameters(DHTProtocol._validate_record) == [
        "self",
        "key_bytes",
        "subkey_bytes",
        "value_bytes",
        "expiration_time",
    ]
    assert parameters(DHTProtocol._validate_dictionary) == ["self", "key_bytes", "dictionary"]
    for way in (DHTProtocol.rpc_store, DHTProtocol.call_find):
        text = source(way)
        assert text.count("self._validate_record(") == text.count("self._validate_dictionary(") == 1
    assert "record_validator.validate(" in source(DHTNode.store_many)


def test_entries_of_a_dictionary_can_be_dropped() -> None:
    dictionary = DictionaryDHTValue()
    for name in ("a", "b"):
        dictionary.store(name, b"x", 4e9)
    with dictionary.freeze():
        del dictionary["a"]
    assert [name for name, _ in dictionary.items()] == ["b"]
    assert [name for name, _ in DictionaryDHTValue.unpackb(dictionary.packb()).items()] == ["b"]


def test_routing_tables_are_filled_in_one_place() -> None:
    assert parameters(DHTProtocol.update_routing_table) == ["self", "node_id", "peer_id", "responded"]
    assert source(hivemind.dht.protocol).count("add_or_update_node(") == 1
    assert parameters(DHTProtocol.call_ping) == ["self", "peer", "validate", "strict"]


def test_a_wrong_clock_is_told_in_these_words() -> None:
    assert "local time must be within" in source(DHTProtocol.call_ping)
    assert issubclass(ValidationError, Exception)
    assert hivemind.dht.protocol.MAX_DHT_TIME_DISCREPANCY_SECONDS == 3


@pytest.mark.swarm
def test_the_replacements_are_in_place(swarm: Any) -> None:
    async def scenario() -> None:
        async with swarm.nodes(1) as (a,):
            protocol = a._dht.protocol
            assert protocol.record_validator is a._validator
            assert "keep_admissible" in protocol._validate_dictionary.__qualname__
            assert "update_if_own_id" in protocol.update_routing_table.__qualname__
            assert a._dht.node_id == protocol.node_id == engine.dht_id(a._p2p.peer_id)
            assert set(a._p2p._client.control.unary_handlers) == {
                f"/minga/1/{swarm.run[:16]}/DHTProtocol.{name}" for name in ("rpc_ping", "rpc_store", "rpc_find")
            }

    asyncio.run(scenario())
