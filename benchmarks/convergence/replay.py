"""One variant with one seed, epoch by epoch, without network and clock.

    python -m benchmarks.convergence.replay '{"variant": …, "seed": …, "setting": {…}}'

says how it goes as a JSON object a line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.convergence.averaging import Averaging
from benchmarks.convergence.guests import Guest, Outer, Stepper, Works
from benchmarks.convergence.setting import GUEST, PEERS, Setting
from benchmarks.convergence.variants import Variant, variant_of
from benchmarks.heterogeneous.processes import say
from peer.daemon.sponsor import Deposit
from peer.policy.staleness import weight_of_age
from peer.swarm.parts import Contribution
from peer.training.initial import initial_weights
from peer.training.optimizer import AdamW, Vector
from peer.training.presets import PRESETS, layout_of
from protocol.units import PeerId


@dataclass
class Update:
    """One epoch's end."""

    number: int
    """updates so far, this one included"""
    samples: int
    """behind the average, those of the guest included"""
    guest_samples: int
    mean: Vector = field(repr=False)


class Replay:
    def __init__(self, setting: Setting, variant: Variant, seed: int, gradients: Works) -> None:
        self._setting, self._variant, self._gradients = setting, variant, gradients
        manifest = setting.manifest(seed)
        layout = layout_of(PRESETS[manifest.model.preset])
        self.weights: Vector = initial_weights(layout, seed)
        self._ahead: dict[PeerId, Vector] = {}
        """what each peer has predicted of the weights of the present epoch, by its own gradient"""
        self._optimizer = AdamW(
            manifest, layout, self.weights, np.zeros_like(self.weights), np.zeros_like(self.weights)
        )
        lane = variant.lane
        self._members = PEERS if lane is None else tuple(peer for peer in PEERS if peer != GUEST)
        self._averaging = Averaging(len(self._members), variant.compression)
        self._guest: Guest | None = None
        self._outer: Outer | None = None
        if lane == "sums":
            self._guest = Guest(GUEST, setting.quotas[GUEST], variant, self.weights)
        elif lane in ("nesterov", "added"):
            self._guest = Stepper(GUEST, setting.quotas[GUEST], variant, self.weights, manifest)
            self._outer = Outer(nesterov=lane == "nesterov")

    def updates(self) -> Iterator[Update]:
        """Make them one after another."""
        for epoch in range(self._setting.updates):
            yield self._update(epoch)

    def _update(self, epoch: int) -> Update:
        sums = [self._gather(peer, epoch) for peer in self._members]
        counts = [self._setting.quotas[peer] for peer in self._members]
        samples = sum(counts)
        if self._is_overlapped(epoch + 1):
            self._predict(sums, counts, epoch)
        deposit = self._visit(epoch)
        if deposit is not None and self._outer is None:
            sponsor = epoch // self._variant.cadence % len(self._members)  # in turn
            sums[sponsor] = sums[sponsor] + deposit.sums * np.float32(weight_of_age(epoch - deposit.epoch))
            counts[sponsor] += deposit.samples
        members = [Contribution(peer, count, 1) for peer, count in zip(self._members, counts, strict=True)]
        mean = self._averaging.run(members, sums)
        self._optimizer.step(mean, epoch)
        guest_samples = deposit.samples if deposit else 0
        if deposit is not None and self._outer is not None:
            self._outer.step(self.weights, deposit.sums, self._setting.quotas[GUEST] / self._setting.target)
        return Update(epoch + 1, samples + guest_samples, guest_samples, mean)

    def _is_overlapped(self, epoch: int) -> bool:
        """Whether the first samples of the epoch are worked before its weights are there."""
        warmup = self._optimizer.manifest.schedule.warmup_epochs
        return bool(self._variant.overlap) and self._setting.stale > 0 and epoch >= max(1, warmup)

    def _predict(self, sums: Sequence[Vector], counts: Sequence[int], epoch: int) -> None:
        """The weights that follow those of `epoch`: each peer by what it has gathered itself."""
        for peer, total, count in zip(self._members, sums, counts, strict=True):
            ahead = self._ahead.setdefault(peer, np.empty_like(total))
            self._optimizer.predict(total / np.float32(count), epoch, ahead)

    def _gather(self, peer: PeerId, epoch: int) -> Vector:
        """An epoch's samples, the first of them with predicted weights."""
        quota = self._setting.quotas[peer]
        stale = round(self._setting.stale * quota) if self._is_overlapped(epoch) else 0
        if not stale:
            return self._gradients.sums(self.weights, peer, epoch, range(quota))
        sums = self._gradients.sums(self._ahead[peer], peer, epoch, range(stale))
        if stale < quota:
            sums += self._gradients.sums(self.weights, peer, epoch, range(stale, quota))
        return sums

    def _visit(self, epoch: int) -> Deposit | None:
        """What of the guest's enters this epoch."""
        if self._guest is None:
            return None
        self._guest.gather(self._gradients, epoch)
        if (epoch + 1) % self._variant.cadence:
            return None
        return self._guest.end_cycle(self.weights, epoch)


def main() -> None:
    from benchmarks.convergence.gradients import Gradients

    task: dict[str, Any] = json.loads(sys.argv[1])
    setting, variant = Setting(**task["setting"]), variant_of(task["variant"])
    gradients = Gradients(setting.manifest(task["seed"]))
    replay = Replay(setting, variant, task["seed"], gradients)
    began = time.monotonic()
    curve = [(0, gradients.heldout(replay.weights))]
    merged = 0
    for update in replay.updates():
        merged += update.samples
        if setting.is_evaluated(update.number):
            curve.append((update.number, gradients.heldout(replay.weights)))
        say("Updated", update=update.number)
    say("Done", curve=curve, merged_samples=merged, seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
