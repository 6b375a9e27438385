"""A peer whose link cannot carry a round in an epoch is placed in the slow lane, and its samples are merged."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.swarm, pytest.mark.netns]


@pytest.mark.parametrize("place", [[0, 0, 0.5]], indirect=True)
def test_a_slow_link_trains_at_its_own_cadence(swarm, place) -> None:
    host = swarm.host("--emulate-throughput", "60", target=60, compression="auto", **place(0))
    invite = host.started["invite"]
    swarm.join(invite, "--emulate-throughput", "60", **place(1))
    slow = swarm.join(invite, "--emulate-throughput", "30", **place(2))

    measured = slow.wait_event("LinkMeasured", seconds=60)
    assert measured["rate"] * 8 / 1e6 == pytest.approx(0.5, rel=0.35)
    handed = [slow.wait_for(lambda e: e["event"] == "HandedIn", 60)]
    slow.wait_for(lambda e: e["event"] == "HandedIn" and e["epoch"] > handed[0]["epoch"] + 4, 60)
    name = slow.started["peer"]
    merged = host.wait_for(lambda e: e["event"] == "EpochCommitted" and name in e["guests"], 30)
    assert merged["samples"][name] == merged["guests"][name] > 0

    # Without it in every round, a round of 71 kB over 0.5 Mbit/s (1.1 s) holds up nobody's epoch of 0.4 s.
    settled = [c for c in host.commits if c["epoch"] > merged["epoch"]]
    while len(settled) < 8:
        host.wait_epoch(host.commits[-1]["epoch"] + 1)
        settled = [c for c in host.commits if c["epoch"] > merged["epoch"]]
    durations = sorted(commit["seconds"] for commit in settled)
    assert durations[len(durations) // 2] < 0.8
