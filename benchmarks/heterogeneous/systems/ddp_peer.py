"""One rank of DDP: `python -m benchmarks.heterogeneous.systems.ddp_peer TASK`."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.heterogeneous.processes import say
from benchmarks.heterogeneous.setting import Setting
from benchmarks.heterogeneous.trainer import Trainer, adamw
from benchmarks.heterogeneous.workload import manifest_of, microbatch_of
from peer.training.model import Transformer

PORT = 29500
BUCKET_MEGABYTES = 1
"""small, so that the first buckets travel while the backward pass goes on"""
TIMEOUT = datetime.timedelta(minutes=10)


class Losses(nn.Module):
    """DDP watches a module's forward; ours are losses."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT1: Tensor) -> Tensor:
        return self.model.loss(tokens_BT1)


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{task['master']}:{PORT}",
        rank=task["rank"],
        world_size=task["world"],
        timeout=TIMEOUT,
    )
    trainer = Trainer(manifest_of(Setting(target=task["target"])), task["peer"], task["rate"])
    model = DistributedDataParallel(Losses(trainer.model), bucket_cap_mb=BUCKET_MEGABYTES, gradient_as_bucket_view=True)
    if task["float16"]:
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = adamw(model.parameters(), trainer.manifest)
    step = 0
    while True:
        began, ready = time.monotonic(), 0.0
        overruns, microbatches = trainer.pace.overruns, trainer.microbatches
        optimizer.zero_grad(set_to_none=False)
        left = task["quota"]
        while left:
            samples = min(left, microbatch_of(task["rate"]))
            left -= samples
            ready = time.monotonic() + samples / task["rate"]
            _work(trainer, model, samples, weight=task["world"] / task["target"], is_last=not left)
        optimizer.step()
        say(
            "Step",
            step=step,
            began=began,
            ready=ready,
            samples=task["quota"],
            overruns=trainer.pace.overruns - overruns,
            microbatches=trainer.microbatches - microbatches,
        )
        step += 1


def _work(trainer: Trainer, model: DistributedDataParallel, samples: int, *, weight: float, is_last: bool) -> None:
    """One microbatch. The gradients of the last one are averaged; its lateness is the network's, not the device's.

    `weight`: DDP divides by the number of ranks, so with it the result is the mean over all samples of all ranks.
    """
    with contextlib.nullcontext() if is_last else model.no_sync():
        losses = trainer.losses(samples, model)
        (losses.sum() * weight).backward()  # type: ignore[no-untyped-call]
    before = trainer.pace.overruns
    trainer.finish()
    if is_last:
        trainer.pace.overruns = before


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
