from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.encoding import canonical_bytes, decode_canonical
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.manifest import parse_manifest
from protocol.plan import Group, Member, Plan, SlowMember, decide, genesis
from protocol.signing import SigningKey

RUN = "ab" * 32
PEERS = sorted(SigningKey(bytes([n]) * 32).peer_id for n in range(8))
A, B, C, D, E = PEERS[:5]
STEP = (Member(A, 5, 7, 1), Member(C, 6, 8, 0), Member(E, 7, 9, 2))
SLOW = (SlowMember(B, 1, 2, 4, (C, A)), SlowMember(D, 2, 3, 1, (E, C)))
PLAN = Plan(2, (Group(STEP),), SLOW, "float16", 4265, 1900, RUN)


def test_where_everybody_is() -> None:
    assert [PLAN.lane_of(peer) for peer in PEERS[:6]] == ["step", "slow", "step", "slow", "step", None]
    assert PLAN.group_of(C) == Group(STEP)
    assert PLAN.group_of(B) is None
    assert PLAN.slow_member(B) == SLOW[0]
    assert PLAN.slow_member(A) is None
    assert PLAN.weights == {A: 5, B: 1, C: 6, D: 2, E: 7}


def test_what_is_encoded_is_read() -> None:
    assert Plan.from_data(decode_canonical(canonical_bytes(PLAN.to_data()))) == PLAN


def test_genesis_is_the_host_alone() -> None:
    manifest = parse_manifest({"run": {"name": "x"}, "host": A, "training": {"target_batch_size": 99}})
    plan = genesis(manifest, RUN)
    assert plan.term == 0
    assert [(member.peer, member.quota) for member in plan.groups[0].members] == [(A, 99)]
    assert plan.slow == ()
    assert plan.compression == "none"
    assert Plan.from_data(plan.to_data()) == plan


def test_genesis_keeps_to_the_codec_of_the_run() -> None:
    manifest = parse_manifest({"run": {"name": "x"}, "host": A, "averaging": {"compression": "uniform8"}})
    assert genesis(manifest, RUN).compression == "uniform8"


def test_the_digest_covers_everything() -> None:
    groups = PLAN.groups
    others = [
        Plan(3, groups, SLOW, "float16", 4265, 1900, RUN),
        Plan(2, groups, SLOW, "float16", 4266, 1900, RUN),
        Plan(2, groups, SLOW, "float16", 4265, 1901, RUN),
        Plan(2, groups, SLOW, "float16", 4265, 1900, "cd" * 32),
        Plan(2, groups, SLOW, "none", 4265, 1900, RUN),
        Plan(2, groups, SLOW[:1], "float16", 4265, 1900, RUN),
        Plan(2, (Group(STEP[1:]),), SLOW, "float16", 4265, 1900, RUN),
        *(Plan(2, (Group((one, *STEP[1:])),), SLOW, "float16", 4265, 1900, RUN) for one in OTHER_MEMBERS),
        *(Plan(2, groups, (one, SLOW[1]), "float16", 4265, 1900, RUN) for one in OTHER_SLOW_MEMBERS),
    ]
    assert len({plan.digest for plan in [PLAN, *others]}) == 1 + len(others)


OTHER_MEMBERS = [Member(PEERS[6], 5, 7, 1), Member(A, 6, 7, 1), Member(A, 5, 8, 1), Member(A, 5, 7, 2)]
OTHER_SLOW_MEMBERS = [
    SlowMember(PEERS[6], 1, 2, 4, (C, A)),
    SlowMember(B, 2, 2, 4, (C, A)),
    SlowMember(B, 1, 3, 4, (C, A)),
    SlowMember(B, 1, 2, 8, (C, A)),
    SlowMember(B, 1, 2, 4, (A, C)),
    SlowMember(B, 1, 2, 4, (C, A), promote=True),
]

DATA = PLAN.to_data()
FIRST, SECOND, THIRD = DATA["groups"][0]["members"]
GUEST, OTHER_GUEST = DATA["slow"]


def stepping(*members: Any) -> dict[str, Any]:
    return {**DATA, "groups": [{"members": list(members)}]}


