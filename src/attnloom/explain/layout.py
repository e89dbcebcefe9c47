"""Where things go in the picture of a plan; shared by the SVG and the PNG."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attnloom.explain.arrays import Ints
from attnloom.explain.palette import request_color
from attnloom.explain.words import Facts, LegendEntry, legend

_ROWS_HEIGHT = 620.0
_ROW_HEIGHTS = (3.2, 36.0)
_LEGEND_LINES = (12, 40)
LEGEND_LINE = 17.0


@dataclass(frozen=True)
class Layout:
    """Sizes and order of what is drawn.

    shown: the classes that have work, as indices; row_height: of one CTA, in px; end: the right end of the
    time axis; entries: all requests by time; listed: how many of them the legend names; rank: [requests],
    each one's colour.
    """

    shown: tuple[int, ...]
    row_height: float
    end: float
    entries: tuple[LegendEntry, ...]
    listed: int
    rank: Ints

    def color(self, request: int) -> str:
        """The request's colour."""
        return request_color(int(self.rank[request]))


def arrange(facts: Facts) -> Layout:
    """Fit the CTAs of all classes with work above each other on one time axis."""
    shown = tuple(i for i, figures in enumerate(facts.classes) if figures.items)
    rows = sum(facts.panels[i].tile.num_ctas for i in shown)
    low, high = _ROW_HEIGHTS
    row_height = min(max(_ROWS_HEIGHT / max(rows, 1), low), high)
    entries = legend(facts)
    rank = np.zeros(len(facts.kv_len), np.int64)
    for entry in entries:
        rank[entry.request] = entry.rank
    fewest, most = _LEGEND_LINES
    fitting = int(min(max(rows * row_height / LEGEND_LINE, fewest), most))
    listed = len(entries) if len(entries) <= fitting else fitting - 1
    end = max((facts.panels[i].span for i in shown), default=0.0)
    return Layout(shown, row_height, end or 1.0, entries, listed, rank)


def ticks(end: float, about: int = 8) -> list[float]:
    """Round numbers from 0 up to `end`, some `about` of them.

    >>> ticks(95.0, about=5)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    raw = end / about
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= raw)
    return [i * step for i in range(int(end / step + 1e-9) + 1)]


def cta_step(num_ctas: int, row_height: float, spacing: float = 15.0) -> int:
    """Label every so many CTAs, for labels at least `spacing` px apart."""
    return next((s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256) if s * row_height >= spacing), num_ctas)
