from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy
import torch

from peer.errors import ExportFailed
from peer.training.checkpoint import SavedState
from peer.training.export import export_model, load_exported, read_config
from peer.training.generate import generate
from peer.training.model import build, flat_parameters, load_flat


@pytest.fixture
def trained(make_manifest, tmp_path):
    """A model with weights of its own, its manifest, and the directory that it was exported to."""
    manifest = make_manifest(run={"name": "a run", "licence": "CC0-1.0"})
    model = build(manifest)
    flat = (np.random.default_rng(0).standard_normal(flat_parameters(model).size) / 8).astype(np.float32)
    load_flat(model, flat)
    nothing = np.zeros_like(flat)
    saved = SavedState("ab" * 32, 12, "cd" * 32, flat, nothing, nothing, {})
    paths = export_model(saved, manifest, tmp_path / "out", 2.5)
    assert [path.name for path in paths] == ["model.safetensors", "config.json"]
    return model, tmp_path / "out"


def test_loaded_model_computes_the_same(trained):
    model, directory = trained
    tokens = torch.arange(33)[None]
    assert torch.equal(load_exported(directory).loss(tokens), model.loss(tokens))


def test_config_says_what_it_is(trained):
    config = json.loads((trained[1] / "config.json").read_text())
    expected = {
        "architecture": "minga-bytes-1", "vocabulary": 256, "preset": "nano", "layers": 2, "width": 64, "heads": 2,
        "sequence_length": 32, "run": "a run", "run_id": "ab" * 32, "epoch": 12, "heldout_bits_per_byte": 2.5,
        "licence": "CC0-1.0",
    }  # fmt: skip
    assert {key: config[key] for key in expected} == expected
    assert set(config) == {*expected, "minga_version"}


def test_tensors_are_named_as_in_the_model(trained):
    model, directory = trained
    tensors = safetensors.numpy.load_file(directory / "model.safetensors")
    for name, parameter in model.named_parameters():
        assert np.array_equal(tensors.pop(name), parameter.detach().numpy())
    assert not tensors


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": 0}, "layers"),
        ({"layers": "2"}, "layers"),
        ({"heads": 3}, "width must be a multiple"),
        ({"architecture": "minga-bytes-2"}, "architecture"),
        ({"code": "import os"}, "code"),
        ({"sequence_length": 10**9}, "sequence_length"),
        ({"run": "a\nb"}, "run"),
    ],
)
def test_config_is_checked(trained, change, says):
    path = trained[1] / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ExportFailed, match=f"not the config of a model of this minga .*{says}.*; export it again"):
        load_exported(trained[1])


@pytest.mark.parametrize("change", [{"layers": 3}, {"width": 128}, {"layers": 1000, "width": 65536}])
def test_tensors_must_be_those_of_the_config(trained, change):
    path = trained[1] / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ExportFailed, match=r"model.safetensors cannot be loaded: .*; export the model again"):
        load_exported(trained[1])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}" * 100_000])
def test_damaged_config(trained, content):
    (trained[1] / "config.json").write_bytes(content)
    with pytest.raises(ExportFailed, match="not the config"):
        read_config(trained[1])


def test_damaged_tensors(trained):
    path = trained[1] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ExportFailed, match="cannot be loaded"):
        load_exported(trained[1])


def test_missing_or_unwritable(tmp_path, make_manifest):
    with pytest.raises(ExportFailed, match="name a directory that `minga export` wrote"):
        load_exported(tmp_path)
    (tmp_path / "file").write_text("")
    flat = flat_parameters(build(make_manifest()))
    saved = SavedState("ab" * 32, 1, "cd" * 32, flat, flat, flat, {})
    with pytest.raises(ExportFailed, match=r"was not written to .*; choose another directory"):
        export_model(saved, make_manifest(), tmp_path / "file", None)


def written(model, **options):
    return "".join(generate(model, **{"prompt": b"def ", "length": 60, **options}))


def test_same_seed_same_text(trained):
    model, _ = trained
    assert written(model, seed=1) == written(model, seed=1) != written(model, seed=2)


def test_length_is_in_bytes_and_any_prompt_will_do(trained):
    model, _ = trained
    for prompt in (b"", b"x" * 1000, "ö".encode()[:1]):
        text = written(model, prompt=prompt, top_k=256, temperature=5.0)
        assert text and len(text.encode()) >= 60 - text.count("\ufffd")


def test_greedy_text_does_not_depend_on_the_seed(trained):
    model, _ = trained
    greedy = written(model, temperature=0, seed=1)
    assert greedy == written(model, temperature=0, seed=2) == written(model, top_k=1, seed=3)


def test_only_the_likeliest_are_drawn(trained):
    model, _ = trained
    with torch.no_grad():
        likeliest = model(torch.tensor([list(b"def ")]))[0, -1].topk(3).indices.tolist()
    drawn = {next(generate(model, b"def ", 1, top_k=3, temperature=10.0, seed=seed)) for seed in range(60)}
    assert drawn == {bytes([byte]).decode(errors="replace") for byte in likeliest}
