from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from peer.swarm.errors import EngineFailed, PortInUse
from peer.swarm.p2pd import P2pd, listen_addresses

pytestmark = pytest.mark.swarm


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_it_starts_with_the_given_identity_and_ends_without_a_trace(runtime_dir: Path, tools: Any) -> None:
    async def scenario() -> None:
        key = tools.make_key(1)
        daemon = await P2pd.launch(key, runtime_dir=runtime_dir, host="127.0.0.1", port=0)
        assert [path.suffix for path in runtime_dir.iterdir()] == [".sock"]  # no key is left there
        assert os.getsid(daemon.pid) == daemon.pid  # Ctrl-C does not reach it
        await daemon.close()
        await daemon.close()
        assert not psutil.pid_exists(daemon.pid)
        assert "ended" in daemon.died.result()

    asyncio.run(scenario())


def test_its_end_is_noticed(runtime_dir: Path, tools: Any) -> None:
    async def scenario() -> None:
        daemon = await P2pd.launch(tools.make_key(1), runtime_dir=runtime_dir, host="127.0.0.1", port=0)
        os.kill(daemon.pid, signal.SIGKILL)
        assert await asyncio.wait_for(daemon.died, 10) == "the libp2p daemon was ended by signal 9"
        await daemon.close()

    asyncio.run(scenario())


def test_a_daemon_that_is_stopped_can_be_closed(runtime_dir: Path, tools: Any) -> None:
    async def scenario() -> None:
        daemon = await P2pd.launch(tools.make_key(1), runtime_dir=runtime_dir, host="127.0.0.1", port=0)
        os.kill(daemon.pid, signal.SIGSTOP)
        await asyncio.wait_for(daemon.close(), 10)
        assert not psutil.pid_exists(daemon.pid)

    asyncio.run(scenario())


def test_a_port_that_another_program_has_is_refused(runtime_dir: Path, tools: Any) -> None:
    async def scenario() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(PortInUse, match=f"port {port} .* choose another with --port"):
                await P2pd.launch(tools.make_key(1), runtime_dir=runtime_dir, host="127.0.0.1", port=port)

    asyncio.run(scenario())


def test_a_port_that_another_peer_has_is_refused_although_libp2p_would_share_it(runtime_dir: Path, tools: Any) -> None:
    async def scenario() -> None:
        port = free_port()
        daemon = await P2pd.launch(tools.make_key(1), runtime_dir=runtime_dir, host="127.0.0.1", port=port)
        with pytest.raises(PortInUse):
            await P2pd.launch(tools.make_key(2), runtime_dir=runtime_dir, host="127.0.0.1", port=port)
        await daemon.close()
        again = await P2pd.launch(tools.make_key(1), runtime_dir=runtime_dir, host="127.0.0.1", port=port)
        await again.close()

    asyncio.run(scenario())


def test_a_port_taken_at_the_last_moment_is_named_too(
    runtime_dir: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon's own words about it are understood."""

    async def scenario() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            monkeypatch.setattr("peer.swarm.p2pd._probe", lambda *_: None)
            with pytest.raises(PortInUse):
                await P2pd.launch(
                    tools.make_key(1),
                    runtime_dir=runtime_dir,
                    host="127.0.0.1",
                    port=other.getsockname()[1],
                )

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("host", "port", "complaint"),
    [
        ("localhost", 0, "not an IP address"),
        ("192.0.2.77", 0, "give an address of this machine"),
        ("127.0.0.1", 65536, "there is no port 65536"),
        ("127.0.0.1", -1, "there is no port -1"),
    ],
)
def test_where_it_cannot_listen(host: str, port: int, complaint: str) -> None:
    with pytest.raises(EngineFailed, match=complaint):
        listen_addresses(host, port)


def test_quic_is_offered_on_the_same_port_but_not_on_loopback() -> None:
    port = free_port()
    assert listen_addresses("127.0.0.1", port) == [f"/ip4/127.0.0.1/tcp/{port}"]
    everywhere = listen_addresses("0.0.0.0", port)
    assert everywhere[:2] == [f"/ip4/0.0.0.0/tcp/{port}", f"/ip4/0.0.0.0/udp/{port}/quic-v1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("0.0.0.0", port))
        assert f"/ip4/0.0.0.0/udp/{port}/quic-v1" not in listen_addresses("0.0.0.0", port)


def test_a_runtime_directory_whose_sockets_would_have_too_long_names_is_refused(tmp_path: Path, tools: Any) -> None:
    async def scenario() -> None:
        deep = tmp_path / ("x" * 90)
        deep.mkdir()
        with pytest.raises(EngineFailed, match="too long a name"):
            await P2pd.launch(tools.make_key(1), runtime_dir=deep, host="127.0.0.1", port=0)

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it takes ORPHAN_SECONDS")
def test_it_dies_with_its_owner_however_that_ends(runtime_dir: Path) -> None:
    program = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from peer.swarm.node import Node
        from protocol.signing import SigningKey

        async def main():
            node = await Node.start(SigningKey(bytes(32)), runtime_dir=Path(sys.argv[1]), run="ab" * 32,
                                    host="127.0.0.1")
            print(node._daemon.pid, flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
        """
    )
    owner = subprocess.Popen([sys.executable, "-c", program, str(runtime_dir)], stdout=subprocess.PIPE)
    daemon = None
    try:
        assert owner.stdout is not None
        daemon = psutil.Process(int(owner.stdout.readline()))
        assert "p2pd" in daemon.name()
        daemon.suspend()  # so that it cannot end by its own insight
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        deadline = time.monotonic() + 3
        while daemon.is_running() and daemon.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "the daemon outlived its owner"
            time.sleep(0.02)
    finally:
        if daemon is not None and daemon.is_running():
            daemon.kill()
        owner.kill()
        owner.wait()
        assert owner.stdout is not None
        owner.stdout.close()
        for path in runtime_dir.iterdir():
            path.unlink()  # whoever is killed cannot tidy up
