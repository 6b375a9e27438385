from __future__ import annotations

import random

import pytest

from peer.policy.phase import LEAST_PART, Phase


def test_a_small_lead_is_left_alone() -> None:
    phase = Phase()
    phase.ended(3, 0.9 * LEAST_PART * 10)
    assert phase.to_work_longer(5, 10.0) == 0.0


def test_a_lead_is_made_up_for_once() -> None:
    phase = Phase()
    phase.ended(3, 4.0)
    assert phase.to_work_longer(5, 10.0) == 4.0
    phase.ended(4, 4.0)  # gathered before: it shows nothing new
    assert phase.to_work_longer(6, 10.0) == 0.0
    phase.ended(5, 2.0)
    assert phase.to_work_longer(7, 10.0) == 2.0


def test_no_longer_than_another_epoch() -> None:
    phase = Phase()
    phase.ended(3, 40.0)
    assert phase.to_work_longer(4, 10.0) == 10.0


@pytest.mark.parametrize("seed", range(5))
def test_members_that_began_at_any_time_come_into_phase(seed: int) -> None:
    """Each begins an epoch when it has ended the one before, and no epoch before the last but one was committed."""
    source = random.Random(seed)
    seconds, phases = 10.0, [Phase() for _ in range(4)]
    ends = [source.uniform(0.0, seconds) for _ in phases]
    for epoch in range(12):
        ready = max(ends)
        leads = [ready - end for end in ends]
        begins = list(ends)
        works = [seconds + phase.to_work_longer(epoch + 1, seconds) for phase in phases]
        for phase, lead in zip(phases, leads, strict=True):
            phase.ended(epoch, lead)
        ends = [begin + work + source.uniform(0.0, 0.1) for begin, work in zip(begins, works, strict=True)]
    assert max(ends) - min(ends) < 0.25 * seconds
    assert max(leads) < 0.25 * seconds
