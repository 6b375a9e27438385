"""One machine and what its surroundings tell it. Whole rounds are in `test_round_simulation.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from protocol.errors import LocalProtocolError
from protocol.lineage import Counted, Lineage
from protocol.round import FETCH_TRIES, MAX_FAILURES, UNREACHABLE_HINTS, RoundMachine
from protocol.round_messages import (
    AverageFailed,
    AverageFinished,
    CancelAverage,
    CatchUp,
    Commit,
    CountedMember,
    Effect,
    Event,
    FetchFailed,
    FetchFinished,
    FetchResult,
    GatheringFinished,
    MessageReceived,
    PeerAhead,
    PeerBehind,
    PeerLeft,
    PeerUnreachable,
    PlanDiffers,
    RoundMessage,
    Send,
    StartAverage,
    Tick,
)
from protocol.signing import SigningKey

RUN, PLAN = "ab" * 32, "cd" * 32
LINEAGE = Lineage.genesis(RUN)
ME, ANN, BOB, CAT = PEERS = sorted(SigningKey(bytes([n]) * 32).peer_id for n in range(4))
GRACE, AVERAGING, PACE, DEADLINE = 5.0, 20.0, 8.0, 100.0
BOTH = ((ME, 10), (ANN, 20), (BOB, 30))
SAMPLES = {ANN: 20, BOB: 30, CAT: 40}

E = TypeVar("E")


class Bench:
    """A machine, its clock, and what it has done."""

    def __init__(self, members: Sequence[str] = (ME, ANN, BOB), **options: Any) -> None:
        self.machine = RoundMachine(
            **{
                "run": RUN,
                "epoch": 7,
                "me": ME,
                "members": members,
                "term": 1,
                "plan_digest": PLAN,
                "lineage": LINEAGE,
                "grace_seconds": GRACE,
                "averaging_seconds": AVERAGING,
                "pace_seconds": PACE,
                "gathering_deadline": DEADLINE,
                "started": 1000,
                **options,
            }
        )
        self.now = 50.0
        self.sequence = 0
        self.effects: list[Effect] = []

    def happens(self, event: Event, after: float = 0.0) -> list[Effect]:
        self.now += after
        self.effects = self.machine.handle(event, self.now)
        return self.effects

    def hears(
        self, peer: str, stage: str = "ready", attempt: int = 0, after: float = 0.0, **fields: Any
    ) -> list[Effect]:
        self.sequence += 1
        members: tuple[Counted, ...] = fields.pop("members", ())
        message = RoundMessage.model_validate(
            {
                "run": RUN,
                "epoch": 7,
                "term": 1,
                "plan": PLAN,
                "lineage": LINEAGE.digest,
                "history": LINEAGE.samples,
                "started": 2000,
                "sequence": self.sequence,
                "attempt": attempt,
                "stage": stage,
                "samples": 0 if stage == "gathering" else SAMPLES[peer],
                "suspects": [],
                "blames": [],
                "members": [CountedMember(peer=p, samples=n) for p, n in members],
                **fields,
            }
        )
        return self.happens(MessageReceived(peer, message))

    def waits_until_due(self) -> list[Effect]:
        """Call the machine at its deadlines until it has something new to say."""
        said = self.machine.message
        for _ in range(1000):
            deadline = self.machine.deadline()
            assert deadline is not None
            assert deadline >= self.now
            self.now = deadline
            self.happens(Tick())
            if self.machine.message != said:
                return self.effects
        raise AssertionError("nothing happened")

    def did(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def averages(self) -> Bench:
        """All three are ready and average."""
        self.happens(GatheringFinished(10))
        self.hears(ANN)
        self.hears(BOB)
        assert self.did(StartAverage) == [StartAverage(0, BOTH)]
        return self


def test_a_peer_alone_commits_its_own_sum() -> None:
    bench = Bench([ME])
    assert bench.happens(GatheringFinished(10)) == [StartAverage(0, ((ME, 10),))]
    (commit,) = bench.happens(AverageFinished(0), 1)
    assert commit == Commit(0, ((ME, 10),), LINEAGE.after(7, 0, ((ME, 10),)), "all votes are in")
    assert bench.machine.deadline() is None
    assert bench.machine.message.stage == "committed"
    assert bench.happens(Tick()) == []


def test_a_round_of_three() -> None:
    bench = Bench()
    assert bench.machine.deadline() is None, "only the end of gathering brings us further"
    assert bench.hears(ANN) == []
    assert {effect.peer for effect in bench.happens(GatheringFinished(10)) if isinstance(effect, Send)} == {ANN, BOB}
    assert bench.did(Send)[0].message.stage == "ready"
    assert bench.did(Send)[0].message.samples == 10
    bench.hears(BOB)
    assert bench.did(StartAverage) == [StartAverage(0, BOTH)]
    bench.happens(AverageFinished(0))
    assert bench.did(Send)[0].message.stage == "averaged"
    assert bench.did(Send)[0].message.counted == BOTH
    assert bench.hears(ANN, "averaged", members=BOTH) == []
    bench.hears(BOB, "averaged", members=BOTH)
    assert bench.did(Commit) == [Commit(0, BOTH, LINEAGE.after(7, 0, BOTH), "all votes are in")]


def test_those_who_are_waited_for_are_asked_again_and_again() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.hears(ANN)
    for _ in range(5):
        assert bench.machine.deadline() == pytest.approx(bench.now + 1.0)
        bench.now = bench.machine.deadline() or 0.0
        bench.happens(Tick())
        assert [effect.peer for effect in bench.did(Send)] == [BOB]


def test_who_still_gathers_has_until_the_deadline_and_grace() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.hears(ANN)
    bench.hears(BOB, "gathering")
    bench.waits_until_due()
    assert bench.now == DEADLINE + GRACE
    assert bench.did(StartAverage) == [], "Ann has to agree first"
    assert bench.machine.suspects == {BOB: "was still gathering"}
    assert bench.did(Send)[0].message.suspects == [BOB]
    bench.hears(ANN, attempt=1, suspects=[BOB])
    assert bench.did(StartAverage) == [StartAverage(1, ((ME, 10), (ANN, 20)))]


def test_who_is_late_within_grace_is_waited_for() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.hears(ANN)
    bench.now = DEADLINE + GRACE - 0.1
    bench.hears(BOB)
    assert bench.did(StartAverage) == [StartAverage(0, BOTH)]


def test_a_late_peer_gives_the_others_grace_from_its_own_readiness() -> None:
    bench = Bench()
    bench.now = DEADLINE + 60
    bench.happens(GatheringFinished(10))
    bench.waits_until_due()
    assert bench.now == DEADLINE + 60 + GRACE


def test_refused_deliveries_shorten_the_wait() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.hears(ANN)
    for n in range(UNREACHABLE_HINTS):
        assert not bench.machine.suspects, n
        bench.happens(PeerUnreachable(BOB), 0.1)
    assert bench.machine.suspects == {BOB: "cannot be reached"}


@pytest.mark.parametrize("sign", ["message", "behind"])
def test_a_sign_of_life_resets_the_count(sign: str) -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.hears(ANN)
    for _ in range(UNREACHABLE_HINTS - 1):
        bench.happens(PeerUnreachable(BOB), 0.1)
    if sign == "message":
        bench.hears(BOB, "gathering")
    else:
        bench.happens(PeerBehind(BOB, 6))
    bench.happens(PeerUnreachable(BOB), 0.1)
    assert not bench.machine.suspects


def test_who_reaches_nobody_takes_the_full_time() -> None:
    """It may be this peer that is cut off."""
    bench = Bench()
    bench.happens(GatheringFinished(10))
    for _ in range(5):
        bench.happens(PeerUnreachable(ANN), 0.1)
        bench.happens(PeerUnreachable(BOB), 0.1)
    assert not bench.machine.suspects
    bench.waits_until_due()
    assert bench.now == DEADLINE + GRACE
    assert bench.did(StartAverage) == [StartAverage(1, ((ME, 10),))]


def test_of_two_the_survivor_goes_on_at_once() -> None:
    bench = Bench([ME, ANN])
    bench.happens(GatheringFinished(10))
    for _ in range(UNREACHABLE_HINTS):
        bench.happens(PeerUnreachable(ANN), 0.1)
    assert bench.did(StartAverage) == [StartAverage(1, ((ME, 10),))]


def test_a_farewell_is_believed() -> None:
    bench = Bench([ME, ANN])
    bench.happens(GatheringFinished(10))
    bench.happens(PeerLeft(ANN))
    assert bench.did(StartAverage) == [StartAverage(1, ((ME, 10),))]


def test_suspicion_spreads() -> None:
    bench = Bench(PEERS)
    bench.happens(GatheringFinished(10))
    bench.hears(ANN)
    bench.hears(BOB, attempt=1, suspects=[CAT])
    assert set(bench.machine.suspects) == {CAT}
    assert bench.did(Send)[0].message.attempt == 1
    bench.hears(ANN, attempt=1, suspects=[CAT])
    assert bench.did(StartAverage) == [StartAverage(1, BOTH)]


def test_different_participants_never_share_an_attempt() -> None:
    bench = Bench(PEERS)
    bench.happens(GatheringFinished(10))
    bench.happens(PeerLeft(CAT))
    assert bench.machine.message.attempt == 1
    bench.hears(ANN, attempt=1, suspects=[BOB])
    assert bench.machine.message.attempt == 2
    assert bench.machine.message.suspects == [BOB, CAT]


def test_one_member_cannot_persuade_us_to_go_on_without_the_majority() -> None:
    bench = Bench([*PEERS, extra := SigningKey(bytes([9]) * 32).peer_id])
    bench.happens(GatheringFinished(10))
    bench.hears(ANN, attempt=1, suspects=sorted([BOB, CAT, extra]))
    assert not bench.machine.suspects


def test_who_answers_has_twice_the_time_of_who_does_not() -> None:
    """It may itself be waiting for somebody who does not."""
    bench = Bench().averages()
    fails_everywhere(bench, 0, {})
    began = bench.now
    while not bench.machine.suspects:
        bench.now = bench.machine.deadline() or 0.0
        bench.happens(Tick())
        if bench.now < began + 2 * GRACE:
            bench.hears(ANN, "failed", members=BOTH)
        if bench.now < began + GRACE:
            assert not bench.machine.suspects
    assert bench.machine.suspects == {BOB: "fell silent or behind"}
    assert bench.now == began + GRACE
    bench.hears(ANN, "failed", members=BOTH)
    began = bench.now
    while set(bench.machine.suspects) == {BOB}:
        bench.now = bench.machine.deadline() or 0.0
        bench.happens(Tick())
        bench.hears(ANN, "failed", members=BOTH)
    assert bench.now == began + 2 * GRACE


def test_who_goes_on_without_those_we_wait_for_is_joined_when_we_give_them_up() -> None:
    dan = SigningKey(bytes([9]) * 32).peer_id
    bench = Bench([*PEERS, dan])
    bench.happens(GatheringFinished(10))
    bench.happens(PeerLeft(CAT))
    suspects = sorted([BOB, CAT, dan])
    while bench.now < DEADLINE + GRACE:
        bench.hears(ANN, attempt=3, suspects=suspects)
        assert set(bench.machine.suspects) == {CAT}, "a majority is given up only by what we see ourselves"
        bench.now = bench.machine.deadline() or 0.0
        bench.happens(Tick())
    assert set(bench.machine.suspects) == set(suspects)
    assert bench.did(StartAverage) == [StartAverage(3, ((ME, 10), (ANN, 20)))]


def test_who_is_excluded_steps_out_and_fetches_the_result() -> None:
    bench = Bench()
    others = ((ANN, 20), (BOB, 30))
    bench.hears(ANN, attempt=1, suspects=[ME])
    assert bench.machine.message.stage == "excluded"
    assert {effect.peer for effect in bench.did(Send)} == {ANN, BOB}
    assert bench.happens(GatheringFinished(10)) == []
    bench.hears(ANN, "committed", 1, suspects=[ME], members=others)
    (fetch,) = bench.did(FetchResult)
    assert (fetch.peer, fetch.attempt, fetch.members) == (ANN, 1, others)
    assert "our samples of this epoch are not merged" in fetch.reason
    bench.happens(FetchFinished(1))
    (commit,) = bench.did(Commit)
    assert commit.members == others
    assert commit.lineage == LINEAGE.after(7, 1, others)


def test_a_lone_accuser_is_left_behind() -> None:
    bench = Bench(PEERS)
    bench.happens(GatheringFinished(10))
    bench.hears(ANN, attempt=1, suspects=[ME, BOB, CAT])
    assert set(bench.machine.suspects) == {ANN}
    assert bench.machine.phase == "forming"


def test_who_is_excluded_and_alone_catches_up() -> None:
    bench = Bench()
    bench.hears(ANN, attempt=1, suspects=[ME])
    bench.hears(BOB, "excluded")
    bench.waits_until_due()
    (catch_up,) = bench.did(CatchUp)
    assert bench.now == 50.0 + GRACE
    assert "goes on without us, and nobody is left" in catch_up.reason


def test_a_failed_average_is_fetched_from_one_that_has_it_before_the_vote() -> None:
    bench = Bench().averages()
    bench.happens(AverageFailed(0, (BOB,)))
    assert bench.did(Send)[0].message.stage == "failed"
    assert bench.did(Send)[0].message.blames == [BOB]
    bench.hears(ANN, "averaged", members=BOTH)
    (fetch,) = bench.did(FetchResult)
    assert (fetch.peer, fetch.attempt) == (ANN, 0)
    bench.happens(FetchFinished(0))
    assert bench.did(Send)[0].message.stage == "averaged"
    bench.hears(BOB, "averaged", members=BOTH)
    assert [commit.attempt for commit in bench.did(Commit)] == [0]


def test_an_attempt_that_failed_everywhere_is_repeated_with_the_same_members() -> None:
    bench = Bench().averages()
    bench.happens(AverageFailed(0, (BOB,)))
    bench.hears(ANN, "failed", members=BOTH, blames=[BOB])
    bench.hears(BOB, "failed", members=BOTH)
    assert bench.machine.message.attempt == 1
    assert not bench.machine.suspects
    bench.hears(ANN, attempt=1)
    bench.hears(BOB, attempt=1)
    assert bench.did(StartAverage) == [StartAverage(1, BOTH)]


def fails_everywhere(bench: Bench, attempt: int, blames: dict[str, list[str]]) -> None:
    bench.happens(AverageFailed(attempt, tuple(blames.get(ME, ()))))
    bench.hears(ANN, "failed", attempt, members=BOTH, blames=blames.get(ANN, []))
    bench.hears(BOB, "failed", attempt, members=BOTH, blames=blames.get(BOB, []))


def all_ready(bench: Bench, attempt: int) -> None:
    bench.hears(ANN, attempt=attempt)
    bench.hears(BOB, attempt=attempt)
    assert bench.did(StartAverage) == [StartAverage(attempt, BOTH)]


def test_at_the_second_failure_the_blamed_is_left_behind() -> None:
    bench = Bench().averages()
    fails_everywhere(bench, 0, {ME: [BOB], ANN: [BOB], BOB: [ANN]})
    all_ready(bench, 1)
    fails_everywhere(bench, 1, {ME: [BOB], ANN: [BOB], BOB: [ANN]})
    assert bench.machine.suspects == {BOB: "averaging fails repeatedly by it"}
    assert bench.machine.message.attempt == 2


def test_who_is_too_slow_is_left_behind_at_once() -> None:
    bench = Bench().averages()
    bench.happens(AverageFailed(0, (BOB,), is_pace=True))
    bench.hears(ANN, "failed", members=BOTH, blames=[BOB])
    assert bench.machine.suspects == {}  # first all have to say what they know
    bench.hears(BOB, "failed", members=BOTH, blames=[BOB])
    assert bench.machine.suspects == {BOB: "is too slow"}
    bench.hears(ANN, attempt=1, suspects=[BOB])
    assert bench.did(StartAverage)[-1] == StartAverage(1, ((ME, 10), (ANN, 20)))


def test_who_is_itself_too_slow_steps_out() -> None:
    bench = Bench().averages()
    bench.happens(AverageFailed(0, (ME,), is_pace=True))
    bench.hears(ANN, "failed", members=BOTH, blames=[ME])
    bench.hears(BOB, "failed", members=BOTH, blames=[ME])
    assert bench.machine.phase == "excluded"


def test_a_vote_is_waited_for_as_long_as_a_round_may_take_and_the_grace() -> None:
    bench = Bench().averages()
    bench.happens(AverageFinished(0))
    bench.hears(ANN, "averaged", members=BOTH)
    began = bench.now
    while not bench.did(Commit):
        bench.hears(BOB, members=BOTH)  # it answers, but has no average yet
        deadline = bench.machine.deadline()
        assert deadline is not None
        bench.happens(Tick(), after=deadline - bench.now)
    assert bench.now == began + PACE + GRACE
    assert bench.did(Commit)[0].members == BOTH  # its samples are in


def test_failures_that_nobody_is_to_blame_for_end() -> None:
    bench = Bench().averages()
    for attempt in range(MAX_FAILURES - 1):
        fails_everywhere(bench, attempt, {})
        all_ready(bench, attempt + 1)
    fails_everywhere(bench, MAX_FAILURES - 1, {})
    assert [effect.reason for effect in bench.did(CatchUp)] == ["averaging has failed 4 times"]


def test_an_average_that_takes_too_long_is_given_up() -> None:
    bench = Bench().averages()
    bench.waits_until_due()
    assert bench.now == 50.0 + AVERAGING + GRACE
    assert bench.did(CancelAverage) == [CancelAverage(0)]
    assert bench.machine.message.stage == "failed"


def test_who_has_voted_commits_with_the_others_when_one_falls_silent() -> None:
    """Its samples are in the average; an attempt without it might contradict a commit of its own."""
    bench = Bench().averages()
    bench.happens(AverageFinished(0))
    bench.hears(ANN, "averaged", members=BOTH)
    bench.waits_until_due()
    assert bench.now == 50.0 + GRACE
    (commit,) = bench.did(Commit)
    assert commit.members == BOTH
    assert BOB[-6:] in commit.reason


def test_who_has_voted_lets_go_when_a_participant_moves_on() -> None:
    bench = Bench().averages()
    bench.happens(AverageFinished(0))
    bench.hears(ANN, attempt=1)
    assert bench.machine.phase == "forming"
    assert bench.machine.message.attempt == 1
    assert not bench.did(Commit)


def test_who_averages_stops_when_the_others_move_on() -> None:
    bench = Bench().averages()
    bench.hears(ANN, attempt=1, suspects=[BOB])
    assert bench.did(CancelAverage) == [CancelAverage(0)]
    assert bench.did(StartAverage) == [StartAverage(1, ((ME, 10), (ANN, 20)))]
    assert bench.happens(AverageFinished(0)) == [], "of an attempt that is over"


def test_votes_for_other_samples_do_not_count() -> None:
    bench = Bench().averages()
    bench.happens(AverageFinished(0))
    bench.hears(ANN, "averaged", members=BOTH)
    bench.hears(BOB, "averaged", members=((ME, 10), (ANN, 21), (BOB, 30)))
    assert not bench.did(Commit)


def test_a_commit_of_what_we_have_is_followed_at_once() -> None:
    bench = Bench().averages()
    bench.happens(AverageFinished(0))
    bench.hears(ANN, "committed", members=BOTH)
    assert [commit.members for commit in bench.did(Commit)] == [BOTH]


def test_a_commit_of_what_we_average_waits_for_our_own_average() -> None:
    bench = Bench().averages()
    bench.hears(ANN, "committed", members=BOTH)
    assert bench.machine.message.stage == "adopting"
    assert not bench.did(FetchResult)
    bench.happens(AverageFinished(0))
    assert [commit.members for commit in bench.did(Commit)] == [BOTH]


def test_a_commit_of_what_we_could_not_average_is_fetched() -> None:
    bench = Bench().averages()
    bench.hears(ANN, "committed", members=BOTH)
    bench.happens(AverageFailed(0))
    assert [fetch.peer for fetch in bench.did(FetchResult)] == [ANN]
    for _ in range(FETCH_TRIES - 1):
        bench.happens(FetchFailed(0))
        assert [fetch.peer for fetch in bench.did(FetchResult)] == [ANN]
    assert not [e for e in bench.happens(FetchFailed(0)) if isinstance(e, FetchResult)]
    bench.hears(BOB, "committed", members=BOTH)
    assert [fetch.peer for fetch in bench.did(FetchResult)] == [BOB]
    bench.happens(FetchFinished(0))
    assert bench.did(Commit)


def test_a_commit_that_nobody_serves_leads_to_catching_up() -> None:
    bench = Bench()
    bench.hears(ANN, "committed", members=BOTH)
    for _ in range(FETCH_TRIES):
        bench.happens(FetchFailed(0))
    bench.waits_until_due()
    (catch_up,) = bench.did(CatchUp)
    assert catch_up.donors == (ANN,)


def test_a_commit_below_our_last_vote_is_not_taken_over() -> None:
    """Others may have committed what we voted for, relying on us."""
    bench = Bench(PEERS)
    bench.happens(GatheringFinished(10))
    bench.happens(PeerLeft(CAT))
    bench.hears(ANN, attempt=1, suspects=[CAT])
    bench.hears(BOB, attempt=1, suspects=[CAT])
    bench.happens(AverageFinished(1))
    everybody = (*BOTH, (CAT, 40))
    bench.hears(CAT, "committed", 0, members=everybody)
    assert not bench.did(FetchResult)
    assert bench.machine.phase == "averaged"
    bench.hears(ANN, "averaged", 1, suspects=[CAT], members=BOTH)
    bench.hears(BOB, "averaged", 1, suspects=[CAT], members=BOTH)
    assert [commit.attempt for commit in bench.did(Commit)] == [1]


def test_a_commit_is_taken_over_before_we_have_voted() -> None:
    bench = Bench(PEERS)
    bench.happens(GatheringFinished(10))
    bench.happens(PeerLeft(CAT))
    bench.hears(CAT, "committed", 0, members=(*BOTH, (CAT, 40)))
    assert [fetch.attempt for fetch in bench.did(FetchResult)] == [0]


def test_who_takes_over_a_commit_takes_over_its_suspects() -> None:
    """So that of any two that commit differently, one suspects the other."""
    bench = Bench(PEERS)
    bench.hears(ANN, "committed", 2, suspects=[BOB], members=((ME, 10), (ANN, 20)))
    assert set(bench.machine.suspects) == {BOB, CAT}


def test_results_of_earlier_attempts_are_not_relied_on() -> None:
    """`StartAverage` allows them to be dropped."""
    bench = Bench().averages()
    bench.happens(AverageFinished(0))
    bench.hears(ANN, attempt=1)
    bench.hears(BOB, attempt=1)
    assert bench.did(StartAverage) == [StartAverage(1, BOTH)]
    bench.hears(ANN, "committed", 0, members=BOTH)
    assert not bench.did(Commit)
    assert [fetch.attempt for fetch in bench.did(FetchResult)] == [0]


def test_no_update_by_no_samples() -> None:
    bench = Bench([ME, ANN])
    bench.happens(GatheringFinished(0))
    bench.hears(ANN, samples=0)
    assert bench.did(StartAverage) == []
    assert [effect.reason for effect in bench.did(CatchUp)] == [
        "nobody has gathered a sample, so there is nothing to average"
    ]


def test_a_member_without_samples_takes_part() -> None:
    bench = Bench([ME, ANN])
    bench.happens(GatheringFinished(0))
    bench.hears(ANN)
    assert bench.did(StartAverage) == [StartAverage(0, ((ME, 0), (ANN, 20)))]


def test_one_member_ahead_does_not_move_two() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.happens(PeerAhead(BOB, 10**6))
    assert set(bench.machine.suspects) == {BOB}
    assert not bench.did(CatchUp)


def test_when_more_are_ahead_than_here_we_catch_up() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.happens(PeerAhead(ANN, 9))
    bench.happens(PeerAhead(BOB, 9))
    assert [effect.donors for effect in bench.did(CatchUp)] == [(ANN, BOB)]
    assert bench.machine.message.stage == "excluded"


def test_who_is_excluded_believes_anybody_ahead() -> None:
    bench = Bench()
    bench.hears(ANN, attempt=1, suspects=[ME])
    bench.happens(PeerAhead(ANN, 9))
    assert [effect.donors for effect in bench.did(CatchUp)] == [(ANN,)]


def test_another_history_does_not_count() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.hears(ANN)
    bench.hears(BOB, lineage="00" * 32)
    assert bench.machine.suspects == {BOB: "comes from another history"}
    bench.hears(ANN, attempt=1, suspects=[BOB])
    assert bench.did(StartAverage) == [StartAverage(1, ((ME, 10), (ANN, 20)))]
    bench.hears(BOB, "committed", 5, lineage="00" * 32, members=BOTH)
    assert bench.machine.phase == "averaging"


def test_another_plan_does_not_count_and_the_later_is_asked_for_once() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.hears(ANN)
    bench.hears(BOB, term=0, plan="ff" * 32)
    assert bench.did(PlanDiffers) == []
    bench.hears(BOB, term=1, plan="00" * 32)
    assert bench.did(PlanDiffers) == []
    bench.hears(BOB, term=1, plan="ff" * 32)
    assert bench.did(PlanDiffers) == [PlanDiffers(BOB, 1, "ff" * 32)]
    bench.hears(BOB, term=1, plan="ff" * 32)
    assert bench.did(PlanDiffers) == []
    bench.hears(BOB, term=2, plan="01" * 32)
    assert bench.did(PlanDiffers) == [PlanDiffers(BOB, 2, "01" * 32)]
    bench.waits_until_due()
    assert bench.machine.suspects == {BOB: "follows plan 01010101 of term 2"}


def test_a_commit_counts_under_any_plan() -> None:
    bench = Bench()
    bench.hears(ANN, "committed", term=2, plan="00" * 32, members=BOTH)
    assert bench.did(FetchResult)


def test_a_plan_is_not_changed_while_averaging() -> None:
    bench = Bench().averages()
    bench.hears(ANN, term=2, plan="00" * 32)
    assert bench.did(PlanDiffers) == []


@pytest.mark.parametrize("fields", [{"run": "ee" * 32}, {"epoch": 8}])
def test_messages_of_other_rounds_change_nothing(fields: dict[str, Any]) -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    before = bench.machine.message
    assert bench.hears(ANN, attempt=5, suspects=[ME], **fields) == []
    assert bench.machine.message == before


def test_strangers_change_nothing() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    for event in (PeerUnreachable(CAT), PeerAhead(CAT, 99), PeerBehind(CAT, 0), PeerLeft(CAT)):
        bench.happens(event)
    bench.hears(CAT, "committed", members=BOTH)
    assert bench.machine.phase == "forming"
    assert not bench.machine.suspects


def test_late_and_repeated_messages_change_nothing() -> None:
    bench = Bench().averages()
    bench.happens(AverageFinished(0))
    bench.hears(ANN, "averaged", members=BOTH)
    assert bench.hears(ANN, attempt=1, sequence=1) == []
    assert bench.machine.phase == "averaged"


def test_a_restarted_member_is_left_behind() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.hears(ANN)
    bench.hears(ANN, "gathering", started=3000)
    assert bench.machine.suspects == {ANN: "has started anew within the epoch"}


def test_a_member_that_restarts_before_it_has_samples_is_not() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.hears(ANN, "gathering")
    bench.hears(ANN, started=3000)
    assert not bench.machine.suspects


def test_a_member_that_stepped_out_may_have_begun_anew_when_we_ask() -> None:
    bench = Bench([ME, ANN])
    bench.hears(ANN, "excluded")
    bench.happens(GatheringFinished(10))
    assert not bench.machine.suspects
    bench.hears(ANN, started=3000)
    assert bench.did(StartAverage) == [StartAverage(0, ((ME, 10), (ANN, 20)))]


def test_an_absurd_attempt_is_not_followed() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.hears(ANN, attempt=2**53 - 1)
    assert set(bench.machine.suspects) == {ANN}
    assert bench.machine.message.attempt == 1


def test_time_in_which_we_were_stopped_is_no_silence_of_the_others() -> None:
    bench = Bench()
    bench.happens(GatheringFinished(10))
    bench.hears(ANN)
    assert {e.peer for e in bench.happens(Tick(), after=500) if isinstance(e, Send)} == {BOB}
    assert not bench.machine.suspects
    bench.hears(BOB)
    assert bench.did(StartAverage) == [StartAverage(0, BOTH)]


def test_no_limit_is_put_off_for_ever() -> None:
    bench = Bench([ME, ANN])
    bench.happens(GatheringFinished(10))
    for _ in range(20):
        bench.happens(Tick(), after=60)
    assert set(bench.machine.suspects) == {ANN}


def test_who_was_excluded_earlier_takes_no_part() -> None:
    bench = Bench(absent=[BOB])
    bench.happens(GatheringFinished(10))
    assert {effect.peer for effect in bench.did(Send)} == {ANN}
    assert bench.did(Send)[0].message.suspects == [BOB]
    bench.hears(ANN, suspects=[BOB])
    assert bench.did(StartAverage) == [StartAverage(0, ((ME, 10), (ANN, 20)))]


def test_a_round_needs_us() -> None:
    with pytest.raises(LocalProtocolError):
        Bench([ANN, BOB])
    with pytest.raises(LocalProtocolError):
        Bench(absent=[ME])


def test_the_story_tells_what_happened() -> None:
    bench = Bench([ME])
    bench.happens(GatheringFinished(10), after=3)
    bench.happens(AverageFinished(0), after=2)
    assert bench.machine.story() == [
        (53.0, "gathered 10 samples"),
        (53.0, "averages with 0 others, attempt 0"),
        (55.0, "has the average of attempt 0"),
        (55.0, "committed attempt 0 of 1 members: all votes are in"),
    ]
