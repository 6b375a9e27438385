"""What every system trains: the same model on the same text with the same optimizer, at the same emulated pace."""

from __future__ import annotations

import tomllib
from typing import Final

from benchmarks.heterogeneous.setting import Setting
from peer.training.measuring import PACED_SECONDS
from peer.training.presets import PRESETS, num_parameters
from protocol.manifest import AveragingSection, Manifest, parse_manifest
from protocol.signing import SigningKey

PRESET: Final = "micro"
NUM_PARAMETERS = num_parameters(PRESETS[PRESET])
"""1.07 million: 4.3 MB of gradients"""
SEQUENCE_LENGTH = 8
"""bytes in a sample: so few that the real computing is small next to the emulated one"""
RUN_TOML = """\
[run]
name = "unequal peers"
description = "a benchmark"

[model]
preset = "{preset}"

[training]
target_batch_size = {target}
sequence_length = {sequence_length}

[schedule]
warmup_epochs = {warmup_epochs}

[averaging]
{averaging}
"""
WARMUP_EPOCHS = 4
"""after which averages are overlapped, and anything is measured; fewer than by default, to save time"""


def run_toml(setting: Setting, *, exact: bool) -> str:
    """The run as its host would write it; what is not mentioned is as by default."""
    averaging = {}
    if AveragingSection().compression == "none":
        averaging["compression"] = '"float16"'  # whoever has a slow link in the swarm sets at least this
    if exact:
        averaging["overlap"] = "0"
    return RUN_TOML.format(
        preset=PRESET,
        target=setting.target,
        sequence_length=SEQUENCE_LENGTH,
        warmup_epochs=WARMUP_EPOCHS,
        averaging="\n".join(f"{key} = {value}" for key, value in averaging.items()),
    )


def manifest_of(setting: Setting) -> Manifest:
    """The same run, for systems that know no host."""
    return parse_manifest({**tomllib.loads(run_toml(setting, exact=False)), "host": SigningKey(bytes(32)).peer_id})


def microbatch_of(rate: float) -> int:
    """Samples in a microbatch on an emulated device of `rate` samples/s: as minga chooses it."""
    return max(1, round(PACED_SECONDS * rate))
