"""One member's view of one epoch's round: who averages with whom, when to commit, when to go on without whom.

Theory of operation. Attempts are numbered; an attempt has fixed participants, the members that nobody
suspects. It starts when all of them are ready for it with the same suspects. Who has the complete average
votes for it, and commits when all participants that it does not suspect have voted. A peer's attempts only
grow; it votes once in each; it never takes over the commit of an attempt below its last vote. So if two
members commit different attempts, one of them suspects the other (the argument is in `README.md`). Who holds
an average keeps to its attempt, also when others fall silent: only a participant that moves on without having
voted ends an attempt. Suspicion is final for the epoch and spreads with the messages; the suspected finds
out, takes no part any more and fetches the result.

Rules of this file: everything that decides is in `_settle`, which looks only at what is known, so it does not
matter which event brought the knowledge. Time is only an argument. Nothing is decided after `Commit` or
`CatchUp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from protocol.round_hearing import RoundHearing
from protocol.round_messages import (
    AverageFailed,
    AverageFinished,
    CatchUp,
    Commit,
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
    StartAverage,
    Tick,
)
from protocol.round_state import OVER, Result
from protocol.round_views import stronger_history, to_blame
from protocol.units import PeerId, short

MAX_FAILURES = 4  # of averages with the same participants, before the epoch is given up
UNREACHABLE_HINTS = 3  # failed deliveries in a row that stand for death
FETCH_TRIES = 2  # from each source


class RoundMachine(RoundHearing):
    """Give it every event with the time; do the effects; call it with `Tick` at `deadline()`."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The only door. Events that come too late, or from strangers, change nothing."""
        if self._phase in OVER:
            return []
        self._effects = []
        self._advance_clock(now)
        self._take(event)
        self._settle()
        self._speak()
        self._alarm = self.deadline()
        return self._effects

    # Events

    def _take(self, event: Event) -> None:
        match event:
            case GatheringFinished(samples):
                if self._phase == "gathering":
                    self._samples = samples
                    for view in self._views.values():
                        view.forget_exit()
                    self._enter("forming", f"gathered {samples} samples")
            case MessageReceived(peer, message):
                self._hear(peer, message)
            case PeerUnreachable(peer):
                if peer in self._views:
                    self._views[peer].unreachable += 1
            case PeerLeft(peer):
                if peer in self._views:
                    self._suspect({peer: "has said farewell"})
            case PeerAhead(peer, epoch):
                if peer in self._views and epoch > self.epoch:
                    self._ahead[peer] = epoch
                    self._suspect({peer: f"is at epoch {epoch} already"})
            case PeerBehind(peer):
                if peer in self._views:
                    self._views[peer].unreachable = 0
            case AverageFinished(attempt):
                if self._running is not None and self._running[0] == attempt:
                    self._hold(self._running)
            case AverageFailed(attempt, blamed, is_pace):
                if self._running is not None and self._running[0] == attempt:
                    self._is_pace = is_pace
                    self._fail(blamed, f"averaging failed; blamed: {_names(blamed) or 'nobody'}")
            case FetchFinished(attempt):
                if self._fetching is not None and self._fetching[1][0] == attempt:
                    self._hold(self._fetching[1])
            case FetchFailed(attempt):
                if self._fetching is not None and self._fetching[1][0] == attempt:
                    self._fetch_failed()
            case Tick():
                pass
            case _:
                assert_never(event)

    def _hold(self, result: Result) -> None:
        self._held = result
        self._running = self._fetching = None
        if self._phase in ("averaging", "failed"):
            self._voted = result
            self._enter("averaged", f"has the average of attempt {result[0]}")

    def _fail(self, blamed: Sequence[PeerId], text: str) -> None:
        self._running = None
        if self._phase == "averaging":
            self._failures += 1
            self._blames = tuple(sorted({peer for peer, _ in self._flight if peer in blamed}))
            self._enter("failed", text)

    def _fetch_failed(self) -> None:
        assert self._fetching is not None
        self._note(f"could not fetch the average from {short(self._fetching[0])}")
        self._fetching = None
        self._since = self._now

    # Decisions

    def _settle(self) -> None:
        """Do whatever follows from what is known, until nothing more does."""
        while self._phase not in OVER:
            before = self._phase, self._attempt, len(self._suspects), self._fetching
            self._join_others()
            self._apply_limits()
            self._give_way()
            match self._phase:
                case "forming":
                    self._form()
                case "failed":
                    self._recover()
                case "averaged":
                    if not self._waited():
                        assert self._held is not None
                        self._commit(self._held, "all votes are in")
                case "excluded":
                    if not self._waited():
                        self._leave(f"{self._why}, and nobody is left who could end the epoch")
                case "adopting":
                    self._adopt()
                case _:
                    pass
            if before == (self._phase, self._attempt, len(self._suspects), self._fetching):
                return

    def _apply_limits(self) -> None:
        limit = self._averaging_seconds + self._grace
        if self._running is not None and self._now >= self._average_started + limit:
            self._cancel()
            self._fail((), "averaging took too long")
        if self._fetching is not None and self._now >= self._fetch_started + limit:
            self._fetch_failed()
        if self._phase not in ("forming", "failed", "averaged"):
            return
        waited = self._waited()
        late = {p: self._views[p].lateness(self.plan) for p in self._due(waited) if self._now >= self._limit(p)}
        dead = {
            peer: "cannot be reached"
            for peer in waited
            if peer not in late and self._views[peer].unreachable >= UNREACHABLE_HINTS
        }
        reached = [p for p in self._participants() if p == self.me or not self._views[p].unreachable]
        if 2 * len(reached) < len(self._present):
            dead = {}  # perhaps it is we who are cut off: take the full time
        self._suspect(late | dead)

    def _give_way(self) -> None:
        """Leave the round if more members are elsewhere than here. After a vote it is ended first."""
        if self._phase not in ("gathering", "forming", "averaging", "failed", "excluded"):
            return
        here = () if self._phase == "excluded" else self._participants()
        if self._ahead and len(self._ahead) >= len(here):
            self._leave(f"{len(self._ahead)} members are ahead, {len(here)} are here", sorted(self._ahead))
        elif here and (holders := stronger_history(here, self.lineage, self._foreign)):
            self._leave(f"{_names(holders)} went on from another history that takes precedence", holders)

    def _form(self) -> None:
        if self._waited():
            return
        members = tuple((peer, self._samples_of(peer)) for peer in self._participants())
        if not sum(samples for _, samples in members):
            self._leave("nobody has gathered a sample, so there is nothing to average")
            return
        self._flight, self._held = members, None
        self._running = self._attempt, members
        self._average_started = self._now
        self._enter("averaging", f"averages with {len(members) - 1} others, attempt {self._attempt}")
        self._effects.append(StartAverage(self._attempt, members))

    def _recover(self) -> None:
        """Our average failed: get it from a member that has it; if nobody has, try again."""
        if self._fetching is not None:
            return
        result = self._attempt, self._flight
        others = self._flying()
        if self._fetch(result, [peer for peer in others if self._views[peer].says("averaged", *result)]):
            return
        if self._waited():
            return
        pairs = [(self.me, blamed) for blamed in self._blames]
        for peer in others:
            message = self._views[peer].message
            pairs += [(peer, blamed) for blamed in message.blames] if message else []
        culprit = to_blame(pairs) if self._failures > 1 or self._is_pace else None
        if culprit == self.me:
            self._step_out("our link is too slow for the others, or they do not get through to us")
            return
        if culprit is not None and culprit in others:
            self._add_suspect(culprit, "is too slow" if self._is_pace else "averaging fails repeatedly by it")
        elif self._failures >= MAX_FAILURES:
            self._leave(f"averaging has failed {self._failures} times")
            return
        self._go_to(self._attempt + 1, "the attempt failed everywhere")

    def _adopt(self) -> None:
        assert self._decided is not None
        if self._held == self._decided:
            self._commit(self._decided, self._why or "another member has committed it")
        elif self._running is None and self._fetching is None:
            sources = [
                peer
                for peer, view in self._views.items()
                if view.says("committed", *self._decided) or view.says("averaged", *self._decided)
            ]
            if not self._fetch(self._decided, sources) and self._now >= self._since + self._grace:
                self._leave("the result of the epoch cannot be fetched from anybody", sources)

    # Steps

    def _fetch(self, result: Result, sources: Sequence[PeerId]) -> bool:
        usable = [peer for peer in sources if self._tries.get((peer, result), 0) < FETCH_TRIES]
        if not usable:
            return False
        peer = min(usable, key=lambda source: (self._tries.get((source, result), 0), source))
        self._tries[peer, result] = self._tries.get((peer, result), 0) + 1
        self._fetching, self._fetch_started = (peer, result), self._now
        why = self._why or "our own average is not complete"
        if self.me not in dict(result[1]):
            why += "; our samples of this epoch are not merged"
        self._effects.append(FetchResult(peer, *result, why))
        self._note(f"fetches the average of attempt {result[0]} from {short(peer)}: {why}")
        return True

    def _commit(self, result: Result, reason: str) -> None:
        missing = [peer for peer in self._suspects if peer in self._others]
        if missing:
            reason += "; without " + ", ".join(f"{short(peer)}: {self._suspects[peer]}" for peer in missing[:3])
        self._attempt, self._flight = result
        self._enter("committed", f"committed attempt {result[0]} of {len(result[1])} members: {reason}")
        self._effects.append(Commit(*result, self.lineage.after(self.epoch, *result), reason))

    def _leave(self, reason: str, donors: Sequence[PeerId] = ()) -> None:
        self._cancel()
        self._enter("left", reason)
        self._effects.append(CatchUp(reason, tuple(donors)))


def _names(peers: Sequence[PeerId]) -> str:
    return ", ".join(map(short, sorted(peers)))
