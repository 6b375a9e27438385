import base58
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.encoding import digest
from protocol.errors import IncompatibleVersion, InvalidInvite, LocalProtocolError
from protocol.invite import Invite, format_invite, parse_invite
from protocol.signing import SigningKey

PEERS = [SigningKey(bytes([n]) * 32).peer_id for n in range(3)]
RUN = bytes(range(32)).hex()
ADDRESSES = tuple(f"/ip4/192.0.2.{n}/tcp/4001/p2p/{peer}" for n, peer in enumerate(PEERS))
INVITE = Invite(RUN, ADDRESSES)
TEXT = format_invite(INVITE)

runs = st.binary(min_size=32, max_size=32).map(bytes.hex)
addresses = st.builds(
    lambda host, port, peer: f"/ip4/{host}/tcp/{port}/p2p/{peer}",
    st.ip_addresses(v=4).map(str),
    st.integers(1, 65535),
    st.sampled_from(PEERS),
)


def sealed(body: str) -> str:
    """With the right sum, whatever it says."""
    return f"{body}&sum={base58.b58encode(digest('invite', body.encode())).decode()[:6]}"


@given(runs, st.lists(addresses, min_size=1, max_size=16))
def test_what_is_written_is_read(run: str, peers: list[str]) -> None:
    invite = Invite(run, tuple(peers))
    assert parse_invite(format_invite(invite)) == invite


def test_the_form() -> None:
    assert TEXT.startswith(f"minga:1:{base58.b58encode(bytes(range(32))).decode()}?peer=/ip4/192.0.2.0/tcp/4001/p2p/")
    assert TEXT.count("&peer=") == 2
    assert TEXT[-11:-6] == "&sum="


@given(st.data())
def test_white_space_from_chats_and_terminals_is_overlooked(data: st.DataObject) -> None:
    text = TEXT
    for _ in range(data.draw(st.integers(0, 5))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from([" ", "\n", "\r\n  ", "\t", "\u200b", "\u00a0"])) + text[at:]
    assert parse_invite(text) == INVITE


@given(st.integers(6, len(TEXT) - 1))
def test_every_cut_is_recognised(length: int) -> None:
    with pytest.raises(InvalidInvite, match="cut short or mistyped"):
        parse_invite(TEXT[:length])


@given(st.integers(8, len(TEXT) - 1), st.characters(min_codepoint=33, max_codepoint=126))
def test_every_wrong_character_is_recognised(at: int, character: str) -> None:
    if TEXT[at] != character:
        with pytest.raises(InvalidInvite, match="cut short or mistyped"):
            parse_invite(TEXT[:at] + character + TEXT[at + 1 :])


@pytest.mark.parametrize("text", ["", "hello", "https://example.org/minga", "ming", "magnet:?xt=urn", TEXT[1:]])
def test_something_else_is_called_so(text: str) -> None:
    with pytest.raises(InvalidInvite, match="is not an invite"):
        parse_invite(text)


@pytest.mark.parametrize("version", ["0", "2", "123456789"])
def test_another_version(version: str) -> None:
    with pytest.raises(IncompatibleVersion, match=f"version {version} and this minga reads version 1"):
        parse_invite(TEXT.replace("minga:1:", f"minga:{version}:"))


PREFIX = TEXT.partition("?")[0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (PREFIX + "?", "does not list 1 to 16 peers"),
        (PREFIX + "?peer=" + "&peer=".join(ADDRESSES * 6), "does not list 1 to 16 peers"),
        (PREFIX + f"?peer={ADDRESSES[0]}&relay=x", "does not list 1 to 16 peers"),
        (PREFIX + "?peer=/ip4/192.0.2.1/tcp/1", "does not end with"),
        ("minga:1:abc?peer=" + ADDRESSES[0], "names no run"),
        ("minga:1:0OIl?peer=" + ADDRESSES[0], "names no run"),
        ("minga:1:?peer=" + ADDRESSES[0], "names no run"),
    ],
)
def test_nonsense_with_a_right_sum(body: str, message: str) -> None:
    with pytest.raises(InvalidInvite, match=message):
        parse_invite(sealed(body))


@given(st.text())
def test_any_text_is_answered(text: str) -> None:
    with pytest.raises((InvalidInvite, IncompatibleVersion)):
        parse_invite(text)


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_after_the_scheme_is_answered(text: str) -> None:
    with pytest.raises((InvalidInvite, IncompatibleVersion)):
        parse_invite("minga:1:" + text)


@pytest.mark.parametrize(
    "peers", [(), ADDRESSES * 6, ("/ip4/192.0.2.1/tcp/1",), (f"{ADDRESSES[0]}&peer={ADDRESSES[1]}",)]
)
def test_an_invite_that_could_not_be_read_is_not_written(peers: tuple[str, ...]) -> None:
    with pytest.raises(LocalProtocolError):
        format_invite(Invite(RUN, peers))
