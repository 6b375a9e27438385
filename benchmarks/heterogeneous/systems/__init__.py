"""The systems that are compared, by name.

| name | what |
|---|---|
| `minga` | as users run it: `minga host` and `minga join`, nothing set for the peers or the links |
| `minga-exact` | the same with `overlap = 0`: exact large-batch training |
| `hivemind` | `hivemind.Optimizer`, tuned by hand (`hivemind_peer.py`), delayed where epochs are long |
| `hivemind-sync`, `hivemind-delayed` | the same, never and always delayed |
| `hivemind-default` | `hivemind.Optimizer` with its defaults |
| `ddp` | PyTorch DistributedDataParallel on gloo, quotas set by hand, gradients sent as float16 |
| `ddp-equal` | DDP as it comes: equal batches, float32 |
| `ddp-without-slowest` | `ddp` among the peers other than the one with the slowest link |
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from benchmarks.heterogeneous.measure import Observation
from benchmarks.heterogeneous.network import Network
from benchmarks.heterogeneous.processes import Processes
from benchmarks.heterogeneous.setting import Setting

NAMES = (
    "minga",
    "minga-exact",
    "hivemind",
    "hivemind-sync",
    "hivemind-delayed",
    "hivemind-default",
    "ddp",
    "ddp-equal",
    "ddp-without-slowest",
)


class Stage:
    """Where one system is run."""

    def __init__(self, setting: Setting, network: Network, processes: Processes, directory: Path) -> None:
        self.setting, self.network, self.processes, self.directory = setting, network, processes, directory


class System(Protocol):
    """How one system is started and understood."""

    name: str
    remarks: tuple[str, ...]
    """that a reader of its numbers has to know"""

    def start(self, stage: Stage) -> None:
        """Start a process a peer. Raises `PeerEnded`."""

    def observe(self, stage: Stage) -> Observation:
        """What has happened so far."""

    def patience_seconds(self, setting: Setting) -> float:
        """How long it may take until everybody has joined and settled."""


def system_of(name: str, setting: Setting) -> System:
    """The system of this name."""
    from benchmarks.heterogeneous.systems.ddp import Ddp
    from benchmarks.heterogeneous.systems.hivemind import Hivemind
    from benchmarks.heterogeneous.systems.minga import Minga

    match name.split("-"):
        case ["minga"]:
            return Minga(name, exact=setting.exact)
        case ["minga", "exact"]:
            return Minga(name, exact=True)
        case ["hivemind", *_]:
            return Hivemind(name)
        case _:
            return Ddp(name)
