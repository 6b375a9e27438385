"""Which members of the step lane serve those of the slow lane.

Guests are spread in proportion to the links of their sponsors. A sponsor keeps a copy of its guests' weights, so they
stay with it from term to term unless it has become far too many for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from protocol.pace import Candidate
from protocol.plan import SPONSORS
from protocol.units import PeerId

_FINE = 10**15  # more than any rate, so that loads of different links differ as integers


def assign(
    step: Sequence[Candidate], guests: Sequence[PeerId], previous: Mapping[PeerId, Sequence[PeerId]]
) -> dict[PeerId, tuple[PeerId, ...]]:
    """Each guest's sponsors, the first of whom serves it while it can: two, or one where there is but one.

    `previous` has those of the previous plan. The result does not depend on any order.
    """
    rates = {one.peer: one.rate for one in step}
    roles = min(SPONSORS, len(step))
    total = sum(rates.values())
    load = dict.fromkeys(rates, 0)
    fair = {peer: -(-len(guests) * roles * rate // total) + 1 for peer, rate in rates.items()}
    assigned: dict[PeerId, list[PeerId]] = {guest: [] for guest in sorted(guests)}
    for role in range(roles):
        for guest, sponsors in assigned.items():
            for peer in previous.get(guest, ()):
                if peer in rates and peer not in sponsors and load[peer] < fair[peer]:
                    sponsors.append(peer)
                    load[peer] += 1
                    break
        queue = [((load[peer] + 1) * _FINE // rate, peer) for peer, rate in rates.items()]
        heapify(queue)
        for sponsors in assigned.values():
            if len(sponsors) > role:
                continue
            found = heappop(queue)
            if found[1] in sponsors:
                found, skipped = heappop(queue), found
                heappush(queue, skipped)
            peer = found[1]
            sponsors.append(peer)
            load[peer] += 1
            heappush(queue, ((load[peer] + 1) * _FINE // rates[peer], peer))
    return {guest: tuple(sponsors) for guest, sponsors in assigned.items()}
