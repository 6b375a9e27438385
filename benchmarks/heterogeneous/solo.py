"""Each device alone: how many samples per second it does when it never communicates.

All devices are measured at once, so that this computer is as busy as with the systems; and from the same moment on,
so that none is measured while another still loads its libraries.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.heterogeneous.processes import Processes, announce, await_file, say
from benchmarks.heterogeneous.setting import Setting

START_SECONDS = 120.0
MEASURE_SECONDS = 6.0
QUICK_SECONDS = 3.0
TRIES = 3
"""of which the best counts: what else runs on this computer can only make a device slower"""
CLOSE = 0.99
"""of the nominal speed, at which no further try is needed"""


def measure_solo(setting: Setting, directory: Path) -> tuple[float, ...]:
    """Samples per second of each peer alone. Raises `PeerEnded` if one could not be measured."""
    seconds = QUICK_SECONDS if setting.quick else MEASURE_SECONDS
    directory.mkdir()
    processes = Processes(directory)
    try:
        for peer in setting.peers:
            task = {"rate": setting.rates[peer], "seconds": seconds, "peer": peer, "begin": str(directory / "begin")}
            command = [sys.executable, "-m", "benchmarks.heterogeneous.solo", json.dumps(task)]
            processes.start(peer, command, {"TMPDIR": str(directory)})
        for peer in setting.peers:
            processes.wait_for(peer, "Ready", START_SECONDS)
        announce(directory / "begin")
        found = [processes.wait_for(peer, "Solo", START_SECONDS) for peer in setting.peers]
        return tuple(float(said.event["samples_per_s"]) for said in found)
    finally:
        processes.end()


def main() -> None:
    from benchmarks.heterogeneous.trainer import Trainer
    from benchmarks.heterogeneous.workload import manifest_of, microbatch_of

    task = json.loads(sys.argv[1])
    trainer = Trainer(manifest_of(Setting()), task["peer"], task["rate"])
    microbatch = microbatch_of(task["rate"])
    trainer.work(microbatch)  # the first one also loads libraries
    say("Ready")
    await_file(Path(task["begin"]))
    best = 0.0
    for _ in range(TRIES):
        began, samples = time.monotonic(), 0
        while (taken := time.monotonic() - began) < task["seconds"]:
            trainer.work(microbatch)
            samples += microbatch
        best = max(best, samples / taken)
        if best >= CLOSE * task["rate"]:
            break
    say("Solo", samples_per_s=best)
    time.sleep(START_SECONDS)  # until we are ended: an early end would look like a failure


if __name__ == "__main__":
    main()
