"""The timeline of a plan as a self-contained SVG document, written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np

from attnloom.explain.layout import LEGEND_LINE, Layout, arrange, cta_step, ticks
from attnloom.explain.marks import document, text
from attnloom.explain.palette import CUT, GRID, IDLE, IDLE_LINE, INK, MUTED, text_on
from attnloom.explain.timeline import Panel
from attnloom.explain.words import Facts, axis_label, headline, limit_line, panel_title

_WIDTH, _LEFT, _RIGHT = 1200.0, 62.0, 930.0
_TOP, _PANEL_HEAD, _PANEL_GAP, _BOTTOM = 84.0, 24.0, 44.0, 58.0
_LEGEND_X = 962.0
# Above this many bars a document with a hover title for each would be megabytes: requests become one path each.
_MOST_TITLED_BARS = 6000


@dataclass(frozen=True)
class _Frame:
    """The rectangle of one class: y of its first CTA, px per CTA, px per cost unit."""

    y: float
    row: float
    scale: float

    def x_of(self, time: float) -> float:
        return _LEFT + time * self.scale

    def y_of(self, cta: float) -> float:
        return self.y + cta * self.row

    @property
    def gap(self) -> float:
        """Between CTAs."""
        return 0.12 * self.row if self.row >= 6 else 0.3


def draw(facts: Facts) -> str:
    """The whole document."""
    layout = arrange(facts)
    body: list[str] = []
    y = _TOP
    for index in layout.shown:
        panel = facts.panels[index]
        body.append(text(_LEFT, y + 12, panel_title(facts, index), size=12, weight=600))
        frame = _Frame(y + _PANEL_HEAD, layout.row_height, (_RIGHT - _LEFT) / layout.end)
        body += _panel(panel, frame, layout)
        y = frame.y_of(panel.tile.num_ctas) + _PANEL_GAP
    if layout.shown:
        body.append(text((_LEFT + _RIGHT) / 2, y - 4, axis_label(facts), fill=MUTED, anchor="middle"))
    else:
        body.append(text(_LEFT, y + 24, "No work: no request has a query row.", size=13))
        y += 48
    body += _legend(layout)
    height = max(y + 20, _TOP + 130 + LEGEND_LINE * (layout.listed + 2))
    return document((_WIDTH, height), f"Plan of {headline(facts)}", [*_head(facts), *body])


def _head(facts: Facts) -> list[str]:
    hatch = (
        f'<defs><pattern id="attnloom-idle" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="5" height="5" fill="{IDLE}"/>'
        f'<line x1="0" y1="0" x2="0" y2="5" stroke="{IDLE_LINE}" stroke-width="2"/></pattern></defs>'
    )
    return [
        hatch,
        text(_LEFT, 30, "What every CTA does, and when", size=18, weight=700),
        text(_LEFT, 50, headline(facts), size=12),
        text(_LEFT, 67, limit_line(facts), size=12, fill=MUTED),
    ]


def _panel(panel: Panel, frame: _Frame, layout: Layout) -> list[str]:
    bottom = frame.y_of(panel.tile.num_ctas)
    parts = [_idle(panel, frame)]
    titled = len(panel.item) <= _MOST_TITLED_BARS
    parts += _titled_bars(panel, frame, layout) if titled else _request_paths(panel, frame, layout)
    parts += [_cuts(panel, frame), *_cta_labels(panel, frame)]
    even = frame.x_of(panel.even)
    parts.append(
        f'<line x1="{even:.1f}" y1="{frame.y - 4:.1f}" x2="{even:.1f}" y2="{bottom + 4:.1f}" stroke="{INK}" '
        f'stroke-width="1.2" stroke-dasharray="4 3"><title>{panel.even:,.1f} µs: the same work spread evenly over '
        f"all {panel.tile.num_ctas} CTAs</title></line>"
    )
    parts.append(f'<path d="M{_LEFT} {bottom + 3:.1f}H{_RIGHT}" stroke="{MUTED}" stroke-width="1"/>')
    for tick in ticks(layout.end):
        x = frame.x_of(tick)
        parts.append(f'<path d="M{x:.1f} {bottom + 3:.1f}v4" stroke="{MUTED}"/>')
        parts.append(text(x, bottom + 18, f"{tick:,.10g}", fill=MUTED, anchor="middle"))
    return parts


def _idle(panel: Panel, frame: _Frame) -> str:
    """From the end of each CTA's work to the end of the class's launch."""
    end = frame.x_of(panel.span)
    boxes = [
        _box(frame.x_of(busy), end, cta, frame) for cta, busy in enumerate(panel.busy) if end - frame.x_of(busy) > 0.05
    ]
    share = 1 - panel.even / panel.span
    return (
        f'<path d="{"".join(boxes)}" fill="url(#attnloom-idle)"><title>idle: {share:.1%} of this launch</title></path>'
    )


def _titled_bars(panel: Panel, frame: _Frame, layout: Layout) -> list[str]:
    """A rectangle for every item, with its story on hover; its request's number where there is room."""
    parts, radius = [], 2 if frame.row >= 12 else 0
    for bar, request in enumerate(panel.request):
        x, width = _extent(panel, bar, frame)
        y, height = frame.y_of(panel.cta[bar]), frame.row - frame.gap
        parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" rx="{radius}" '
            f'fill="{layout.color(request)}"><title>{escape(panel.title(bar))}</title></rect>'
        )
        label = str(request)
        if frame.row >= 12 and width >= 10 + 7 * len(label):
            ink = text_on(int(layout.rank[request]))
            parts.append(text(x + width / 2, y + height / 2 + 3.6, label, fill=ink, anchor="middle"))
    return parts


