"""What a message of another member changes for us in a round."""

from __future__ import annotations

import math

from protocol.lineage import Lineage
from protocol.round_messages import CancelAverage, PlanDiffers, RoundMessage
from protocol.round_state import IN_FLIGHT, RoundState
from protocol.round_views import accusation_stands
from protocol.units import PeerId, short

MAX_LEAP = 1000  # attempts; honest members are never so far apart


class RoundHearing(RoundState):
    """A `RoundMachine`, as far as messages, suspicion and the change of attempts go."""

    def _hear(self, peer: PeerId, message: RoundMessage) -> None:
        if peer not in self._views or (message.run, message.epoch) != (self.run, self.epoch):
            return
        view = self._views[peer]
        view.asked_at, view.unreachable = math.inf, 0
        if view.last is not None and message.order <= view.last.order:
            return
        view.last = message
        if message.attempt > self._attempt + MAX_LEAP:
            self._suspect({peer: f"claims to be at attempt {message.attempt}"})
        elif message.lineage != self.lineage.digest:
            self._foreign[peer] = Lineage(message.lineage, message.history)
            self._suspect({peer: "comes from another history"})
        elif message.stage in ("adopting", "committed"):
            self._hear_commit(peer, message)
        elif self._phase == "adopting":
            pass
        elif (message.term, message.plan) != (self.term, self.plan):
            self._hear_other_plan(peer, message)
        else:
            previous, view.message = view.message, message
            if message.stage != "gathering":
                view.ready_at = min(view.ready_at, self._now)
            if previous is not None and previous.samples and message.started > previous.started:
                self._suspect({peer: "has started anew within the epoch"})
            if self.me in message.suspects and message.stage != "excluded":
                self._hear_accusation(peer, message)
            if peer in self._suspects or self._phase == "excluded":
                return
            if message.stage == "excluded" and self._phase != "gathering":
                self._suspect({peer: "takes no part any more"})

    def _hear_commit(self, peer: PeerId, message: RoundMessage) -> None:
        """Take over a commit, unless we have voted so that others may rely on another one."""
        result = message.attempt, message.counted
        if self._decided is not None:
            return
        if self._voted is not None and self._voted != result and self._voted[0] >= message.attempt:
            self._suspect({peer: f"has committed attempt {message.attempt}, we voted for {self._voted[0]}"})
            return
        for other in sorted(set(message.suspects) | set(self._others) - {p for p, _ in message.counted}):
            if other != self.me:
                self._suspects.setdefault(other, f"{short(peer)} has committed without it")
        if not self._why and self.me not in dict(message.counted):
            self._why = f"{short(peer)} has committed without us"
        self._decided = result
        if self._running is not None and self._running != result:
            self._cancel()
        if self._fetching is not None and self._fetching[1] != result:
            self._fetching = None
        self._enter("adopting", f"{short(peer)} says that attempt {result[0]} is committed")

    def _hear_other_plan(self, peer: PeerId, message: RoundMessage) -> None:
        """Not counted. Of two plans the later, or of one term the one of larger digest, takes precedence."""
        unvoted = self._phase in ("gathering", "forming") and self._voted is None
        later = (message.term, message.plan) > (self.term, self.plan)
        if unvoted and later and message.plan not in self._plans:
            self._plans.add(message.plan)
            self._note(f"{short(peer)} follows plan {message.plan[:8]} of term {message.term}")
            self._effects.append(PlanDiffers(peer, message.term, message.plan))

    def _hear_accusation(self, peer: PeerId, message: RoundMessage) -> None:
        if self._phase == "excluded":
            return
        theirs = set(self._present) - set(message.suspects)
        mine = set(self._participants()) - {peer}
        mutual = peer in self._suspects
        if accusation_stands(self.me, peer, self._present, theirs, mine, mutual):
            self._step_out(f"{short(peer)} goes on without us")
        else:
            self._suspect({peer: f"wants to go on without us, with {len(theirs)} of {len(self._present)}"})

    def _join_others(self) -> None:
        if self._phase in ("gathering", "forming", *IN_FLIGHT):
            for peer, view in self._views.items():
                if view.message is not None and not view.is_out and peer not in self._suspects:
                    self._join(peer, view.message)

    def _join(self, peer: PeerId, message: RoundMessage) -> None:
        """Take over the suspects of a member that counts, and its attempt if it is further."""
        new = set(message.suspects) - set(self._suspects) - {self.me}
        if new and 2 * len(set(self._participants()) - new) < len(self._present):
            return  # suspicion of a majority takes evidence of our own
        for other in sorted(new):
            self._add_suspect(other, f"{short(peer)} goes on without it")
        target = max(self._attempt, message.attempt)
        if new and target == self._attempt and self._phase not in IN_FLIGHT:
            target += 1  # we have said to be ready for this attempt with other participants
        elif target > self._attempt and set(self._suspects) != set(message.suspects):
            target += 1  # so has the other
        if target > self._attempt:
            self._go_to(target, f"{short(peer)} is at attempt {message.attempt}")

    # Steps

    def _step_out(self, reason: str) -> None:
        self._cancel()
        self._fetching = None
        self._why = reason
        self._enter("excluded", f"excluded: {reason}")

    def _cancel(self) -> None:
        if self._running is not None:
            self._effects.append(CancelAverage(self._running[0]))
            self._running = None

    def _suspect(self, reasons: dict[PeerId, str]) -> None:
        """Go on without these members: in a new attempt, unless one is being averaged or voted on."""
        new = sorted(set(reasons) - set(self._suspects))
        for peer in new:
            self._add_suspect(peer, reasons[peer])
        if new and self._phase in ("gathering", "forming"):
            self._go_to(self._attempt + 1, "the participants have changed")

    def _add_suspect(self, peer: PeerId, reason: str) -> None:
        self._suspects[peer] = reason
        self._failures = 0
        self._changed = True
        self._note(f"goes on without {short(peer)}: {reason}")

    def _go_to(self, attempt: int, reason: str) -> None:
        self._cancel()
        self._attempt, self._flight, self._blames, self._fetching = attempt, (), (), None
        self._enter("forming" if self._phase in IN_FLIGHT else self._phase, f"attempt {attempt}: {reason}")
