"""Which records from the network count: the only door through which they enter.

`admit` never raises, whatever the bytes: faults of others are ordinary here, so they are values with a
reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from protocol.encoding import canonical_bytes, decode_canonical
from protocol.errors import RemoteProtocolError
from protocol.records import LIFETIME_SECONDS, MAX_RECORD_SIZE, RECORD_DOMAIN, SKEW_SECONDS, Record
from protocol.signing import SIGNATURE_SIZE, is_signed_by
from protocol.units import RunId, UnixSeconds

_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


@dataclass(frozen=True)
class Accepted:
    record: Record


@dataclass(frozen=True)
class Rejected:
    reason: str
    """one clause, fit for a log"""


def admit(data: bytes, run: RunId, now: UnixSeconds) -> Accepted | Rejected:
    """Check size, canonical form, schema, run, freshness and signature, cheapest first.

    Fresh means that the record expires after `now`, and not later than its kind's lifetime allows (plus
    `SKEW_SECONDS`, for clocks that run ahead).
    """
    if not SIGNATURE_SIZE < len(data) <= MAX_RECORD_SIZE:
        return Rejected(f"a record of {len(data)} bytes; allowed are {SIGNATURE_SIZE + 1} to {MAX_RECORD_SIZE}")
    signature, canonical = data[:SIGNATURE_SIZE], data[SIGNATURE_SIZE:]
    try:
        record = _RECORD.validate_python(decode_canonical(canonical, MAX_RECORD_SIZE))
    except RemoteProtocolError as error:
        return Rejected(str(error))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "record"
        return Rejected(f"{place[:80]}: {first['msg'][:160]}")
    if canonical_bytes(record.model_dump(mode="json")) != canonical:
        return Rejected("the record leaves out fields: it must state every value")
    if record.run != run:
        return Rejected("the record belongs to another run")
    left = record.expires / 1000 - now
    if left <= 0:
        return Rejected(f"the record expired {-left:.1f} s ago")
    if left > LIFETIME_SECONDS[record.kind] + SKEW_SECONDS:
        return Rejected(f"a {record.kind} record may not live for {left:.0f} s more: its clock or ours is wrong")
    if not is_signed_by(record.peer, signature, RECORD_DOMAIN, canonical):
        return Rejected(f"the signature is not that of {record.peer}")
    return Accepted(record)
