import pytest

from protocol.errors import RemoteProtocolError
from protocol.multiaddr import peer_at
from protocol.signing import SigningKey

PEER = SigningKey(bytes(32)).peer_id
RELAY = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/192.0.2.7/tcp/4001",
        "/ip4/127.0.0.1/udp/4001/quic-v1",
        "/ip6/2001:db8::1/tcp/65535",
        "/ip6/::/udp/1/quic-v1/webtransport/certhash/uEiAkH5a4DPGKUuOBjYw0CgwjvcJCJMD2K",
        "/dns4/peer-1.example.org/tcp/443/wss",
        "/dns/localhost/tcp/1",
        f"/ip4/192.0.2.7/tcp/4001/p2p/{RELAY}/p2p-circuit",
    ],
)
def test_addresses_that_are_dialled(address: str) -> None:
    assert peer_at(f"{address}/p2p/{PEER}") == PEER


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/",
        PEER,
        f"/p2p/{PEER}",
        "/ip4/192.0.2.7/tcp/4001",
        "/ip4/192.0.2.7/tcp/4001/p2p",
        "/ip4/192.0.2.7/tcp/4001/p2p/",
        f"/ip4/192.0.2.7/tcp/4001/p2p/{RELAY}",
        f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER[:-1]}",
        f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER} ",
        f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER}/p2p-circuit",
        f"/ip4/192.0.2.300/tcp/4001/p2p/{PEER}",
        f"/ip4/192.0.2.07/tcp/4001/p2p/{PEER}",
        f"/ip4/::1/tcp/4001/p2p/{PEER}",
        f"/ip6/fe80::1%eth0/tcp/4001/p2p/{PEER}",
        f"/ip4/192.0.2.7/tcp/65536/p2p/{PEER}",
        f"/ip4/192.0.2.7/tcp/-1/p2p/{PEER}",
        f"/ip4/192.0.2.7/tcp/04001/p2p/{PEER}",
        f"/ip4/192.0.2.7/carrier-pigeon/p2p/{PEER}",
        f"/dns4/a b/tcp/1/p2p/{PEER}",
        f"/dns4/-a.example/tcp/1/p2p/{PEER}",
        f"/unix/tmp/socket/p2p/{PEER}",
        f"ip4/192.0.2.7/tcp/4001/p2p/{PEER}",
        f"/ip4/192.0.2.7//tcp/4001/p2p/{PEER}",
        f"/dns4/{'a' * 240}/tcp/1/p2p/{PEER}",
    ],
)
def test_others_are_refused(address: str) -> None:
    with pytest.raises(RemoteProtocolError):
        peer_at(address)
