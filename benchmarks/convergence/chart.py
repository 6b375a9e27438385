"""The loss curves, one over the other, as SVG that reads on light and on dark pages."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.convergence.jobs import Run
from benchmarks.convergence.report import Row
from benchmarks.convergence.setting import Setting
from benchmarks.svg import opening, text

WIDTH, HEIGHT = 850, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 340, 74, 56
"""room for numbers and for names"""
NAME_GAP = 19
LIGHT = ("#1f2328", "#1a7f64", "#0969da", "#bc4c00", "#8250df", "#bf3989", "#9a6700", "#6e7781")
DARK = ("#f0f6fc", "#3fb894", "#58a6ff", "#f0883e", "#bc8cff", "#f778ba", "#d29922", "#8b949e")
"""a colour a variant, in their order"""
SKIP = 0.1
"""of the run: the steep beginning, which would leave no room for differences"""
FOOTNOTE = "thick: mean over the seeds; thin: each seed; in brackets: above exact at the end"
LONE = "; dashed: the first seed alone"
STYLE = """\
  text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 17px; font-weight: 600 }
  .quiet { font-size: 12px; fill: #59636e }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .mean { fill: none; stroke-width: 2 }
  .seed { fill: none; stroke-width: 0.7; stroke-opacity: 0.5 }
  .key { stroke-width: 3 }
  .lone { stroke-dasharray: 6 4 }
"""
DARK_STYLE = """\
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .grid { stroke: #3d444d }
"""

Curve = Sequence[tuple[int, float]]


def chart(setting: Setting, found: Sequence[Row], runs: Sequence[Run]) -> str:
    """SVG with a line for each run and a thicker one for each variant."""
    first = setting.updates * SKIP
    shown = {
        row.variant.name: [_after(run.curve, first) for run in runs if run.variant == row.variant.name] for row in found
    }
    values = [bits for curves in shown.values() for curve in curves for _, bits in curve if math.isfinite(bits)]
    axes = _Axes(setting.updates, first, min(values), max(values))
    lines = [
        opening(WIDTH, HEIGHT, _summary(found)),
        f"<style>\n{_style()}\n</style>",
        text(16, 28, "title", "What speed costs in quality"),
        text(16, 50, "quiet", f"held-out bits per byte by updates of {setting.target} samples; seeds: {setting.seeds}"),
        *axes.grid(),
    ]
    for number, row in enumerate(found):
        curves = shown[row.variant.name]
        lone = " lone" if len(curves) < setting.seeds else ""
        lines += [_line(axes, curve, f"seed of{number}") for curve in curves]
        lines.append(_line(axes, _mean(curves), f"mean of{number}{lone}"))
        y = TOP + 14 + NAME_GAP * number
        above = f" ({row.above_exact:+.2%})" if number else ""
        lines.append(
            f'<line class="key of{number}{lone}" x1="{WIDTH - RIGHT + 14}" y1="{y - 4}" x2="{WIDTH - RIGHT + 32}" '
            f'y2="{y - 4}"/>'
        )
        lines.append(text(WIDTH - RIGHT + 38, y, "quiet", row.variant.name + above))
    has_lone = any(len(curves) < setting.seeds for curves in shown.values())
    lines.append(text(16, HEIGHT - 12, "quiet", FOOTNOTE + (LONE if has_lone else "")))
    return "\n".join([*lines, "</svg>", ""])


class _Axes:
    def __init__(self, updates: int, first: float, low: float, high: float) -> None:
        self._first, self._last = first, updates
        self._low, self._high = low, max(high, low + 1e-9)

    def x(self, update: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (update - self._first) / max(self._last - self._first, 1e-9)

    def y(self, bits: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (self._high - bits) / (self._high - self._low)

    def grid(self) -> list[str]:
        lines = []
        for part in (0, 0.25, 0.5, 0.75, 1):
            bits = self._low + part * (self._high - self._low)
            y = self.y(bits)
            lines.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
            lines.append(text(LEFT - 8, y + 4, "quiet", f"{bits:.2f}", "end"))
            update = self._first + part * (self._last - self._first)
            lines.append(text(self.x(update), HEIGHT - BOTTOM + 20, "quiet", f"{update:.0f}", "middle"))
        return lines


def _after(curve: Curve, first: float) -> Curve:
    return [point for point in curve if point[0] >= first]


def _mean(curves: Sequence[Curve]) -> Curve:
    """All have the same updates."""
    return [(points[0][0], statistics.fmean(bits for _, bits in points)) for points in zip(*curves, strict=True)]


def _line(axes: _Axes, curve: Curve, kind: str) -> str:
    points = " ".join(f"{axes.x(update):.1f},{axes.y(bits):.1f}" for update, bits in curve if math.isfinite(bits))
    return f'<polyline class="{kind}" points="{points}"/>'


def _style() -> str:
    def colours(of: Sequence[str], indent: str) -> str:
        return "".join(f"{indent}.of{number} {{ stroke: {colour} }}\n" for number, colour in enumerate(of))

    dark = f"  @media (prefers-color-scheme: dark) {{\n{DARK_STYLE}{colours(DARK, '    ')}  }}"
    return f"{STYLE}{colours(LIGHT, '  ')}{dark}"


def _summary(found: Sequence[Row]) -> str:
    return "Held-out bits per byte at the end: " + ", ".join(f"{r.variant.name} {r.mean:.3f}" for r in found)
