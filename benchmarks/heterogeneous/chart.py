"""The bar chart: efficiency a system, as SVG that reads on light and on dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.heterogeneous.setting import Setting
from benchmarks.svg import opening, text

WIDTH = 760
LEFT, RIGHT = 170, 110
"""of the bars: room for names and for numbers"""
TOP, ROW, BAR = 74, 38, 22
FOOT = 56
NEAR_GOAL = 0.85
"""from here on a number beside its bar would lie on the line at 100 %"""
FOOTNOTE = "100 % is the sum of what each device does alone; only samples that were truly averaged count"
STYLE = """\
  text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 17px; font-weight: 600 }
  .quiet { font-size: 12px; fill: #59636e }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .goal { stroke: #59636e; stroke-width: 1; stroke-dasharray: 4 4 }
  .ours { fill: #1a7f64 }
  .theirs { fill: #8c959f }
  .void { fill-opacity: 0.35 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .grid { stroke: #3d444d }
    .goal { stroke: #9198a1 }
    .ours { fill: #3fb894 }
    .theirs { fill: #656c76 }
  }"""


def chart(setting: Setting, results: Sequence[Mapping[str, Any]]) -> str:
    """SVG with a bar for each result, in the given order."""
    height = TOP + ROW * len(results) + FOOT
    bottom = TOP + ROW * len(results)
    speeds = " / ".join(f"{speed:g}" for speed in setting.speeds)
    links = " / ".join(f"{link:g}" if link else "∞" for link in setting.links)
    lines = [
        opening(WIDTH, height, _summary(results)),
        f"<style>\n{STYLE}\n</style>",
        text(16, 28, "title", "How much of everybody's speed arrives"),
        text(
            16, 50, "quiet", f"devices of speed {speeds}, links of {links} Mbit/s, {setting.target} samples an update"
        ),
    ]
    for percent in (0, 25, 50, 75, 100):
        x = _x(percent / 100)
        kind = "goal" if percent == 100 else "grid"
        lines.append(f'<line class="{kind}" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>')
        lines.append(text(x, bottom + 18, "quiet", f"{percent} %", "middle"))
    for row, result in enumerate(results):
        lines += _bar(TOP + ROW * row, result)
    lines.append(text(16, bottom + 44, "quiet", FOOTNOTE))
    return "\n".join([*lines, "</svg>", ""])


def _bar(top: float, result: Mapping[str, Any]) -> list[str]:
    efficiency = result["efficiency"] or 0.0
    kind = "ours" if result["system"].startswith("minga") else "theirs"
    if result["void"]:
        kind += " void"
    label = "no result" if result["efficiency"] is None else f"{efficiency:.0%}" + (" (void)" if result["void"] else "")
    middle = top + BAR / 2 + 5
    length = max(0.0, _x(efficiency) - LEFT)
    return [
        text(LEFT - 12, middle, "name", result["system"], "end"),
        f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" rx="3"/>',
        text(8 + (_x(1.0) if NEAR_GOAL < efficiency < 1 else LEFT + length), middle, "name", label),
    ]


def _x(part: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * part


def _summary(results: Sequence[Mapping[str, Any]]) -> str:
    told = [f"{r['system']} {r['efficiency']:.0%}" for r in results if r["efficiency"] is not None]
    return "Efficiency: " + ", ".join(told)
