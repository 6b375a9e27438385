"""The run manifest: one training of one model, as data.

A manifest is decoded strictly (unknown keys, wrong types and numbers out of range are refused, naming the
field), turned into canonical bytes, hashed (the digest names the run) and signed by its host. Nobody who
serves it can alter it. Floats occur only where each peer computes with them; epochs, quotas and sizes are
integers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from protocol.encoding import canonical_bytes, decode_canonical, digest
from protocol.errors import IncompatibleVersion, InvalidManifest, RemoteProtocolError
from protocol.fields import KnownPeer, Line, Section, Sha256Hex
from protocol.signing import SIGNATURE_SIZE, SigningKey, is_signed_by
from protocol.units import RunId

MANIFEST_DOMAIN = "manifest"
MANIFEST_VERSION = 1

Preset = Literal["nano", "micro", "mini", "small", "medium", "large"]
Compression = Literal["none", "float16", "uniform8", "uniform4"]
"""of vectors on the wire, the least lossy first"""


class RunSection(Section):
    name: Annotated[Line, StringConstraints(min_length=1, max_length=60)]
    """What the run is called."""
    description: Line = ""
    """What is trained, on what, and why."""
    licence: Line = ""
    """Licence of the resulting weights."""


class ModelSection(Section):
    kind: Literal["builtin"] = "builtin"
    preset: Preset = "micro"
    """Size of the builtin decoder-only transformer (`peer/training/model.py`)."""


class TextFile(Section):
    path: Annotated[Line, StringConstraints(min_length=1)]
    """Where the host has it; a joiner looks there or, by base name, in the folder given with --data."""
    sha256: Sha256Hex
    size: int = Field(ge=1, le=2**50)
    """bytes"""


class DataSection(Section):
    kind: Literal["python-stdlib", "files"] = "python-stdlib"
    """`python-stdlib`: the sources of the standard library that every Python carries. `files`: text files."""
    files: list[TextFile] = Field(default=[], max_length=200)
    """for kind `files`: UTF-8 text, or JSON lines with a `text` field; `.gz` and `.zst` too"""

    @model_validator(mode="after")
    def _files_belong_to_their_kind(self) -> DataSection:
        if (self.kind == "files") != bool(self.files):
            raise ValueError("files are given exactly when kind is 'files'")
        return self


class OptimizerSection(Section):
    name: Literal["adamw"] = "adamw"
    learning_rate: float = Field(default=3e-3, gt=0, le=1)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0, le=1)
    weight_decay: float = Field(default=0.1, ge=0, le=1)
    clip_norm: float = Field(default=1.0, gt=0, le=1e6)
    """global norm to which the averaged gradient is clipped"""


class ScheduleSection(Section):
    name: Literal["cosine"] = "cosine"
    warmup_epochs: int = Field(default=10, ge=0, le=1_000_000)
    total_epochs: int = Field(default=1000, ge=1, le=10_000_000)
    """the learning rate has fallen to `final_fraction` here and stays there"""
    final_fraction: float = Field(default=0.1, ge=0, le=1)


class TrainingSection(Section):
    target_batch_size: int = Field(default=512, ge=1, le=10_000_000)
    """samples that the whole swarm gathers for one update"""
    sequence_length: int = Field(default=128, ge=8, le=65536)
    """bytes of text in a sample (one more is read, as the last target)"""
    seed: int = Field(default=0, ge=0, lt=2**53)
    """of the initial weights and the order of the data"""
    stop_at_epoch: int = Field(default=0, ge=0, le=10_000_000)
    """0: never; else training ends after this many updates"""
    evaluation_samples: int = Field(default=64, ge=1, le=4096)
    """held-out samples behind each reported number"""
    checkpoint_every_epochs: int = Field(default=10, ge=1, le=10_000)


class AveragingSection(Section):
    compression: Literal["auto"] | Compression = "auto"
    """of gradients on the wire, in the step lane; auto: the vote of each term chooses it (`protocol/lanes.py`)"""
    overlap: int = Field(default=1, ge=0, le=1)
    """1: from epoch `schedule.warmup_epochs` on, averaging runs behind the gathering of the next epoch, part of which
    works with weights that each peer predicts from its own gradient; before, updates are too large for that.
    0: exact large-batch training, everybody waits for the average"""
    term_epochs: int = Field(default=2, ge=2, le=1000)
    """epochs during which one plan of groups and quotas holds"""
    grace_seconds: float = Field(default=5.0, ge=0.5, le=600)
    """how long the others wait for a silent peer before they go on without it"""


class LimitsSection(Section):
    max_peers: int = Field(default=64, ge=1, le=10_000)


class Manifest(Section):
    version: int = Field(default=MANIFEST_VERSION, ge=MANIFEST_VERSION, le=MANIFEST_VERSION)
    run: RunSection
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    training: TrainingSection = TrainingSection()
    averaging: AveragingSection = AveragingSection()
    limits: LimitsSection = LimitsSection()
    host: KnownPeer
    """who founded the run and signed this; it has no other privilege"""


@dataclass(frozen=True)
class SignedManifest:
    """A manifest as it travels: its exact bytes and the host's signature over them."""

    manifest: Manifest
    canonical: bytes
    signature: bytes

    @property
    def run_id(self) -> RunId:
        return digest(MANIFEST_DOMAIN, self.canonical).hex()

    def to_bytes(self) -> bytes:
        return self.signature + self.canonical

    @classmethod
    def from_bytes(cls, data: bytes, run_id: RunId | None = None) -> SignedManifest:
        """Decode and check everything. With `run_id`, the bytes must hash to it.

        Raises `InvalidManifest` or `IncompatibleVersion`.
        """
        signature, canonical = data[:SIGNATURE_SIZE], data[SIGNATURE_SIZE:]
        if run_id is not None and digest(MANIFEST_DOMAIN, canonical).hex() != run_id:
            raise InvalidManifest("the manifest does not hash to the digest in the invite: it was altered on the way")
        try:
            value = decode_canonical(canonical)
        except RemoteProtocolError as error:
            raise InvalidManifest(f"manifest: {error}") from None
        manifest = parse_manifest(value)
        if canonical_bytes(manifest.model_dump(mode="json")) != canonical:
            raise InvalidManifest("the manifest leaves out fields: it must state every value, also the defaults")
        if not is_signed_by(manifest.host, signature, MANIFEST_DOMAIN, canonical):
            raise InvalidManifest("the manifest is not signed by the host that it names")
        return cls(manifest, canonical, signature)


def sign_manifest(manifest: Manifest, key: SigningKey) -> SignedManifest:
    """Sign a manifest whose `host` is the owner of `key`."""
    canonical = canonical_bytes(manifest.model_dump(mode="json"))
    return SignedManifest.from_bytes(key.sign(MANIFEST_DOMAIN, canonical) + canonical)


def parse_manifest(value: Any) -> Manifest:
    """A manifest from plain decoded data (JSON or TOML).

    Raises `IncompatibleVersion` or `InvalidManifest`, whose message names every offending field.
    """
    if isinstance(value, dict) and isinstance(value.get("version"), int) and value["version"] != MANIFEST_VERSION:
        raise IncompatibleVersion(
            f"the manifest has version {value['version']}, this minga reads version {MANIFEST_VERSION}"
        )
    try:
        return Manifest.model_validate(value)
    except ValidationError as error:
        raise InvalidManifest("; ".join(_sentence(dict(item)) for item in error.errors()[:5])) from None


def _sentence(item: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in item["loc"]) or "manifest"
    if item["type"] == "extra_forbidden":
        return f"{place}: unknown key"
    message = re.sub(r"^Value error, ", "", item["msg"])
    return f"{place}: {message[0].lower()}{message[1:]}"
