"""Types of fields that come from outside: strict, bounded, one way to write each value."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from protocol.errors import RemoteProtocolError
from protocol.signing import public_key_of
from protocol.units import PeerId

MAX_EPOCH = 10**9
MAX_SAMPLES = 10**9  # of one peer in one epoch
MAX_RATE = 10**12  # samples per 1000 seconds
MAX_EXACT = 2**53 - 1  # the largest integer that canonical JSON carries

Line = Annotated[
    str,
    StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]*$"),
]
"""One printable line: no control or direction-changing characters, since people see it on terminals."""
Sha256Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def _refuse_other_ids(value: str) -> str:
    try:
        public_key_of(value)
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from None
    return value


KnownPeer = Annotated[PeerId, AfterValidator(_refuse_other_ids)]
"""A PeerID that carries its Ed25519 key, in its only spelling."""
EpochNumber = Annotated[int, Field(ge=0, le=MAX_EPOCH)]
TermNumber = Annotated[int, Field(ge=0, le=MAX_EPOCH)]
SampleCount = Annotated[int, Field(ge=0, le=MAX_SAMPLES)]
Rate = Annotated[int, Field(ge=0, le=MAX_RATE)]


class Section(BaseModel):
    """Base of everything decoded: unknown keys, wrong types and infinities are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
