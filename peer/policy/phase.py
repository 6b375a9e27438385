"""In step also in time: where averaging is overlapped, a member that always ends its quota before the others begins the
next epoch that much before them too, for good, and works so many samples with weights that are one step old. So it
works on for the same epoch once, until the others are ready.
"""

from __future__ import annotations

from protocol.units import Epoch

LEAST_PART = 0.12
"""of an epoch; a smaller lead is jitter, and costs little"""


class Phase:
    """How far this peer is ahead of the last member. Seconds."""

    def __init__(self) -> None:
        self._lead = 0.0
        self._aligned: Epoch = -1
        """the last epoch for which this peer has worked longer"""

    def ended(self, epoch: Epoch, lead: float) -> None:
        """In the round of `epoch`, the last other member was ready so long after this one."""
        if epoch >= self._aligned:  # those before do not show what was done since
            self._lead = lead

    def to_work_longer(self, epoch: Epoch, epoch_seconds: float) -> float:
        """How long to gather for `epoch`, beyond the quota, which takes `epoch_seconds`."""
        lead, self._lead = min(self._lead, epoch_seconds), 0.0
        if lead < LEAST_PART * epoch_seconds:
            return 0.0
        self._aligned = epoch
        return lead