def _request_paths(panel: Panel, frame: _Frame, layout: Layout) -> list[str]:
    """All items of a request as one shape."""
    parts = []
    order = np.argsort(panel.request, kind="stable")
    requests, first = np.unique(panel.request[order], return_index=True)
    for request, bars in zip(requests, np.split(order, first[1:]), strict=True):
        boxes = "".join(_bar_box(panel, int(bar), frame) for bar in bars)
        ctas = len(np.unique(panel.cta[bars]))
        title = f"request {request}: {len(bars):,} items on {ctas} CTAs"
        parts.append(f'<path d="{boxes}" fill="{layout.color(request)}"><title>{title}</title></path>')
    return parts


def _cuts(panel: Panel, frame: _Frame) -> str:
    """A dark edge wherever the keys of a q tile were cut."""
    boxes = []
    for bar in np.flatnonzero(panel.cut_before | panel.cut_after):
        x, width = _extent(panel, int(bar), frame)
        edge = min(1.8, 0.3 * width)
        if panel.cut_before[bar]:
            boxes.append(_box(x, x + edge, panel.cta[bar], frame))
        if panel.cut_after[bar]:
            boxes.append(_box(x + width - edge, x + width, panel.cta[bar], frame))
    return f'<path d="{"".join(boxes)}" fill="{CUT}" pointer-events="none"/>'


def _cta_labels(panel: Panel, frame: _Frame) -> list[str]:
    middle = frame.y_of(panel.tile.num_ctas / 2)
    axis = f'<text transform="translate(22 {middle:.1f}) rotate(-90)" fill="{MUTED}" text-anchor="middle">CTA</text>'
    step = cta_step(panel.tile.num_ctas, frame.row)
    labels = [
        text(_LEFT - 7, frame.y_of(cta + 0.5) + 3.6, str(cta), fill=MUTED, anchor="end")
        for cta in range(0, panel.tile.num_ctas, step)
    ]
    return [axis, *labels]


def _legend(layout: Layout) -> list[str]:
    y, x = _TOP + 12, _LEGEND_X
    idle_box = f'<rect x="{x}" y="{y - 10:.1f}" width="14" height="12" fill="url(#attnloom-idle)"/>'
    parts = [idle_box, text(x + 22, y, "idle until the launch ends")]
    y += LEGEND_LINE
    parts += [
        f'<rect x="{x}" y="{y - 10:.1f}" width="14" height="12" fill="{GRID}"/>',
        f'<rect x="{x + 12}" y="{y - 10:.1f}" width="2" height="12" fill="{CUT}"/>',
        text(x + 22, y, "keys of a q tile cut here"),
    ]
    y += LEGEND_LINE
    parts += [
        f'<path d="M{x + 7} {y - 11:.1f}v13" stroke="{INK}" stroke-width="1.2" stroke-dasharray="4 3"/>',
        text(x + 22, y, "end, were the work spread evenly"),
    ]
    y += 2 * LEGEND_LINE
    edges = (x + 60, x + 110, x + 160, x + 212)
    for edge, name in zip(edges, ("request", "qo", "kv", "time"), strict=True):
        parts.append(text(edge, y, name, fill=MUTED, anchor="end"))
    for entry in layout.entries[: layout.listed]:
        y += LEGEND_LINE
        parts.append(
            f'<rect x="{x}" y="{y - 10:.1f}" width="14" height="12" rx="2" fill="{layout.color(entry.request)}"/>'
        )
        cells = (str(entry.request), entry.qo_len, entry.kv_len, entry.share)
        parts += [text(edge, y, cell, anchor="end") for edge, cell in zip(edges, cells, strict=True)]
    if layout.listed < len(layout.entries):
        more = f"+{len(layout.entries) - layout.listed:,} more"
        parts.append(text(x, y + LEGEND_LINE, more, fill=MUTED))
    return parts


def _extent(panel: Panel, bar: int, frame: _Frame) -> tuple[float, float]:
    """Left edge and width; items that follow each other are kept apart by a hair where they are wide enough."""
    x = frame.x_of(panel.start[bar])
    width = frame.x_of(panel.stop[bar]) - x
    return x, width - 0.7 if width > 3 else width


def _bar_box(panel: Panel, bar: int, frame: _Frame) -> str:
    x, width = _extent(panel, bar, frame)
    return _box(x, x + width, panel.cta[bar], frame)


def _box(left: float, right: float, cta: float, frame: _Frame) -> str:
    return f"M{left:.2f} {frame.y_of(cta):.2f}H{right:.2f}v{frame.row - frame.gap:.2f}H{left:.2f}z"
