"""Unequal peers on unequal links: minga beside hivemind and PyTorch DDP, each as an expert would set it up.

    python -m benchmarks.heterogeneous --systems minga,hivemind,ddp --speeds 1,1,0.6,0.15 \\
        --links 100,100,20,5 --target 512 [--exact] [--quick] --json FILE [--chart FILE.svg]

Each peer is a set of real processes in a network namespace of its own, whose link is limited both ways. The text, the
model, the gradients, the sockets and the bytes are real; what is emulated is the speed of each peer's device (1.0 is
40 samples/s), by waiting for moments that are fixed in advance (`peer/training/pacing.py`, for all systems).

Rules of these measurements:

* Only samples that really entered an average count. hivemind reports success for rounds that lost a part of the
  vector; its samples count by the share that the reducers really accepted.
* Efficiency is samples per second together, divided by the sum of what each peer does alone; the latter is measured
  before and after.
* A measurement is void, and says why, when the emulated devices could not keep their pace on this computer.
* The window begins and ends with an epoch, after all peers have joined and settled. Where a peer's samples enter only
  now and then, it begins and ends with such an epoch, so that whole cycles are counted.
"""
