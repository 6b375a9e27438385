import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.encoding import canonical_bytes, decode_canonical
from protocol.errors import IncompatibleVersion, InvalidManifest
from protocol.manifest import MANIFEST_DOMAIN, SignedManifest, parse_manifest, sign_manifest
from protocol.signing import SigningKey

KEY = SigningKey(bytes(32))
OTHER = SigningKey(bytes([1]) * 32)
PLAIN: dict[str, Any] = {"run": {"name": "tiny"}, "host": KEY.peer_id}
SIGNED = sign_manifest(parse_manifest(PLAIN), KEY)


def test_what_is_signed_is_read() -> None:
    again = SignedManifest.from_bytes(SIGNED.to_bytes(), SIGNED.run_id)
    assert again == SIGNED
    assert again.manifest.training.target_batch_size == 512
    assert re.fullmatch("[0-9a-f]{64}", again.run_id)


def test_the_run_id_is_that_of_the_content() -> None:
    other = parse_manifest({**PLAIN, "training": {"seed": 1}})
    assert sign_manifest(other, KEY).run_id != SIGNED.run_id
    with pytest.raises(InvalidManifest, match="altered on the way"):
        SignedManifest.from_bytes(sign_manifest(other, KEY).to_bytes(), SIGNED.run_id)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trainning": {}}, "trainning: unknown key"),
        ({"training": {"target_batch_size": -1}}, "training.target_batch_size: .*greater than or equal to 1"),
        ({"training": {"target_batch_size": "512"}}, "training.target_batch_size: .*valid integer"),
        ({"training": {"target_batch_size": 1.5}}, "training.target_batch_size"),
        ({"training": {"lr": 1}}, "training.lr: unknown key"),
        ({"optimizer": {"learning_rate": float("nan")}}, "optimizer.learning_rate"),
        ({"optimizer": {"learning_rate": float("inf")}}, "optimizer.learning_rate"),
        ({"optimizer": {"name": "sgd"}}, "optimizer.name: .*adamw"),
        ({"model": {"preset": "huge"}}, "model.preset"),
        ({"data": {"kind": "files"}}, "data: files are given exactly when"),
        ({"data": {"files": [{"path": "a", "sha256": "0" * 64, "size": 1}]}}, "data: files are given exactly when"),
        ({"data": {"kind": "files", "files": [{"path": "a", "sha256": "x", "size": 1}]}}, r"data.files.0.sha256"),
        ({"run": {"name": ""}}, "run.name"),
        ({"run": {"name": "a\x1b[31mb"}}, "run.name"),
        ({"run": {"name": "a\u202eb"}}, "run.name"),
        ({"run": {"name": "a\nb"}}, "run.name"),
        ({"host": KEY.peer_id[:-1]}, "host: .*not an Ed25519 peer id"),
        ({"host": None}, "host"),
        ({"version": True}, "version"),
    ],
)
def test_every_fault_names_its_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidManifest, match=message):
        parse_manifest({**PLAIN, **change})


def test_all_faults_are_told_together() -> None:
    with pytest.raises(InvalidManifest, match=r"training.seed: .*; limits.max_peers: "):
        parse_manifest({**PLAIN, "training": {"seed": -1}, "limits": {"max_peers": 0}})


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, {"run": 1}])
def test_other_data_is_refused(value: object) -> None:
    with pytest.raises(InvalidManifest):
        parse_manifest(value)


def test_another_version_is_called_so() -> None:
    with pytest.raises(IncompatibleVersion, match="version 2, this minga reads version 1"):
        parse_manifest({"version": 2, "something": "new"})


def test_a_signature_of_another_is_refused() -> None:
    with pytest.raises(InvalidManifest, match="not signed by the host"):
        sign_manifest(SIGNED.manifest, OTHER)


def test_defaults_must_be_stated() -> None:
    value = decode_canonical(SIGNED.canonical)
    del value["limits"]
    canonical = canonical_bytes(value)
    with pytest.raises(InvalidManifest, match="leaves out fields"):
        SignedManifest.from_bytes(KEY.sign(MANIFEST_DOMAIN, canonical) + canonical)


@given(st.data())
def test_altered_bytes_are_refused(data: st.DataObject) -> None:
    whole = bytearray(SIGNED.to_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((InvalidManifest, IncompatibleVersion)):
        SignedManifest.from_bytes(bytes(whole))
    with pytest.raises((InvalidManifest, IncompatibleVersion)):
        SignedManifest.from_bytes(SIGNED.to_bytes()[:at])


@given(st.binary(max_size=300))
def test_any_bytes_are_answered(data: bytes) -> None:
    with pytest.raises((InvalidManifest, IncompatibleVersion)):
        SignedManifest.from_bytes(data)
