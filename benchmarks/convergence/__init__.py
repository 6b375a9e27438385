"""Does what minga does for speed cost quality? Held-out loss at equal samples, beside exact large-batch training.

    python -m benchmarks.convergence [--seeds N] [--updates N] [--quick] [--json FILE] [--chart FILE.svg]
    python -m benchmarks.convergence --peers     (Linux, root)

Without `--peers` this is a *replay*: one process a (variant, seed), without network and clock, that uses minga's own
model, text, sample order, optimizer, codecs and error feedback:

* *Overlapped*: a quarter of an epoch's samples are worked before its weights are there, with weights that each peer
  predicts by its own gradient. The shorter the epochs, the larger that part: `--stale 1` is the worst.
* *Slow lane*: what a guest hands in, and the weights that it fetches, are under way for a whole cycle: the worst that
  minga allows. So its gradients are of weights that are up to three cycles old when they enter a round, and weigh
  as much less.

With `--peers` the same runs are made by real peers, as users run them, on emulated links; their values at the end
stand beside those of the replay.

Rules of these measurements:

* In every variant each peer works the same samples in the same epochs, so differences between variants are paired.
* Every variant makes the same number of updates. What a guest has still under way at the end counts as worked.
* Optimizer and learning rate are minga's defaults for all variants; none is tuned.
"""
