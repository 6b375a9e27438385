"""Whose fault it is that a round fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from peer.swarm.errors import EngineFailed, PeerUnreachable, RoundFailed, StreamFailed
from peer.swarm.parts import Contribution
from peer.swarm.stream import Header
from protocol.units import PeerId


def failure_in(header: Header, field: str, reporter: PeerId, members: Sequence[Contribution]) -> RoundFailed:
    """What another member says of a round: `{<field>: reason, "blamed": [members], "pace": …}`, bounded, printable."""
    reason, blamed = header.get(field), header.get("blamed")
    ids = {member.peer for member in members}
    text = "".join(c for c in reason[:200] if c.isprintable()) if isinstance(reason, str) else "no reason given"
    named = tuple(peer for peer in blamed if peer in ids) if isinstance(blamed, list) else ()
    return RoundFailed(named, text, reported_by=reporter, is_pace=header.get("pace") is True)


def described(failure: RoundFailed, field: str) -> Header:
    """The failure as `failure_in` reads it."""
    return {field: failure.reason[:200], "blamed": list(failure.blamed), "pace": failure.is_pace}


@contextlib.contextmanager
def blaming(peer: PeerId) -> Iterator[None]:
    """Failures of streams with `peer` become failures of the round, by its fault."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise _as_round_failure(first(group), peer) from None
    except (StreamFailed, PeerUnreachable, EngineFailed) as error:
        raise _as_round_failure(error, peer) from None


def _as_round_failure(error: BaseException, peer: PeerId) -> BaseException:
    if isinstance(error, StreamFailed | PeerUnreachable):
        return RoundFailed((peer,), str(error))
    return RoundFailed((), str(error)) if isinstance(error, EngineFailed) else error


def first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What happened first; the rest followed from it."""
    cause = group.exceptions[0]
    return first(cause) if isinstance(cause, BaseExceptionGroup) else cause
