"""What the documents say is so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from peer.cli import COMMANDS
from protocol.manifest import parse_manifest
from protocol.signing import SigningKey

ROOT = Path(__file__).parents[2]
KEY = SigningKey(bytes(32))


def test_the_commented_run_states_every_default() -> None:
    stated = tomllib.loads((ROOT / "docs" / "run.toml").read_text())
    defaults = parse_manifest({"run": stated["run"], "host": KEY.peer_id})
    assert parse_manifest({**stated, "host": KEY.peer_id}) == defaults
    for section, values in defaults.model_dump().items():
        if isinstance(values, dict):
            assert set(values) - {"files"} <= set(stated[section]), section


def test_every_command_in_the_readme_exists_and_every_command_is_there() -> None:
    readme = (ROOT / "README.md").read_text()
    named = set(re.findall(r"(?:^|`)minga ([a-z]+)\b", readme, re.M))
    assert named == set(COMMANDS)


def test_links_between_documents_lead_somewhere() -> None:
    for path in [*ROOT.glob("*.md"), ROOT / "protocol" / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            assert "://" in target or (path.parent / target).exists(), f"{path.name}: {target}"
