"""What a member knows in a round, what it waits for and until when, and what it says. No decision is made here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from protocol.errors import LocalProtocolError
from protocol.lineage import Counted, Lineage
from protocol.round_messages import CountedMember, Effect, RoundMessage, Send, Stage
from protocol.round_views import View
from protocol.units import Epoch, PeerId, RunId

Phase = Literal["gathering", "forming", "averaging", "failed", "averaged", "excluded", "adopting", "committed", "left"]
Result = tuple[int, tuple[Counted, ...]]
"""an attempt and its members: names one average"""

STAGES: dict[Phase, Stage] = {
    "gathering": "gathering",
    "forming": "ready",
    "averaging": "ready",
    "failed": "failed",
    "averaged": "averaged",
    "excluded": "excluded",
    "adopting": "adopting",
    "committed": "committed",
    "left": "excluded",
}
"""what is said in each phase"""
IN_FLIGHT = ("averaging", "failed", "averaged")
OVER = ("committed", "left")

STORY_LENGTH = 100  # lines
MAX_SLEEPS = 8  # periods not counted as silence; bounded, so that no time limit can be put off for ever


class RoundState:
    """The knowledge of a `RoundMachine`."""

    def __init__(
        self,
        *,
        run: RunId,
        epoch: Epoch,
        me: PeerId,
        members: Sequence[PeerId],
        absent: Sequence[PeerId] = (),
        term: int,
        plan_digest: str,
        lineage: Lineage,
        grace_seconds: float,
        averaging_seconds: float,
        pace_seconds: float,
        gathering_deadline: float,
        started: int,
    ) -> None:
        """Begin the round of `epoch`.

        `members` is our whole group of the plan, `absent` those of it that were excluded earlier in the term.
        `averaging_seconds` bounds an average, or the fetch of one; who has an average waits for the votes of the
        others `pace_seconds`, and the grace. `gathering_deadline` is on the clock of
        `now`; until then, and `grace_seconds` longer, members may gather. `started` is this peer's unix time
        in milliseconds; it must grow whenever a machine for the same epoch is made anew.
        """
        if me not in members or me in absent:
            raise LocalProtocolError("a round was begun by a peer that is not in it")
        self.run, self.epoch, self.me = run, epoch, me
        self.term, self.plan, self.lineage, self.started = term, plan_digest, lineage, started
        self._present = tuple(sorted(set(members) - set(absent)))
        self._others = tuple(peer for peer in self._present if peer != me)
        self._views = {peer: View() for peer in self._others}
        self._suspects = dict.fromkeys(sorted(set(absent) & set(members)), "was excluded earlier in this term")
        self._ahead: dict[PeerId, Epoch] = {}
        self._foreign: dict[PeerId, Lineage] = {}
        self._plans: set[str] = set()  # reported as different
        self._grace, self._averaging_seconds, self._pace_seconds = grace_seconds, averaging_seconds, pace_seconds
        self._poll_seconds = min(1.0, grace_seconds / 4)
        self._gathering_deadline = gathering_deadline

        self._phase: Phase = "gathering"
        self._attempt = 0
        self._samples = 0
        self._flight: tuple[Counted, ...] = ()  # members of the attempt once it is being averaged
        self._running: Result | None = None  # what is being averaged here
        self._held: Result | None = None  # of which attempt we have the complete average
        self._voted: Result | None = None  # the last vote
        self._decided: Result | None = None  # committed by another, to be had and committed here
        self._fetching: tuple[PeerId, Result] | None = None
        self._tries: dict[tuple[PeerId, Result], int] = {}
        self._blames: tuple[PeerId, ...] = ()
        self._failures = 0  # of averages with the same participants
        self._is_pace = False  # the last one failed because somebody is too slow
        self._why = ""  # we are excluded, or adopt

        self._now = 0.0
        self._since = self._average_started = self._fetch_started = self._next_poll = -math.inf
        self._alarm: float | None = None
        self._sleeps_left = MAX_SLEEPS
        self._story: list[tuple[float, str]] = []
        self._effects: list[Effect] = []
        self._changed = False
        self._sequence = 0
        self._message = self._compose()

    @property
    def message(self) -> RoundMessage:
        """What we say, and answer to members who ask; also after the round is over."""
        return self._message

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def suspects(self) -> dict[PeerId, str]:
        """Members without which we go on, and why."""
        return dict(self._suspects)

    @property
    def others_ready_at(self) -> float | None:
        """When the last other participant was first heard to have gathered its samples; None if one was not."""
        times = [self._views[peer].ready_at for peer in self._participants() if peer != self.me]
        last = max(times, default=math.inf)
        return None if last == math.inf else last

    def story(self) -> list[tuple[float, str]]:
        """What happened, with times on the clock of `now`; the last `STORY_LENGTH` lines."""
        return list(self._story)

    def deadline(self) -> float | None:
        """When to call `handle` with `Tick`; None if only events can bring us further."""
        if self._phase in OVER:
            return None
        waited = self._waited()
        times = [self._limit(peer) for peer in self._due(waited)]
        if waited:
            times.append(self._next_poll)
        if self._running is not None:
            times.append(self._average_started + self._averaging_seconds + self._grace)
        if self._fetching is not None:
            times.append(self._fetch_started + self._averaging_seconds + self._grace)
        elif self._phase == "adopting":
            times.append(self._since + self._grace)
        return min(times, default=None)

    # Time

    def _advance_clock(self, now: float) -> None:
        """Do not count the time in which this process was stopped as silence of the others."""
        if self._alarm is not None and now > self._alarm + self._poll_seconds and self._sleeps_left:
            self._sleeps_left -= 1
            asleep = now - self._now
            self._since += asleep
            self._gathering_deadline += asleep
            self._average_started += asleep
            self._fetch_started += asleep
            for view in self._views.values():
                view.asked_at, view.unreachable = math.inf, 0
            self._next_poll = now
            self._note("this process was stopped for a while; asks the others again")
        self._now = max(self._now, now)

    # Changes

    def _enter(self, phase: Phase, text: str) -> None:
        self._phase, self._since, self._changed = phase, self._now, True
        self._note(text)

    def _note(self, text: str) -> None:
        self._story = [*self._story[1 - STORY_LENGTH :], (self._now, text)]

    # What is known

    def _participants(self) -> tuple[PeerId, ...]:
        return tuple(peer for peer in self._present if peer not in self._suspects)

    def _flying(self) -> tuple[PeerId, ...]:
        """Other members of the attempt in flight that count."""
        return tuple(peer for peer, _ in self._flight if peer != self.me and peer not in self._suspects)

    def _samples_of(self, peer: PeerId) -> int:
        message = None if peer == self.me else self._views[peer].message
        return self._samples if message is None else message.samples

    def _waited(self) -> tuple[PeerId, ...]:
        """Whom we wait for, and therefore ask again and again."""
        views = self._views
        match self._phase:
            case "forming":
                contested = self._contested()
                return tuple(
                    p for p in self._participants() if p != self.me and (p in contested or not self._is_ready(p))
                )
            case "failed" | "averaged":
                result = self._attempt, self._flight
                done = [p for p in self._flying() if views[p].says("averaged", *result)]
                if self._phase == "failed":
                    done += [p for p in self._flying() if views[p].says("failed", *result)]
                return tuple(p for p in self._flying() if p not in done)
            case "excluded":
                return self._hopeful()
            case "adopting":
                return self._hopeful() if self._running is None and self._fetching is None else ()
        return ()

    def _hopeful(self) -> tuple[PeerId, ...]:
        """Others who may still end this epoch, or have ended it."""
        return tuple(
            peer
            for peer, view in self._views.items()
            if peer not in self._ahead
            and peer not in self._foreign
            and not view.is_out
            and not (self._phase == "excluded" and view.is_over)
            and self._now < self._limit(peer)
        )

    def _limit(self, peer: PeerId) -> float:
        """Until when we wait for a member that we wait for.

        Who does not answer has `grace_seconds` since it was first asked, or since it should have its samples. Who
        answers has longer, since it may itself be waiting for somebody who does not.
        """
        view = self._views[peer]
        if self._phase == "forming":
            due = min(view.ready_at, self._gathering_deadline)
            silent = max(view.asked_at, due) + self._grace
            if self._is_ready(peer):  # contested only
                return silent
            patience = self._grace if view.ready_at == math.inf else 2 * self._grace
            return min(silent, max(self._since, due) + patience)
        if self._phase in ("failed", "averaged"):
            patience = self._pace_seconds if self._phase == "averaged" else self._averaging_seconds
            return min(view.asked_at, self._since + patience) + self._grace
        return view.asked_at + self._grace

    def _due(self, waited: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        """Whose time limits count.

        Who goes on without somebody that we do not suspect will be joined if we give that one up as well. So its
        own limit counts only when all those have answered.
        """
        if self._phase != "forming":
            return waited
        return tuple(peer for peer in waited if not self._differs(peer) and not self._has_answered(peer)) or waited

    def _has_answered(self, peer: PeerId) -> bool:
        return self._is_ready(peer) and self._views[peer].asked_at == math.inf

    def _is_ready(self, peer: PeerId) -> bool:
        return self._views[peer].is_ready(self._attempt, self._suspects, self._participants())

    def _differs(self, peer: PeerId) -> bool:
        """Whether a member is ready, but without somebody that we do not suspect."""
        message = self._views[peer].message
        return message is not None and message.stage == "ready" and not set(message.suspects) <= set(self._suspects)

    def _contested(self) -> set[PeerId]:
        """Members that others go on without, while we do not."""
        found: set[PeerId] = set()
        for peer in self._participants():
            if peer != self.me and (message := self._views[peer].message) and self._differs(peer):
                found.update(message.suspects)
        return found - set(self._suspects)

    # Speaking

    def _compose(self) -> RoundMessage:
        return RoundMessage(
            run=self.run,
            epoch=self.epoch,
            term=self.term,
            plan=self.plan,
            lineage=self.lineage.digest,
            history=self.lineage.samples,
            started=self.started,
            sequence=self._sequence,
            attempt=self._attempt if self._decided is None else self._decided[0],
            stage=STAGES[self._phase],
            samples=self._samples,
            suspects=sorted(self._suspects),
            blames=list(self._blames),
            members=[
                CountedMember(peer=peer, samples=samples)
                for peer, samples in (self._flight if self._decided is None else self._decided[1])
            ],
        )

    def _speak(self) -> None:
        """Tell everybody what is new, or ask those we wait for again."""
        waited = self._waited()
        if self._changed:
            self._changed = False
            self._sequence += 1
            self._message = self._compose()
            listeners = self._others
        elif self._now >= self._next_poll:
            listeners = waited
        else:
            return
        self._next_poll = self._now + self._poll_seconds
        self._effects += [Send(peer, self._message) for peer in listeners]
        for peer in waited:
            self._views[peer].asked_at = min(self._views[peer].asked_at, self._now)
