"""Which records this peer stores for others and believes: hivemind's validator, asking `protocol.admission`."""

from __future__ import annotations

import time
from typing import Any

from hivemind.dht import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import MSGPackSerializer

from protocol.admission import Accepted, admit
from protocol.records import MAX_RECORD_SIZE, Ballot, PlanVote, Record, record_key
from protocol.units import PeerId, RunId, UnixSeconds

MSGPACK_OVERHEAD = 3  # bytes, before a byte string of this length
MAX_REMEMBERED = 4096  # records


class RecordValidator(RecordValidatorBase):  # type: ignore[misc]  # hivemind carries no types
    """Accepts a DHT record only if it is a signed record of the run, in its place: nothing else is stored.

    The same bytes come again and again (from each replica, at each look), so those once admitted are remembered:
    until they expire, they stay admissible.
    """

    def __init__(self, run: RunId) -> None:
        self._run = run
        self._admitted: dict[bytes, Record] = {}

    def validate(self, record: DHTRecord) -> bool:
        """Whether the record's value may stand under this key and subkey until this expiration."""
        if len(record.value) > MAX_RECORD_SIZE + MSGPACK_OVERHEAD:
            return False
        data = unwrap(record.value)
        admitted = self.admit(data, time.time()) if data is not None else None
        return admitted is not None and (
            record.key == key_bytes(self._run, admitted)
            and record.subkey == MSGPackSerializer.dumps(subkey(admitted.peer))
            and record.expiration_time == expiration(admitted)
        )

    def admit(self, data: bytes, now: UnixSeconds) -> Record | None:
        """The record in `data` if it is admissible now, else None."""
        known = self._admitted.get(data)
        if known is not None:
            return known if expiration(known) > now else None
        verdict = admit(data, self._run, now)
        if not isinstance(verdict, Accepted):
            return None
        if len(self._admitted) >= MAX_REMEMBERED:
            self._forget(now)
        self._admitted[data] = verdict.record
        return verdict.record

    def _forget(self, now: UnixSeconds) -> None:
        living = {data: record for data, record in self._admitted.items() if expiration(record) > now}
        self._admitted = living if len(living) < MAX_REMEMBERED else {}


def unwrap(value: Any) -> bytes | None:
    """The bytes in a value as hivemind serializes them (msgpack), without giving hostile bytes to its parser."""
    if not isinstance(value, bytes) or not value:
        return None
    head = {0xC4: 2, 0xC5: 3}.get(value[0], len(value))
    data = value[head:]
    return data if MSGPackSerializer.dumps(data) == value else None


def key_bytes(run: RunId, record: Record) -> bytes:
    term = record.term if isinstance(record, Ballot | PlanVote) else None
    key: bytes = DHTID.generate(source=record_key(run, record.kind, term)).to_bytes()
    return key


def subkey(peer: PeerId) -> str:
    """What tells the records under one key apart."""
    return peer


def expiration(record: Record) -> UnixSeconds:
    """The DHT's expiration of a record: its milliseconds in seconds, the same double everywhere."""
    return record.expires / 1000
