"""Which epoch the swarm is in: the word of the weight, never of the loudest peer."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.units import Epoch, MilliRate, PeerId, short


def quorum_epoch(epochs: Mapping[PeerId, Epoch], weights: Mapping[PeerId, MilliRate]) -> tuple[Epoch | None, str]:
    """The largest epoch that peers with more than half of the weight have reached, and why.

    Peers without weight (newcomers) do not count. It is the weighted median, the one quantile that is safe to
    the same degree both ways: peers who claim too much, or who stand still, must hold half of the weight to
    move it beyond what the others say. In particular one peer moves nothing while it has less than a third.
    None if nobody with weight has said anything.
    """
    voices = sorted(
        ((epoch, weights[peer], peer) for peer, epoch in epochs.items() if weights.get(peer, 0) > 0),
        reverse=True,
    )
    whole = sum(weight for _, weight, _ in voices)
    reached = 0
    for quorum, weight, _ in voices:
        reached += weight
        if 2 * reached > whole:
            ahead = [peer for epoch, _, peer in voices if epoch > quorum]
            behind = [peer for epoch, _, peer in voices if epoch < quorum]
            reason = f"{100 * reached // whole} % of the weight has reached epoch {quorum}"
            return quorum, reason + _named(ahead, "ahead") + _named(behind, "behind")
    return None, "no peer with weight has reported its epoch"


def _named(peers: list[PeerId], where: str) -> str:
    if not peers:
        return ""
    names = ", ".join(map(short, sorted(peers)[:3]))
    return f"; {where}: {names}" + (f" and {len(peers) - 3} more" if len(peers) > 3 else "")
