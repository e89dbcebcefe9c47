"""Results as a bar chart, SVG written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnloom.bench.attention import Result
from attnloom.bench.show import rate, times
from attnloom.explain.layout import ticks
from attnloom.explain.marks import document, text
from attnloom.explain.palette import GRID, INK, MUTED, request_color
from attnloom.explain.text import duration

_WIDTH, _LEFT, _RIGHT, _TOP = 1080.0, 300.0, 800.0, 108.0
_LINE, _BAR = 30.0, 16.0


def draw(results: Sequence[Result], facts: Mapping[str, Any], rounds: int) -> str:
    """Speed of AttnLoom relative to torch SDPA (torch is 1), one bar a case, quartiles as a whisker."""
    end = 1.05 * max(1.2, *(max(r.ratio.high, r.case.target or 0.0) for r in results))
    scale = (_RIGHT - _LEFT) / end
    bottom = _TOP + _LINE * len(results)
    body = [
        text(30, 32, "AttnLoom beside torch's scaled_dot_product_attention", size=18, weight=700),
        text(
            30, 52, f"torch's time / AttnLoom's, median of {rounds} interleaved rounds, quartiles as a whisker", size=12
        ),
        text(30, 69, ", ".join(f"{name} {value}" for name, value in facts.items()), size=11, fill=MUTED),
    ]
    for tick in ticks(end, about=6):
        x = _LEFT + tick * scale
        body.append(f'<path d="M{x:.1f} {_TOP - 8:.1f}V{bottom:.1f}" stroke="{GRID}"/>')
        body.append(text(x, bottom + 16, f"{tick:g}", fill=MUTED, anchor="middle"))
    for i, result in enumerate(results):
        body += _bar(result, _TOP + _LINE * i, scale)
    x = _LEFT + scale
    body.append(f'<path d="M{x:.1f} {_TOP - 8:.1f}V{bottom + 3:.1f}" stroke="{INK}" stroke-width="1.4"/>')
    body.append(text(x, _TOP - 14, "as fast as torch", anchor="middle", weight=600))
    if any(result.case.target is not None for result in results):
        y = bottom + 36
        body.append(f'<path d="M{_LEFT:.1f} {y - 9:.1f}v12" stroke="{INK}" stroke-width="3"/>')
        body.append(text(_LEFT + 10, y, "target"))
    return document((_WIDTH, bottom + 52), "AttnLoom beside torch SDPA", body)


def _bar(result: Result, y: float, scale: float) -> list[str]:
    ratio, middle = result.ratio, y + _BAR / 2
    low, high = _LEFT + ratio.low * scale, _LEFT + ratio.high * scale
    color = request_color(0 if result.case.mode == "decode" else 4)
    parts = [
        text(_LEFT - 10, middle + 4, result.case.name, anchor="end"),
        f'<rect x="{_LEFT}" y="{y:.1f}" width="{ratio.median * scale:.1f}" height="{_BAR}" rx="2" fill="{color}"/>',
        (
            f'<path d="M{low:.1f} {middle:.1f}H{high:.1f}M{low:.1f} {middle - 4:.1f}v8M{high:.1f} {middle - 4:.1f}v8" '
            f'stroke="{INK}" fill="none"/>'
        ),
    ]
    if result.case.target is not None:
        x = _LEFT + result.case.target * scale
        parts.append(f'<path d="M{x:.1f} {y - 3:.1f}v{_BAR + 6:.0f}" stroke="{INK}" stroke-width="3"/>')
    run = result.ours.median
    parts.append(text(_RIGHT + 14, middle + 4, f"{times(ratio.median)}×", weight=600))
    parts.append(text(_RIGHT + 62, middle + 4, f"AttnLoom {duration(run)}, {rate(result, run)}", fill=MUTED))
    return parts
