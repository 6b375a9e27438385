"""A trained model as files that other programs read: named tensors in safetensors, and a config in JSON."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
import safetensors
from pydantic import Field, ValidationError
from safetensors import numpy as safetensors_numpy

from peer.errors import ExportFailed
from peer.training.checkpoint import SavedState
from peer.training.model import Transformer, load_flat
from peer.training.presets import PRESETS, VOCABULARY, Shape, layout_of
from peer.training.tensorfile import Vector, write_file, write_tensors
from protocol.fields import Line, Section, Sha256Hex
from protocol.manifest import Manifest, Preset

MODEL_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
MAX_CONFIG = 64 * 1024  # bytes
ARCHITECTURE: Final = "minga-bytes-1"
"""the computation of `model.py`; another number when it changes"""


class ExportedConfig(Section):
    """`config.json`: all that is needed to rebuild the model around its tensors, and where it comes from."""

    architecture: Literal["minga-bytes-1"] = ARCHITECTURE
    vocabulary: Literal[256] = VOCABULARY
    preset: Preset
    layers: int = Field(ge=1, le=1000)
    width: int = Field(ge=2, le=65536)
    heads: int = Field(ge=1, le=1024)
    sequence_length: int = Field(ge=8, le=65536)
    run: Line
    run_id: Sha256Hex
    epoch: int = Field(ge=0)
    heldout_bits_per_byte: Annotated[float, Field(ge=0)] | None
    licence: Line
    minga_version: Line


def export_model(
    state: SavedState, manifest: Manifest, directory: Path, heldout_bits_per_byte: float | None
) -> list[Path]:
    """Write `model.safetensors` and `config.json` into a directory, which is made. Returns their paths.

    Files of these names are replaced. Raises `ExportFailed`.
    """
    shape = PRESETS[manifest.model.preset]
    config = ExportedConfig(
        preset=manifest.model.preset,
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        sequence_length=manifest.training.sequence_length,
        run=manifest.run.name,
        run_id=state.run_id,
        epoch=state.epoch,
        heldout_bits_per_byte=heldout_bits_per_byte,
        licence=manifest.run.licence,
        minga_version=_version(),
    )
    tensors = {
        place.name: np.ascontiguousarray(state.weights[place.offset : place.stop]).reshape(place.shape)
        for place in layout_of(shape)
    }
    metadata = {"format": "pt", "run_id": state.run_id, "epoch": str(state.epoch)}
    paths = [directory / MODEL_FILE, directory / CONFIG_FILE]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_tensors(paths[0], tensors, metadata)
        write_file(paths[1], [config.model_dump_json(indent=2).encode() + b"\n"])
    except OSError as error:
        raise ExportFailed(
            f"the model was not written to {directory} ({error.strerror or error}); choose another directory or free "
            "some space"
        ) from None
    return paths


def load_exported(directory: Path) -> Transformer:
    """The model in a directory that `export_model` wrote, on the CPU. Raises `ExportFailed`."""
    config = read_config(directory)
    shape = Shape(config.layers, config.width, config.heads)
    path = directory / MODEL_FILE
    layout = layout_of(shape)
    try:
        if path.stat().st_size < 4 * layout[-1].stop:
            raise ValueError("it is too short for the model of its config.json")
        tensors = safetensors_numpy.load_file(path)
        if {name: tensor.shape for name, tensor in tensors.items()} != {place.name: place.shape for place in layout}:
            raise ValueError("its tensors are not those of the model of its config.json")
        flat: Vector = np.concatenate([tensors[place.name].ravel() for place in layout])
        if flat.dtype != np.float32:
            raise ValueError("its tensors are not float32")
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise ExportFailed(f"{path} cannot be loaded: {error}; export the model again") from None
    model = Transformer(shape, config.sequence_length)
    load_flat(model, flat)
    return model.eval()


def read_config(directory: Path) -> ExportedConfig:
    """`config.json` of an exported model, checked. Raises `ExportFailed`."""
    path = directory / CONFIG_FILE
    try:
        with path.open("rb") as file:
            config = ExportedConfig.model_validate_json(file.read(MAX_CONFIG))
        if config.width % (2 * config.heads):
            raise ValueError("width must be a multiple of twice the number of heads")
    except OSError as error:
        raise ExportFailed(
            f"cannot read {path} ({error.strerror}); name a directory that `minga export` wrote"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        what = f"{field}: {first['msg'].lower()}" if field else first["msg"].lower()
        raise ExportFailed(f"{path} is not the config of a model of this minga ({what}); export it again") from None
    except ValueError as error:
        raise ExportFailed(f"{path} is not the config of a model of this minga ({error}); export it again") from None
    return config


def _version() -> str:
    try:
        return importlib.metadata.version("minga")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"  # run from its sources
