"""Does what minga does for speed cost quality? Held-out loss at equal samples, beside exact large-batch training.

    python -m benchmarks.convergence [--seeds N] [--updates N] [--quick] [--json FILE] [--chart FILE.svg]
    python -m benchmarks.convergence --peers     (Linux, root)

Without `--peers` this is a *replay*: one process a (variant, seed), without network and clock, that uses minga's own
model, text, sample order, optimizer, codecs and error feedback, and the worst staleness that minga allows:

* *Overlapped*: all samples of an epoch are worked with weights one epoch old, as if each average arrived only when
  the next epoch's samples were gathered. Averages of real peers arrive earlier: `--stale 0.3` replays that.
* *Slow lane*: what a guest hands in, and the weights that it fetches, are under way for a whole cycle. So its
  gradients are of weights that are up to three cycles old when they enter a round.

With `--peers` the same runs are made by real peers, as users run them, on emulated links; their values at the end
stand beside those of the replay.

Rules of these measurements:

* In every variant each peer works the same samples in the same epochs, so differences between variants are paired.
* Every variant makes the same number of updates. What a guest has still under way at the end counts as worked.
* Optimizer and learning rate are minga's defaults for all variants; none is tuned.
"""
