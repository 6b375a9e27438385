from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.encoding import canonical_bytes
from protocol.errors import RemoteProtocolError
from protocol.plan import MAX_GROUP_SIZE
from protocol.round_messages import MAX_MESSAGE_SIZE, CountedMember, RoundMessage
from protocol.signing import SigningKey

PEERS = sorted(SigningKey(bytes([n]) * 32).peer_id for n in range(3))
PLAIN: dict[str, Any] = {
    "run": "ab" * 32,
    "epoch": 7,
    "term": 1,
    "plan": "cd" * 32,
    "lineage": "ef" * 32,
    "history": 12,
    "started": 1_750_000_000_000,
    "sequence": 3,
    "attempt": 0,
    "stage": "averaged",
    "samples": 10,
    "suspects": [],
    "blames": [],
    "members": [{"peer": PEERS[0], "samples": 10}, {"peer": PEERS[1], "samples": 0}],
}


def test_what_is_written_is_read() -> None:
    message = RoundMessage.model_validate(PLAIN)
    assert RoundMessage.from_bytes(message.to_bytes()) == message
    assert message.counted == ((PEERS[0], 10), (PEERS[1], 0))


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"epoch": -1},
        {"epoch": 1.5},
        {"attempt": "0"},
        {"stage": "done"},
        {"samples": -1},
        {"suspects": [PEERS[1], PEERS[0]]},
        {"suspects": [PEERS[0], PEERS[0]]},
        {"suspects": ["someone"]},
        {"suspects": [PEERS[0] + "\n"]},
        {"blames": [PEERS[2], PEERS[1]]},
        {"members": []},
        {"members": list(reversed(PLAIN["members"]))},
        {"members": [{"peer": PEERS[0], "samples": True}]},
        {"lineage": "EF" * 32},
    ],
)
def test_other_messages_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match=next(iter(change))):
        RoundMessage.from_bytes(canonical_bytes({**PLAIN, **change}))


@given(st.binary(max_size=300), st.data())
def test_any_bytes_are_answered(data: bytes, draw: st.DataObject) -> None:
    whole = bytearray(RoundMessage.model_validate(PLAIN).to_bytes())
    at = draw.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= draw.draw(st.integers(1, 255))
    for attempt in (data, bytes(whole), bytes(whole[:at])):
        try:
            message = RoundMessage.from_bytes(attempt)
        except RemoteProtocolError:
            continue
        assert message.to_bytes() == attempt


def test_the_largest_message_fits() -> None:
    peers = sorted(SigningKey(n.to_bytes(32, "big")).peer_id for n in range(MAX_GROUP_SIZE))
    message = RoundMessage.model_validate(
        {
            **PLAIN,
            "suspects": peers,
            "blames": peers,
            "members": [CountedMember(peer=peer, samples=10**9) for peer in peers],
        }
    )
    data = message.to_bytes()
    assert len(data) <= MAX_MESSAGE_SIZE
    assert RoundMessage.from_bytes(data) == message
