"""What gradients of older weights still weigh."""

from __future__ import annotations


def weight_of_age(epochs: int) -> float:
    """Of a sum of gradients whose weights are so many epochs older than those of the epoch that it enters.

    One divided by the age, as in staleness-aware asynchronous SGD (arXiv 1511.05950): a late gradient makes AdamW
    oscillate where the loss is sharp. `python -m benchmarks.convergence` shows that at full weight such sums cost more
    than leaving them out.
    """
    return 1.0 / max(1, epochs)
