from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

from peer.swarm.errors import (
    ClockDiffers,
    EngineFailed,
    NobodyAnswers,
    PeerGone,
    PeerUnreachable,
    PortInUse,
)
from peer.swarm.joining import preferred
from peer.swarm.node import MAX_STREAMS_OF_A_PEER
from peer.swarm.stream import Stream
from protocol.multiaddr import peer_at

pytestmark = pytest.mark.swarm


async def echo(peer: str, stream: Stream) -> None:
    header, body = await stream.receive(10**8)
    await stream.send({"from": peer, "got": header}, body[:1000])


def test_peers_call_each_other(company: Any) -> None:
    async def scenario() -> None:
        a, b, c = company.nodes[:3]
        await a.serve("echo", echo)
        assert await b.call(a.peer_id, "echo", {"x": 1}, b"hello") == (
            {"from": b.peer_id, "got": {"x": 1}},
            b"hello",
        )
        answers = await asyncio.gather(
            *(node.call(a.peer_id, "echo", {"n": n}, bytes(300_000)) for n in range(8) for node in (b, c))
        )
        assert {(header["from"], header["got"]["n"]) for header, _ in answers} == {
            (node.peer_id, n) for n in range(8) for node in (b, c)
        }
        for address in await a.addresses():
            assert peer_at(address) == a.peer_id

    company.runner.run(scenario())


