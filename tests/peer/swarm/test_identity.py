from __future__ import annotations

import stat
from pathlib import Path

import pytest

from peer.swarm.errors import IdentityDamaged
from peer.swarm.identity import load_or_create


def test_an_identity_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "identity.key"
    first = load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == first.seed
    assert len(first.seed) == 32
    assert load_or_create(path).peer_id == first.peer_id
    assert [item.name for item in path.parent.iterdir()] == ["identity.key"]


def test_two_identities_differ(tmp_path: Path) -> None:
    assert load_or_create(tmp_path / "a").peer_id != load_or_create(tmp_path / "b").peer_id


@pytest.mark.parametrize("content", [b"", b"short", bytes(33), bytes(64)])
def test_a_damaged_identity_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(IdentityDamaged, match=r"is damaged .* move the file away"):
        load_or_create(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
def test_an_identity_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity.key"
    load_or_create(path)
    path.chmod(mode)
    with pytest.raises(IdentityDamaged, match=f"chmod 600 {path}"):
        load_or_create(path)


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IdentityDamaged, match=r"no identity can be kept in .*file/identity\.key"):
        load_or_create(tmp_path / "file" / "identity.key")
