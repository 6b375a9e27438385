"""One peer of `hivemind.Optimizer`: `python -m benchmarks.heterogeneous.systems.hivemind_peer TASK`.

hivemind is used as it is, but for the correction of its 8-bit codec. Two of its methods are wrapped to tell what
happened; the wrapped ones do the same as before.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import hivemind
import numpy as np
import torch
from hivemind.averaging.allreduce import AllReduceRunner
from hivemind.compression import Float16Compression, Uniform8BitQuantization
from hivemind.compression.quantization import Quantization
from hivemind.optim.grad_averager import GradientAverager
from hivemind.p2p import P2P

from benchmarks.heterogeneous.processes import announce, await_file, say
from benchmarks.heterogeneous.setting import Setting
from benchmarks.heterogeneous.systems.hivemind import MATCHMAKING_SECONDS
from benchmarks.heterogeneous.trainer import Trainer, adamw
from benchmarks.heterogeneous.workload import manifest_of, microbatch_of

GRADIENTS = "_grad_averager"
"""in the name of the averager of gradients; the other one averages weights"""


def tuned(task: dict[str, Any]) -> dict[str, Any]:
    """What an expert sets, who knows the number of peers and everybody's link.

    Gradients as 8-bit numbers, state as float16 and rarely, a matchmaking that ends as soon as all are there, time
    for slow senders, and parts in proportion to bandwidth. `averager_opts` reaches only the averager of weights, so
    gradients need a factory of their own. With `delayed`, averaging runs behind the next epoch.
    """
    averager = {
        "bandwidth": float(task["mbits"]),
        "target_group_size": task["peers"],
        "request_timeout": 1.0,
    }
    options: dict[str, Any] = {
        "matchmaking_time": MATCHMAKING_SECONDS,
        "averaging_timeout": 40.0,
        "next_chunk_timeout": 20.0,
        "average_state_every": 10,
        "grad_compression": Uniform8BitQuantization(),
        "state_averaging_compression": Float16Compression(),
        "load_state_compression": Float16Compression(),
        "averager_opts": averager,
        "grad_averager_factory": functools.partial(GradientAverager, **averager),
        "tracker_opts": {"min_refresh_period": 0.2, "default_refresh_period": 1.0},
    }
    if task["tuning"] == "delayed":
        options |= {"delay_grad_averaging": True, "delay_optimizer_step": True}
        # A stalled round holds up the next: better to lose a late sender soon, if only it had time for one part.
        options["next_chunk_timeout"] = max(4.0, 2 * task["part_seconds"])
    return options


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    directory, peer = Path(task["directory"]), task["peer"]
    _correct_eight_bit_codec()
    _tell_how_rounds_end()
    _tell_when_averaging_begins()
    P2P._UNIX_SOCKET_PREFIX = f"/unix{directory}/{peer}-"  # so that its sockets go with the directory

    dht = hivemind.DHT(
        initial_peers=json.loads(await_file(directory / "addresses").read_text()) if peer else [],
        host_maddrs=[f"/ip4/{task['address']}/tcp/0"],
        start=True,
    )
    if not peer:
        announce(directory / "addresses", json.dumps([str(address) for address in dht.get_visible_maddrs()]))
    trainer = Trainer(manifest_of(Setting(target=task["target"])), peer, task["rate"])
    samples = microbatch_of(task["rate"])
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="benchmark",
        params=trainer.model.parameters(),
        optimizer=functools.partial(adamw, manifest=trainer.manifest),
        target_batch_size=task["target"],
        batch_size_per_step=samples,
        **({} if task["tuning"] == "default" else tuned(task)),
    )
    announce(directory / f"ready-{peer}", "")
    for other in range(task["peers"]):
        await_file(directory / f"ready-{other}")
    while True:
        began, overruns = time.monotonic(), trainer.pace.overruns
        optimizer.zero_grad()
        trainer.work(samples)
        worked = time.monotonic()
        optimizer.step()
        say(
            "Microbatch",
            epoch=optimizer.local_epoch,
            compute=worked - began,
            blocked=time.monotonic() - worked,
            overruns=trainer.pace.overruns - overruns,
        )


def _correct_eight_bit_codec() -> None:
    """As hivemind's later source has it: `int()` of an array is an error with numpy 2.4, which 1.1.12 swallows."""

    def extract(self: Quantization, given: Any) -> torch.Tensor:
        size = np.frombuffer(given.buffer, count=1, dtype=np.int64).item()
        codebook = np.frombuffer(given.buffer, offset=8, count=size, dtype=self.codebook_dtype)
        indices = np.frombuffer(given.buffer, offset=8 + codebook.nbytes, dtype=self.indices_dtype)
        chosen = torch.as_tensor(indices, dtype=torch.int64).reshape(tuple(given.size))
        values = torch.as_tensor(codebook).to(dtype=getattr(torch, given.dtype))
        return values[chosen].requires_grad_(given.requires_grad)

    Quantization.extract = extract


def _tell_how_rounds_end() -> None:
    """Each member of an all-reduce of gradients tells what it accepted from whom, and what it got."""
    begin, end = AllReduceRunner.__init__, AllReduceRunner.finalize

    @functools.wraps(begin)
    def begins(self: Any, *args: Any, **kwargs: Any) -> None:
        self.began = time.monotonic()
        begin(self, *args, **kwargs)

    @functools.wraps(end)
    def ends(self: Any, *, cancel: bool = False, exception: BaseException | None = None) -> None:
        if GRADIENTS in (self._prefix or "") and not self._future.done():
            container, reducer = self.tensor_part_container, self.tensor_part_reducer
            sizes = [int(shape.numel()) for shape in reducer.part_shapes]
            accepted = {
                str(sender): sum(sizes[: int(min(reducer.sender_failed_after[i], len(sizes)))]) / container.total_size
                for i, sender in enumerate(self.sender_peer_ids)
            }
            broken = cancel or exception is not None
            say(
                "RoundEnded",
                group=self.group_id.hex(),
                me=str(self.peer_id),
                size=len(self.ordered_peer_ids),
                weight=float(self.weight),
                accepted=accepted,
                received=0.0 if broken else 1 - container.failed_size / container.total_size,
                seconds=time.monotonic() - self.began,
            )
        end(self, cancel=cancel, exception=exception)

    AllReduceRunner.__init__, AllReduceRunner.finalize = begins, ends


def _tell_when_averaging_begins() -> None:
    begin = hivemind.Optimizer._begin_averaging_gradients

    @functools.wraps(begin)
    def begins(self: Any, *args: Any, **kwargs: Any) -> Any:
        say("Averaging", epoch=self.local_epoch)
        return begin(self, *args, **kwargs)

    hivemind.Optimizer._begin_averaging_gradients = begins


if __name__ == "__main__":
    main()