def test_peers_that_met_through_a_third_reach_each_other(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        first = await swarm.start(tools.make_key(1))
        others = [await swarm.start(tools.make_key(n), initial_peers=await first.addresses()) for n in (2, 3)]
        await others[0].serve("echo", echo)
        await first.close()
        assert (await others[1].call(others[0].peer_id, "echo", {}))[0]["from"] == others[1].peer_id
        for node in others:
            await node.close()

    asyncio.run(scenario())


def test_what_nobody_serves_and_who_is_not_there(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with swarm.nodes(2) as (a, b):
            with pytest.raises(PeerUnreachable, match="does not take part"):
                await b.call(a.peer_id, "nothing", {})
            with pytest.raises(PeerUnreachable, match="address is not known"):
                await b.call(tools.make_key(99).peer_id, "echo", {})
            with pytest.raises(PeerUnreachable):
                await b.call(b.peer_id, "echo", {})
            await tools.kill(a)
            with pytest.raises(PeerUnreachable):
                await b.call(a.peer_id, "echo", {})
            with pytest.raises(EngineFailed, match="ended by signal 9; start the peer again"):
                await a.call(b.peer_id, "echo", {})

    asyncio.run(scenario())


def test_a_call_to_a_frozen_peer_ends_in_time(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with swarm.nodes(2) as (a, b):
            await a.serve("echo", echo)
            await b.call(a.peer_id, "echo", {})
            tools.freeze(a)
            begin = time.monotonic()
            with pytest.raises((PeerUnreachable, PeerGone)):
                await b.call(a.peer_id, "echo", {}, bytes(10_000_000), timeout=1.0)
            assert time.monotonic() - begin < 4

    asyncio.run(scenario())


def test_a_handler_that_fails_harms_nobody_else(company: Any) -> None:
    async def scenario() -> None:
        async def fail(_peer: str, _stream: Stream) -> None:
            raise ValueError("a mistake in a handler")

        a, b = company.nodes[:2]
        await a.serve("fail", fail)
        await a.serve("echo again", echo)
        with pytest.raises(PeerGone):
            await b.call(a.peer_id, "fail", {})
        await b.call(a.peer_id, "echo again", {})

    company.runner.run(scenario())


def test_one_peer_cannot_open_streams_without_bound(company: Any, tools: Any) -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def hold(_peer: str, stream: Stream) -> None:
            await stream.send({"held": True})
            await release.wait()

        a, b = company.nodes[:2]
        await a.serve("hold", hold)
        held = [await b.open(a.peer_id, "hold") for _ in range(MAX_STREAMS_OF_A_PEER)]
        for stream in held:
            assert await stream.receive() == ({"held": True}, b"")
        surplus = await b.open(a.peer_id, "hold")
        finishing = asyncio.create_task(surplus.receive(timeout=20))
        surplus._writer.write_eof()
        with pytest.raises(PeerGone):
            await finishing
        release.set()
        for stream in [*held, surplus]:
            stream.close()
        await tools.eventually(lambda: not a._inbound)
        stream = await b.open(a.peer_id, "hold")
        assert await stream.receive() == ({"held": True}, b"")
        stream.close()

    company.runner.run(scenario())


def test_closing_ends_streams_and_tasks(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with swarm.nodes(2) as (a, b):
            waiting = asyncio.Event()

            async def hold(_peer: str, stream: Stream) -> None:
                waiting.set()
                await stream.receive(0, 1000)

            await a.serve("hold", hold)
            stream = await b.open(a.peer_id, "hold")
            await stream.send({})
            await waiting.wait()
            await a.close()
            with pytest.raises(PeerGone):
                await stream.receive(0, 10)
            stream.close()
            assert a.died.done()
        assert not tools.tasks()

    asyncio.run(scenario())


def test_answers_arrive_over_quic(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        a = await swarm.start(tools.make_key(1), host="0.0.0.0")
        quic = [address for address in await a.addresses() if "/quic-v1/" in address]
        b = await swarm.start(tools.make_key(2), host="0.0.0.0", initial_peers=quic)
        await a.serve("echo", echo)
        for number in range(10):
            header, _ = await b.call(a.peer_id, "echo", {"n": number}, bytes(200_000))
            assert header["got"] == {"n": number}
        await b.close()
        await a.close()

    asyncio.run(scenario())


# Joining.


def test_nobody_at_an_address(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        gone = f"/ip4/127.0.0.1/tcp/9/p2p/{tools.make_key(9).peer_id}"
        with pytest.raises(NobodyAnswers, match=r"/ip4/127\.0\.0\.1/tcp/9 .*nothing listens.* ask a running"):
            await swarm.start(tools.make_key(1), initial_peers=[gone])

    asyncio.run(scenario())


def test_a_silent_address_is_given_up_in_time(swarm: Any, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.swarm.joining.JOIN_SECONDS", 1.5)

    async def scenario() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            address = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{tools.make_key(9).peer_id}"
            begin = time.monotonic()
            with pytest.raises(NobodyAnswers, match=r"no answer|nothing answers"):
                await swarm.start(tools.make_key(1), initial_peers=[address])
            assert time.monotonic() - begin < 5

    asyncio.run(scenario())


def test_one_live_address_among_dead_and_silent_ones_is_enough(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            async with swarm.nodes(1) as (a,):
                others = [
                    f"/ip4/127.0.0.1/tcp/{port}/p2p/{tools.make_key(90 + number).peer_id}"
                    for number, port in enumerate((9, silent.getsockname()[1], 11))
                ]
                begin = time.monotonic()
                b = await swarm.start(tools.make_key(77), initial_peers=[*others[:2], *await a.addresses(), others[2]])
                assert time.monotonic() - begin < 5
                assert b.num_neighbours == 1
                await b.close()

    asyncio.run(scenario())


def test_addresses_that_cannot_be_joined_at(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        with pytest.raises(NobodyAnswers, match="this peer itself"):
            own = f"/ip4/127.0.0.1/tcp/9/p2p/{tools.make_key(1).peer_id}"
            await swarm.start(tools.make_key(1), initial_peers=[own])
        with pytest.raises(NobodyAnswers, match="does not end with /p2p/"):
            await swarm.start(tools.make_key(1), initial_peers=["/ip4/127.0.0.1/tcp/9"])
        async with swarm.nodes(1) as (a,):
            address = (await a.addresses())[0].rpartition("/")[0]
            with pytest.raises(NobodyAnswers, match="another peer is at its address"):
                wrong = f"{address}/{tools.make_key(50).peer_id}"
                await swarm.start(tools.make_key(2), initial_peers=[wrong])

    asyncio.run(scenario())


def test_peers_of_different_runs_do_not_mix(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with swarm.nodes(1) as (a,):
            await a.serve("echo", echo)
            with pytest.raises(NobodyAnswers, match="does not take part in this run"):
                await swarm.start(tools.make_key(2), run="cd" * 32, initial_peers=await a.addresses())
            assert a.num_neighbours == 0

    asyncio.run(scenario())


def test_a_failed_start_leaves_the_port_free(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with swarm.nodes(1) as (a,):
            port = int((await a.addresses())[0].split("/")[4])
            with pytest.raises(PortInUse):
                await swarm.start(tools.make_key(2), port=port)
        again = await swarm.start(tools.make_key(2), port=port)
        await again.close()

    asyncio.run(scenario())


def test_a_clock_that_differs_is_named(swarm: Any, tools: Any) -> None:
    program = textwrap.dedent(
        """
        import asyncio, sys, time
        from pathlib import Path
        import hivemind.dht.protocol
        hivemind.dht.protocol.get_dht_time = lambda: time.time() + 60
        from peer.swarm.node import Node
        from protocol.signing import SigningKey

        async def main():
            node = await Node.start(SigningKey(bytes(32)), runtime_dir=Path(sys.argv[1]), run=sys.argv[2],
                                    host="127.0.0.1")
            print((await node.addresses())[0], flush=True)
            await asyncio.to_thread(sys.stdin.read)
            await node.close()

        asyncio.run(main())
        """
    )

    async def scenario() -> None:
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(swarm.runtime_dir), swarm.run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None
            address = await asyncio.to_thread(child.stdout.readline)
            with pytest.raises(ClockDiffers, match="clock is more than 3 s away"):
                await swarm.start(tools.make_key(1), initial_peers=[address.strip()])
        finally:
            child.communicate(timeout=20)

    asyncio.run(scenario())


def test_a_peer_finds_back_when_the_others_were_away(swarm: Any, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.swarm.node.REJOIN_SECONDS", 0.2)
    monkeypatch.setattr("peer.swarm.engine.RPC_SECONDS", 1.0)

    async def scenario() -> None:
        a = await swarm.start(tools.make_key(1))
        address = await a.addresses()
        b = await swarm.start(tools.make_key(2), initial_peers=address)
        await a.close()
        await b.fetch("presence")
        assert b.num_neighbours == 0
        a = await swarm.start(tools.make_key(1), port=int(address[0].split("/")[4]))
        await tools.eventually(lambda: b.num_neighbours == 1 == a.num_neighbours, 30)
        await b.close()
        await a.close()

    asyncio.run(scenario())


def test_addresses_that_reach_farthest_come_first(tools: Any) -> None:
    me, relay = (f"/p2p/{tools.make_key(number).peer_id}" for number in (1, 2))
    best_first = [
        f"/ip4/8.8.8.8/tcp/1{me}",
        f"/ip4/8.8.8.8/udp/1/quic-v1{me}",
        f"/ip4/192.168.1.2/tcp/1{me}",
        f"/ip4/127.0.0.1/tcp/1{me}",
        f"/ip6/fe80::1/tcp/1{me}",
        f"/ip4/8.8.4.4/tcp/1{relay}/p2p-circuit{me}",
    ]
    not_understood = [f"/ip6zone/eth0/ip6/fe80::1/tcp/1{me}", "/ip4/8.8.8.8/tcp/1"]
    for turn in range(6):
        given = [*best_first[turn:], *not_understood, *best_first[:turn], best_first[0]]
        assert preferred(given) == best_first
