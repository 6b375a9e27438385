"""What is trained, and how much: one small transformer on real text, by four unequal peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from benchmarks.command import InvalidSetting
from benchmarks.heterogeneous.setting import Setting as Heterogeneous
from peer.training.presets import PRESETS, num_parameters
from protocol.manifest import Manifest, parse_manifest
from protocol.order import sample_start
from protocol.quota import apportion
from protocol.signing import SigningKey
from protocol.units import PeerId

PRESET: Final = "micro"
NUM_PARAMETERS = num_parameters(PRESETS[PRESET])
"""1.07 million"""
SPEEDS = Heterogeneous().speeds
"""as in `benchmarks.heterogeneous`"""
NUM_PEERS = len(SPEEDS)
PEERS: tuple[PeerId, ...] = tuple(SigningKey(bytes([number] * 32)).peer_id for number in range(1, NUM_PEERS + 1))
GUEST = PEERS[-1]
"""that is in the slow lane, in the variants that have one"""
MAX_SEEDS, MAX_UPDATES = 100, 100_000
EVALUATIONS, LEAST_BETWEEN_EVALUATIONS = 10, 4
"""of the held-out loss, along a run; and the fewest updates between two of them"""


@dataclass(frozen=True)
class Setting:
    updates: int = 300
    seeds: int = 3
    target: int = 32
    """samples of an update"""
    sequence_length: int = 64
    learning_rate: float = 3e-3
    """minga's default"""
    evaluation_samples: int = 192
    stale: float = 0.25
    """part of an epoch's samples that is worked before its weights are there, where averaging is overlapped: about what
    the usual setting of `benchmarks.heterogeneous` shows, where a round takes a second of an epoch of 4.7"""

    def __post_init__(self) -> None:
        if not 1 <= self.updates <= MAX_UPDATES:
            raise InvalidSetting(f"{self.updates} updates cannot be made; give --updates 1 to {MAX_UPDATES}")
        if not 1 <= self.seeds <= MAX_SEEDS:
            raise InvalidSetting(f"{self.seeds} seeds cannot be compared; give --seeds 1 to {MAX_SEEDS}")
        if not 0 <= self.stale <= 1:
            raise InvalidSetting(f"{self.stale:g} is no part of the samples; give --stale 0 to 1")

    @property
    def quotas(self) -> dict[PeerId, int]:
        """Samples of each peer in an epoch."""
        return dict(zip(PEERS, apportion(self.target, [round(1000 * speed) for speed in SPEEDS]), strict=True))

    @property
    def evaluate_every(self) -> int:
        return max(LEAST_BETWEEN_EVALUATIONS, self.updates // EVALUATIONS)

    def is_evaluated(self, update: int) -> bool:
        return update % self.evaluate_every == 0 or update == self.updates

    def run_tables(self, seed: int) -> dict[str, dict[str, Any]]:
        """The run as its host would write it, but for how gradients are averaged."""
        return {
            "run": {"name": "convergence", "description": "a benchmark"},
            "model": {"preset": PRESET},
            "optimizer": {"learning_rate": self.learning_rate},
            "schedule": {"warmup_epochs": max(1, self.updates // 20), "total_epochs": self.updates},
            "training": {
                "target_batch_size": self.target,
                "sequence_length": self.sequence_length,
                "seed": seed,
                "stop_at_epoch": self.updates,
                "evaluation_samples": self.evaluation_samples,
            },
        }

    def manifest(self, seed: int) -> Manifest:
        return parse_manifest({**self.run_tables(seed), "host": PEERS[0]})

    def to_json(self) -> dict[str, Any]:
        return {
            "preset": PRESET,
            "num_parameters": NUM_PARAMETERS,
            "peers": NUM_PEERS,
            "updates": self.updates,
            "seeds": self.seeds,
            "samples_per_update": self.target,
            "quotas": list(self.quotas.values()),
            "sequence_length": self.sequence_length,
            "learning_rate": self.learning_rate,
            "evaluation_samples": self.evaluation_samples,
            "stale": self.stale,
        }


def starts(manifest: Manifest, population: int, peer: PeerId, epoch: int, indices: range) -> list[int]:
    """Where these samples of a peer begin in the text."""
    seed = manifest.training.seed
    return [sample_start(seed, epoch, peer, index, population) for index in indices]