def slow(*members: Any) -> dict[str, Any]:
    return {**DATA, "slow": list(members)}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "plan"),
        ([], "plan"),
        ({**DATA, "more": 1}, "more"),
        ({**DATA, "term": -1}, "term"),
        ({**DATA, "groups": []}, "groups"),
        ({**DATA, "groups": DATA["groups"] * 2}, "groups"),
        ({**DATA, "compression": "auto"}, "compression"),
        ({**DATA, "deadline_milliseconds": 0}, "deadline"),
        ({**DATA, "pace_milliseconds": 0}, "pace"),
        ({key: value for key, value in DATA.items() if key != "slow"}, "slow"),
        (stepping(), "members"),
        (stepping(SECOND, FIRST, THIRD), "not sorted"),
        (stepping(FIRST, FIRST, SECOND, THIRD), "twice"),
        (stepping(*({**one, "share": 0} for one in (FIRST, SECOND, THIRD))), "nobody reduces"),
        (stepping({**FIRST, "quota": 0}, SECOND, THIRD), "quota"),
        (stepping({**FIRST, "quota": 2.0}, SECOND, THIRD), "quota"),
        (stepping({**FIRST, "peer": "x"}, SECOND, THIRD), "peer"),
        (slow(OTHER_GUEST, GUEST), "not sorted"),
        (slow(GUEST, GUEST), "twice"),
        (slow({**GUEST, "peer": A}), "twice"),
        (slow({**GUEST, "cadence": 3}), "power of two"),
        (slow({**GUEST, "cadence": 0}), "cadence"),
        (slow({**GUEST, "cadence": 2048}), "cadence"),
        (slow({**GUEST, "quota": 0}), "quota"),
        (slow({**GUEST, "promote": 1}), "promote"),
        (slow({key: value for key, value in GUEST.items() if key != "promote"}), "promote"),
        (slow({**GUEST, "sponsors": []}), "sponsors"),
        (slow({**GUEST, "sponsors": [A]}), "distinct members"),
        (slow({**GUEST, "sponsors": [A, A]}), "distinct members"),
        (slow({**GUEST, "sponsors": [A, D]}), "distinct members"),
        (slow({**GUEST, "sponsors": [A, C, E]}), "sponsors"),
    ],
)
def test_other_data_is_no_plan(value: Any, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        Plan.from_data(value)


def test_a_lone_peer_sponsors_alone() -> None:
    alone = {**stepping(FIRST), "slow": [{**GUEST, "sponsors": [A]}]}
    assert Plan.from_data(alone).slow[0].sponsors == (A,)


def test_two_thirds_decide() -> None:
    weights = {"a": 1, "b": 1, "c": 1}
    assert decide({"a": "x", "b": "x"}, weights)[0] == "x"
    assert decide({"a": "x", "b": "y"}, weights)[0] is None
    assert decide({"a": "x"}, weights) == (None, "33 % of the live weight voted for plan x; two thirds are needed")
    assert decide({"a": "x", "b": "x"}, {**weights, "silent": 1})[0] is None
    assert decide({}, weights) == (None, "nobody with weight has voted")


def test_votes_without_weight_are_ignored() -> None:
    votes = {"stranger": "y", "newcomer": "y", "a": "x"}
    assert decide(votes, {"a": 1, "newcomer": 0})[0] == "x"
    assert decide({"stranger": "y"}, {})[0] is None
    with pytest.raises(LocalProtocolError):
        decide(votes, {"a": -1})


names = st.sampled_from("abcdefgh")


@given(st.dictionaries(names, st.sampled_from("xyz")), st.dictionaries(names, st.integers(0, 10)))
def test_no_two_plans_can_be_decided(votes: dict[str, str], weights: dict[str, int]) -> None:
    decided, reason = decide(votes, weights)
    assert reason
    whole = sum(weights.values())
    support = {plan: sum(weights.get(peer, 0) for peer, vote in votes.items() if vote == plan) for plan in "xyz"}
    enough = {plan for plan, weight in support.items() if weight and 3 * weight >= 2 * whole}
    assert enough == ({decided} if decided else set())
