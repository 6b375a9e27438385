"""Sharing out whole things in proportion to weights: the method of the largest remainder, in integers."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import LocalProtocolError


def apportion(total: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Split `total` into whole shares in proportion to `weights`; the shares sum to `total` exactly.

    Each share is its exact value rounded down or up; who is rounded up is decided by the largest remainder,
    and among equals by position. A weight of zero gets nothing. Raises `LocalProtocolError` for negative
    arguments, and
    if all weights are zero while there is something to share out.
    """
    if total < 0 or any(weight < 0 for weight in weights):
        raise LocalProtocolError("only non-negative quantities can be shared out, by non-negative weights")
    whole = sum(weights)
    if whole == 0:
        if total:
            raise LocalProtocolError(f"{total} cannot be shared out among no weight")
        return (0,) * len(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for position in by_remainder[: total - sum(shares)]:
        shares[position] += 1
    return tuple(shares)
