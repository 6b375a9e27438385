"""Time of a tally, by the number of ballots: under a second for 10,000, and at most linear-logarithmic from 1,000.

    python -m benchmarks.tally [--json FILE]

Each ballot has the most link sightings that fit into a record. Timed is what a peer does each term once records are
admitted: `protocol.tally.tally`, with no previous plan and with one whose lanes the sightings confirm; the fastest of
some repetitions counts, since whatever else runs only adds. The digest that is voted for is timed apart. The program
exits with 1 if a limit is broken.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protocol.plan import Plan
from protocol.records import MAX_LINKS_SEEN, Ballot, LinkSeen
from protocol.signing import SigningKey
from protocol.tally import tally

COUNTS = (1_000, 2_000, 5_000, 10_000)
LIMIT_SECONDS = 1.0
TOLERANCE = 1.3
"""of the growth, for what the processor's caches hold of little and not of much"""
REPETITIONS = 5
RUN = "ab" * 32
NUM_PARAMETERS = 1_100_000
MEGABITS = (1, 5, 20, 100, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.tally")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    swarm = ballots(max(COUNTS))
    results = [measure(swarm[:count], overlap) for overlap in (1, 0) for count in COUNTS]
    broken = show(results)
    if options.json:
        options.json.write_text(json.dumps({"results": results, "broken": broken}, indent=2) + "\n")
    raise SystemExit(1 if broken else 0)


def ballots(count: int) -> list[Ballot]:
    """A swarm in which everybody has seen some others."""
    chance = random.Random(0)  # noqa: S311  (a swarm, not a secret)
    peers = [SigningKey(number.to_bytes(32, "big")).peer_id for number in range(count)]
    links = {peer: chance.choice(MEGABITS) * 125_000 for peer in peers}
    cast = []
    for number, peer in enumerate(peers):
        # of peers with numbers near its own, so that also a part of the swarm has seen itself
        near = max(MAX_LINKS_SEEN * 4, min(count, number + MAX_LINKS_SEEN * 4))
        seen = sorted(chance.sample(peers[max(0, near - 1000) : near], MAX_LINKS_SEEN))
        rates = [links[other] * chance.randint(90, 100) // 100 for other in seen]
        cast.append(
            Ballot(
                run=RUN,
                peer=peer,
                expires=0,
                term=1,
                epoch=1,
                throughput=chance.randint(10_000, 100_000),
                links=[LinkSeen(peer=o, up=rate, down=rate) for o, rate in zip(seen, rates, strict=True)],
            )
        )
    return cast


def measure(cast: list[Ballot], overlap: int) -> dict[str, Any]:
    def tallied(previous: Plan | None) -> Plan:
        plan, _ = tally(
            RUN,
            1,
            cast,
            {},
            100 * len(cast),
            len(cast),
            num_parameters=NUM_PARAMETERS,
            overlap=overlap,
            compression="auto",
            previous=previous,
        )
        assert plan is not None
        return plan

    plan = tallied(None)
    return {
        "ballots": len(cast),
        "overlap": overlap,
        "seconds": fastest(lambda: tallied(None)),
        "seconds_with_previous": fastest(lambda: tallied(plan)),
        "seconds_digest": fastest(lambda: plan.digest),
        "step": len(plan.groups[0].members),
        "slow": len(plan.slow),
    }


def fastest(work: Callable[[], object]) -> float:
    def once() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return min(once() for _ in range(REPETITIONS))


def show(results: list[dict[str, Any]]) -> list[str]:
    """Print a table; which limits are broken."""
    broken = []
    print(f"{'overlap':>7} {'ballots':>8} {'step':>5} {'slow':>6} {'tally':>9} {'again':>9} {'digest':>9}")
    for one in results:
        times = [one["seconds"], one["seconds_with_previous"], one["seconds_digest"]]
        print(
            f"{one['overlap']:>7} {one['ballots']:>8} {one['step']:>5} {one['slow']:>6} "
            + " ".join(f"{seconds:>7.3f} s" for seconds in times)
        )
        base = next(first for first in results if first["overlap"] == one["overlap"])
        growth = one["ballots"] * math.log(one["ballots"]) / (base["ballots"] * math.log(base["ballots"]))
        for name in ("seconds", "seconds_with_previous"):
            what = f"{one['ballots']} ballots, overlap {one['overlap']}, {name}"
            if one[name] > LIMIT_SECONDS:
                broken.append(f"{what}: {one[name]:.2f} s, over {LIMIT_SECONDS:.0f} s")
            if one[name] > TOLERANCE * growth * base[name]:
                broken.append(f"{what}: {one[name] / base[name]:.1f} times as long, n log n grows {growth:.1f} times")
    print("\n".join(broken) or "all limits are kept")
    return broken


if __name__ == "__main__":
    main()
