"""What the pictures of all benchmarks have in common; they read on light and on dark pages."""

from __future__ import annotations

from xml.sax.saxutils import escape


def opening(width: float, height: float, label: str) -> str:
    """Of the picture; `label` says it in words."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label, {chr(34): "&quot;"})}">'
    )


def text(x: float, y: float, kind: str, words: str, anchor: str = "start") -> str:
    """`kind` is a class of the picture's style."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
