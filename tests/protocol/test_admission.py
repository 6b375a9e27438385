"""Records: signing and the door through which they enter."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.admission import Accepted, Rejected, admit
from protocol.encoding import canonical_bytes
from protocol.errors import LocalProtocolError
from protocol.records import (
    LIFETIME_SECONDS,
    MAX_RECORD_SIZE,
    RECORD_DOMAIN,
    SKEW_SECONDS,
    Ballot,
    PlanVote,
    Presence,
    Progress,
    Record,
    StateOffer,
    record_key,
    sign_record,
)
from protocol.signing import SigningKey

KEY = SigningKey(bytes(32))
OTHER = SigningKey(bytes([1]) * 32)
RUN = "ab" * 32
NOW = 1_750_000_000.0
COMMON: dict[str, Any] = {"run": RUN, "peer": KEY.peer_id, "expires": round((NOW + 30) * 1000)}
ADDRESS = f"/ip4/192.0.2.7/tcp/4001/p2p/{KEY.peer_id}"
RECORDS: list[Record] = [
    Presence(**COMMON, name="Ada's laptop ✓", addresses=[ADDRESS], devices="1 × CPU", state="training"),
    Progress(**COMMON, epoch=3, samples=10, total_samples=500, throughput=120_000),
    Progress(**COMMON, epoch=3, samples=0, total_samples=0, throughput=0, heldout_epoch=3, heldout_microbits=2_100_000),
    Ballot(**COMMON, term=2, epoch=7, throughput=1),
    PlanVote(**COMMON, term=2, plan="0f" * 32),
    StateOffer(**COMMON, epoch=3, root="0f" * 32, size=123),
]


def signed(value: dict[str, Any], key: SigningKey = KEY) -> bytes:
    canonical = canonical_bytes(value)
    return key.sign(RECORD_DOMAIN, canonical) + canonical


def reason(data: bytes, now: float = NOW) -> str:
    answer = admit(data, RUN, now)
    assert isinstance(answer, Rejected)
    assert answer.reason
    assert len(answer.reason) < 300
    return answer.reason


@pytest.mark.parametrize("record", RECORDS)
def test_what_is_signed_is_admitted(record: Record) -> None:
    assert admit(sign_record(record, KEY), RUN, NOW) == Accepted(record)


@pytest.mark.parametrize("record", RECORDS)
def test_freshness(record: Record) -> None:
    data = sign_record(record, KEY)
    expires = NOW + 30
    longest = LIFETIME_SECONDS[record.kind] + SKEW_SECONDS
    assert isinstance(admit(data, RUN, expires - 0.01), Accepted)
    assert "expired" in reason(data, expires)
    assert "expired 70.0 s ago" in reason(data, expires + 70)
    assert isinstance(admit(data, RUN, expires - longest), Accepted)
    assert "clock or ours is wrong" in reason(data, expires - longest - 1)


def test_another_run() -> None:
    assert admit(sign_record(RECORDS[1], KEY), "cd" * 32, NOW) == Rejected("the record belongs to another run")


def test_nobody_speaks_for_another() -> None:
    assert "signature" in reason(signed(RECORDS[3].model_dump(mode="json"), OTHER))
    with pytest.raises(LocalProtocolError):
        sign_record(RECORDS[3], OTHER)


PROGRESS = RECORDS[1].model_dump(mode="json")
PRESENCE = RECORDS[0].model_dump(mode="json")
BALLOT = RECORDS[3].model_dump(mode="json")


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({**PROGRESS, "epoch": -1}, "epoch"),
        ({**PROGRESS, "epoch": 10**9 + 1}, "epoch"),
        ({**PROGRESS, "epoch": 1.5}, "epoch"),
        ({**PROGRESS, "epoch": "3"}, "epoch"),
        ({**PROGRESS, "epoch": True}, "epoch"),
        ({**PROGRESS, "epoch": None}, "epoch"),
        ({**PROGRESS, "throughput": 10**12 + 1}, "throughput"),
        ({**PROGRESS, "more": 1}, "more"),
        ({**PROGRESS, "peer": "someone"}, "peer"),
        ({**PROGRESS, "kind": "presence"}, "name"),
        ({**PROGRESS, "kind": "gossip"}, "kind"),
        ({k: v for k, v in PROGRESS.items() if k != "kind"}, "kind"),
        ({k: v for k, v in PROGRESS.items() if k != "heldout_epoch"}, "every value"),
        ({**BALLOT, "throughput": 0}, "throughput"),
        ({**PRESENCE, "name": "x" * 41}, "name"),
        ({**PRESENCE, "name": "a\x1b[2J"}, "name"),
        ({**PRESENCE, "addresses": [ADDRESS] * 9}, "addresses"),
        ({**PRESENCE, "addresses": [ADDRESS.replace(KEY.peer_id, OTHER.peer_id)]}, "another peer"),
        ({**PRESENCE, "addresses": ["/ip4/192.0.2.7/tcp/4001"]}, "addresses"),
        ({**PRESENCE, "state": "winning"}, "state"),
        ([PROGRESS], "record"),
        (1, "record"),
    ],
)
def test_every_fault_is_named(value: Any, field: str) -> None:
    assert field in reason(signed(value))


@given(st.binary(max_size=MAX_RECORD_SIZE + 200))
def test_any_bytes_are_answered(data: bytes) -> None:
    assert isinstance(admit(data, RUN, NOW), Rejected)


@given(st.binary(min_size=64, max_size=64), st.text(st.characters(exclude_categories=[])))
def test_any_text_is_answered(signature: bytes, text: str) -> None:
    assert isinstance(admit(signature + text.encode("utf-8", "surrogatepass"), RUN, NOW), Rejected)


@given(st.sampled_from(RECORDS), st.data())
def test_altered_records_are_refused(record: Record, data: st.DataObject) -> None:
    whole = bytearray(sign_record(record, KEY))
    at = data.draw(st.integers(0, len(whole) - 1))
    assert isinstance(admit(bytes(whole[:at]), RUN, NOW), Rejected)
    whole[at] ^= data.draw(st.integers(1, 255))
    assert isinstance(admit(bytes(whole), RUN, NOW), Rejected)


def test_nothing_too_large_is_signed_or_read() -> None:
    fullest = {
        **PRESENCE,
        "name": "\U0001f980" * 40,
        "devices": '"' * 200,
        "addresses": [f"/dns4/{'a' * 60}.{'b' * 60}.{'c' * 40}/tcp/65535/p2p/{KEY.peer_id}"] * 8,
    }
    record = Presence.model_validate(fullest)
    assert isinstance(admit(sign_record(record, KEY), RUN, NOW), Accepted), "the fields' bounds leave room"
    larger = record.model_copy(update={"devices": "x" * MAX_RECORD_SIZE})
    with pytest.raises(LocalProtocolError, match="over the 4096 allowed"):
        sign_record(larger, KEY)
    assert "bytes" in reason(signed(larger.model_dump(mode="json")))


def test_keys() -> None:
    assert record_key(RUN, "presence") == f"minga/1/{RUN}/presence"
    assert record_key(RUN, "ballot", 3) == f"minga/1/{RUN}/ballot/3"
    assert record_key(RUN, "plan-vote", 0) == f"minga/1/{RUN}/plan-vote/0"
    with pytest.raises(LocalProtocolError):
        record_key(RUN, "ballot")
    with pytest.raises(LocalProtocolError):
        record_key(RUN, "progress", 3)
