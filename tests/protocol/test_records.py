"""The ballot; other records are tested with their admission."""

from typing import Any

import pytest
from pydantic import ValidationError

from protocol.admission import Accepted, Rejected, admit
from protocol.encoding import canonical_bytes
from protocol.fields import MAX_EPOCH, MAX_EXACT, MAX_RATE
from protocol.records import MAX_LINKS_SEEN, MAX_RECORD_SIZE, RECORD_DOMAIN, Ballot, LinkSeen, sign_record
from protocol.signing import SigningKey

KEY = SigningKey(bytes(32))
RUN = "ab" * 32
NOW = 1_750_000_000.0
OTHERS = sorted(SigningKey(n.to_bytes(32, "big")).peer_id for n in range(1, MAX_LINKS_SEEN + 2))
EXPIRES = round((NOW + 30) * 1000)


def ballot(links: list[LinkSeen]) -> Ballot:
    return Ballot(run=RUN, peer=KEY.peer_id, expires=EXPIRES, term=2, epoch=3, throughput=5, links=links)


def test_links_travel_in_the_ballot() -> None:
    own = LinkSeen(peer=KEY.peer_id, up=1, down=2)
    links = sorted([own, LinkSeen(peer=OTHERS[0], up=0, down=5)], key=lambda seen: seen.peer)
    record = ballot(links)
    assert admit(sign_record(record, KEY), RUN, NOW) == Accepted(record)


def test_the_largest_ballot_is_a_record() -> None:
    links = [LinkSeen(peer=peer, up=10**12, down=10**12) for peer in OTHERS[:MAX_LINKS_SEEN]]
    largest = Ballot(
        run=RUN, peer=KEY.peer_id, expires=MAX_EXACT, term=MAX_EPOCH, epoch=MAX_EPOCH, throughput=MAX_RATE, links=links
    )
    assert len(sign_record(largest, KEY)) <= MAX_RECORD_SIZE


SEEN = {"peer": OTHERS[0], "up": 1, "down": 2}


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([{**SEEN, "peer": OTHERS[1]}, SEEN], "sorted"),
        ([SEEN, SEEN], "sorted"),
        ([{**SEEN, "up": -1}], "up"),
        ([{**SEEN, "up": 1.5}], "up"),
        ([{**SEEN, "down": 10**12 + 1}], "down"),
        ([{**SEEN, "up": 0, "down": 0}], "nothing was seen"),
        ([{**SEEN, "peer": "x"}], "peer"),
        ([{**SEEN, "more": 1}], "more"),
        ([{"peer": peer, "up": 1, "down": 1} for peer in OTHERS], "links"),
        (None, "links"),
    ],
)
def test_other_links_are_refused(links: Any, message: str) -> None:
    data = {**ballot([]).model_dump(mode="json"), "links": links}
    canonical = canonical_bytes(data)
    answer = admit(KEY.sign(RECORD_DOMAIN, canonical) + canonical, RUN, NOW)
    assert isinstance(answer, Rejected)
    assert message in answer.reason
    with pytest.raises(ValidationError):
        Ballot.model_validate(data)
