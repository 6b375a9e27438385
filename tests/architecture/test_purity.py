"""What imports do not show: protocol/ and peer/policy/ read no clock, draw no entropy, print nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from peer.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PURE = sorted([*ROOT.glob("protocol/**/*.py"), *ROOT.glob("peer/policy/**/*.py")])
SOURCES = sorted([*ROOT.glob("protocol/**/*.py"), *ROOT.glob("peer/**/*.py"), *ROOT.glob("*.py")])
IMPURE_CALLS = {"open", "print", "input", "hash", "id", "eval", "exec", "compile", "__import__", "breakpoint"}
CODE_FROM_DATA = {"eval", "exec", "__import__"}
MAX_LINES = 350


def called_names(tree: ast.AST) -> set[str]:
    return {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_pure_files_have_no_effects(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not called_names(tree) & IMPURE_CALLS
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.iter, (ast.Set, ast.SetComp)):
            pytest.fail(f"line {node.lineno}: the order of a set differs between runs")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_is_made_from_data(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not called_names(tree) & CODE_FROM_DATA
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("torch", "load"), f"line {node.lineno}: torch.load unpickles"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_one_room(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("command", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_needs_no_engine(command: list[str]) -> None:
    code = (
        "import sys\nfrom peer.cli import main\n"
        f"sys.argv = ['minga', *{command!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'hivemind', 'numpy', 'rich', 'cryptography'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "Usage: minga" in done.stdout
