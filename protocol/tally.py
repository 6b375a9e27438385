"""The pure function from ballots to the plan of a term: what every peer computes for itself, with the same result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from protocol.lanes import Chosen, Lanes, Work, place
from protocol.links import links_of
from protocol.pace import Candidate
from protocol.plan import Group, Member, Plan, SlowMember
from protocol.quota import apportion
from protocol.reasons import Verdict, explain, seconds
from protocol.records import Ballot
from protocol.shares import reduce_shares
from protocol.sponsors import assign
from protocol.units import Epoch, MilliRate, PeerId, RunId


def tally(
    run: RunId,
    term: int,
    ballots: Sequence[Ballot],
    absent: Mapping[PeerId, Epoch],
    target_batch_size: int,
    max_peers: int,
    *,
    num_parameters: int,
    overlap: int,
    compression: Chosen,
    previous: Plan | None,
) -> tuple[Plan | None, Verdict]:
    """The plan that these ballots make for `term`, and why; no plan if none of them counts.

    A ballot counts if it is for this run and term, and, where its peer is in `absent` (peer -> epoch in which
    it was excluded from a round), if it was cast at a later epoch. Of their peers, the `max_peers` of the highest
    throughput are placed in lanes by their links (`protocol/lanes.py`). Quotas are in proportion to throughput in
    both lanes; who is too slow for a single sample is left out. `previous` is the plan that holds now: all who vote
    must hold the same, since whoever has a place keeps it more easily than another gets it. A member of its step lane
    that is not in `absent` is in step and at work, so it stays although its ballot was not seen in time.
    """
    counted, reasons = _counted(run, term, ballots, absent)
    if not counted:
        return None, Verdict(f"no ballot counts for term {term}{_left_out(reasons.values())}", reasons)
    late = _late(run, term, counted, absent, previous)
    counted |= late
    links = links_of(counted.values())
    fastest = sorted(counted.values(), key=lambda ballot: (-ballot.throughput, ballot.peer))
    for ballot in fastest[max_peers:]:
        reasons[ballot.peer] = _TOO_MANY
    candidates = [Candidate(b.peer, b.throughput, links[b.peer].slower, b.in_step) for b in fastest[:max_peers]]
    work = Work(num_parameters, target_batch_size, overlap, compression)
    lanes, quotas = _place_with_quotas(candidates, work, previous)

    compression, wanted = lanes.compression, frozenset[PeerId]()
    if not all(one.in_step for one in candidates):
        # Whom their links would place in the step lane; rounds are already as compact as they need them to follow.
        ideal = place([replace(one, in_step=True) for one in candidates], work, previous)
        compression, wanted = ideal.compression, frozenset(one.peer for one in ideal.step)

    step = sorted(lanes.step, key=lambda one: one.peer)
    shares = dict(zip((one.peer for one in step), reduce_shares([one.rate for one in step]), strict=True))
    members = tuple(Member(one.peer, one.throughput, quotas[one.peer], shares[one.peer]) for one in step)
    served = {member.peer: member.sponsors for member in previous.slow} if previous else {}
    sponsors = assign(lanes.step, [one.peer for one, _ in lanes.slow], served)
    slow = tuple(
        SlowMember(one.peer, one.throughput, quotas[one.peer], cadence, sponsors[one.peer], one.peer in wanted)
        for one, cadence in sorted(lanes.slow, key=lambda place: place[0].peer)
    )
    throughput = sum(member.throughput for member in members) + sum(member.throughput for member in slow)
    times = _deadline(target_batch_size, throughput), _pace(lanes)
    plan = Plan(term, (Group(members),), slow, compression, *times, run)

    reasons |= {one.peer: _TOO_SLOW for one in candidates if one.peer not in quotas}
    reasons |= explain(lanes, shares, work)
    reasons |= {peer: f"{reasons[peer]} (its ballot was not seen in time)" for peer in late}
    return plan, Verdict(_summary(lanes, work) + _left_out(reasons.values()), reasons)


def _counted(
    run: RunId, term: int, ballots: Sequence[Ballot], absent: Mapping[PeerId, Epoch]
) -> tuple[dict[PeerId, Ballot], dict[PeerId, str]]:
    """The one ballot of each peer that counts, and why those of others do not."""
    counted: dict[PeerId, Ballot] = {}
    returning: dict[PeerId, str] = {}
    for ballot in ballots:
        if ballot.term != term or ballot.run != run:
            continue
        if absent and ballot.epoch <= absent.get(ballot.peer, -1):
            returning[ballot.peer] = _RETURNING
            continue
        known = counted.setdefault(ballot.peer, ballot)
        if known is not ballot:
            # A peer has one ballot; should two be alive, the later one counts, whatever the order.
            counted[ballot.peer] = max(known, ballot, key=_lateness)
    return counted, {peer: reason for peer, reason in returning.items() if peer not in counted}


def _late(
    run: RunId, term: int, counted: Mapping[PeerId, Ballot], absent: Mapping[PeerId, Epoch], previous: Plan | None
) -> dict[PeerId, Ballot]:
    """For those who step with the others, but whose ballots were not seen: what the present plan knows of them."""
    return {
        member.peer: Ballot(run=run, peer=member.peer, expires=0, term=term, epoch=0, throughput=member.throughput)
        for member in (previous.step if previous else ())
        if member.peer not in counted and member.peer not in absent
    }


def _lateness(ballot: Ballot) -> tuple[int, int, int, bool, list[tuple[PeerId, int, int]]]:
    links = [(seen.peer, seen.up, seen.down) for seen in ballot.links]
    return ballot.expires, ballot.epoch, -ballot.throughput, not ballot.in_step, links


def _place_with_quotas(
    candidates: Sequence[Candidate], work: Work, previous: Plan | None
) -> tuple[Lanes, dict[PeerId, int]]:
    """Lanes in which everybody is asked for at least one sample, and how many each is asked for.

    Whoever was left out for its link or for want of sponsors has the quota 0.
    """
    while True:
        lanes = place(candidates, work, previous)
        placed = sorted((*lanes.step, *(one for one, _ in lanes.slow)), key=lambda one: one.peer)
        shared_out = apportion(work.target_batch_size, [one.throughput for one in placed])
        quotas = {one.peer: quota for one, quota in zip(placed, shared_out, strict=True)}
        if all(shared_out):
            return lanes, quotas | {one.peer: 0 for one, _ in lanes.left_out}
        candidates = [one for one in candidates if quotas.get(one.peer, 1)]


def _deadline(target_batch_size: int, throughput: MilliRate) -> int:
    """Milliseconds: when all should have worked their quotas, a tenth more, and a fifth of a second.

    All end at the same moment if the measured speeds hold. Who is late by more hands in what it has: no work is lost,
    and nobody waits long for a device that has just slowed down. The fifth of a second covers what does not scale
    with the work: loading weights and a last microbatch.
    """
    # throughput is in samples per 10^6 milliseconds
    return -(-target_batch_size * 10**6 * 11 // (10 * throughput)) + 200


def _pace(lanes: Lanes) -> int:
    """Milliseconds: a round as predicted, and a fifth of an epoch or a second, whichever is longer."""
    return -(-(lanes.round_microseconds + max(lanes.gathering_microseconds // 5, 10**6)) // 1000)


_RETURNING = "left out: it has not come back since it was excluded; its next ballot will count"
_TOO_MANY = "left out: faster peers fill the limit of the run; it would come in if one of them left"
_TOO_SLOW = "left out: it is too slow for a single sample of the batch; a larger batch or fewer peers would take it in"


def _summary(lanes: Lanes, work: Work) -> str:
    step, slow = len(lanes.step), len(lanes.slow)
    text = f"{_peers(step + slow)} {work.target_batch_size} samples in proportion to throughput"
    if step > 1:
        text += f"; a round of {step} peers ({lanes.compression}) takes {seconds(lanes.round_microseconds)}"
        text += f" of the epoch's {seconds(lanes.gathering_microseconds)}" if work.overlap else ""
    if slow:
        text += f"; {slow} {'is' if slow == 1 else 'are'} in the slow lane"
    return text


def _peers(count: int) -> str:
    return "1 peer gathers" if count == 1 else f"{count} peers share"


def _left_out(reasons: Iterable[str]) -> str:
    """How many are left out, by what the reasons begin with."""
    listed = list(reasons)
    parts = [
        (listed.count(_RETURNING), "not back since exclusion"),
        (listed.count(_TOO_MANY), "over the limit of peers"),
        (listed.count(_TOO_SLOW), "too slow for a single sample"),
    ]
    link = sum(reason.startswith("left out: ") for reason in listed) - sum(count for count, _ in parts)
    text = ", ".join(f"{count} {why}" for count, why in [*parts, (link, "for want of bandwidth")] if count)
    return f"; left out: {text}" if text else ""
