"""Where a mask is full and where it is empty, without evaluating it on keys.

The comparisons in a mask cut the lines of kv_pos, q_pos and d = kv_pos - q_pos into cells, few and independent of
the lengths. In a cell every understood comparison is constant, so the mask is true, false or unknown there in
three-valued logic; unions of neighbouring cells are the bands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnloom.variant.expr import TRUE
from attnloom.variant.formula import Analysis, analyse
from attnloom.variant.program import Program
from attnloom.variant.regions import Box, Grid, cover, three_valued
from attnloom.variant.thresholds import INF, NO_COLUMNS, Columns
from attnloom.variant.uniform import Batch, Lengths

Ints = np.ndarray[Any, np.dtype[np.int64]]

MAX_CELLS = 4096
"""Larger grids are not analysed: every pair then may be visible and may be masked."""

MAX_PATTERNS = 1024
"""Orders of thresholds that are remembered; a mask of ordinary batches has a handful."""

_EMPTY = (1, 0) * 3
_WHOLE_LINE: Ints = np.array([[-INF, INF + 1]], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Bands:
    """The mask of a batch as unions of bands.

    A band is six integers (kv_lo, kv_hi, q_lo, q_hi, d_lo, d_hi), inclusive, infinities ±2**40; a pair of positions
    lies in it when kv_pos, q_pos and d = kv_pos - q_pos lie in their ranges; it is empty where a lo exceeds its hi.

    may       int64 [R, n, 6], R = 1 (every request) or the batch: their union holds every visible pair
    not_must  int64 [R, m, 6]: their union holds every masked pair

    Both are exact, the set itself, where each comparison of the mask is understood.
    """

    may: Ints
    not_must: Ints


class BoundsProgram:
    """The analysis of one program's mask; made once per program."""

    def __init__(self, program: Program) -> None:
        self._mask = program.mask if program.mask is not None else TRUE
        self._analyses: dict[tuple[bool, frozenset[str]], _Layout] = {}
        self._constant: dict[bool, Bands] = {}
        names: frozenset[str] = frozenset()
        for default_positions in (True, False):
            layout = self._layout(default_positions, frozenset())
            names |= layout.analysis.params
            if layout.analysis.is_constant and not layout.varies:
                none = np.zeros(0, dtype=np.int64)
                self._constant[default_positions] = layout.bands(Batch(none, none, {}, default_positions))
        self.structural_params = names
        """Parameters whose values the bands depend on; `plan` keeps the ones that it used."""

    def bands(self, qo_len: Lengths, kv_len: Lengths, params: Mapping[str, Any], default_positions: bool) -> Bands:
        """The bands of a batch.

        Args:
            qo_len, kv_len: int64 ``[batch]``.
            params: values on the host of `structural_params`; comparisons with one that is missing or None are
                unknown.
            default_positions: q_pos is ``q_idx + kv_len - qo_len``; False where positions are given.

        Raises:
            ParamError: a parameter has fewer elements than the batch asks for.
        """
        constant = self._constant.get(default_positions)
        if constant is not None:
            return constant
        missing = frozenset(name for name in self.structural_params if params.get(name) is None)
        layout = self._layout(default_positions, missing)
        return layout.bands(Batch(qo_len, kv_len, params, default_positions))

    @property
    def last_row_sees_all(self) -> bool:
        """With default positions a request's last row surely sees every key, whatever lengths and values.

        Then no page of the request has left its window.
        """
        constant = self._constant.get(True)
        if constant is None:
            return False
        later = constant.not_must[..., 4] > 0  # masked pairs have kv_pos > q_pos, and no key is beyond the last row
        empty = (constant.not_must[..., 0::2] > constant.not_must[..., 1::2]).any(-1)
        return bool((later | empty).all())

    def most_bands(self, default_positions: bool, missing: frozenset[str]) -> tuple[int, int]:
        """Upper bounds of n and m in ``may [R, n, 6]`` and ``not_must [R, m, 6]``, whatever lengths and values.

        missing: the `structural_params` without a value.
        """
        constant = self._constant.get(default_positions)
        if constant is not None:
            return constant.may.shape[1], constant.not_must.shape[1]
        cells = self._layout(default_positions, missing & self.structural_params).cells
        return cells, cells

    def _layout(self, default_positions: bool, missing: frozenset[str]) -> _Layout:
        key = (default_positions, missing)
        found = self._analyses.get(key)
        if found is None:
            found = self._analyses[key] = _Layout(analyse(self._mask, default_positions, missing))
        return found


class _Layout:
    """Bands as boxes of cells between cuts; which boxes depends only on the order of the cuts and on the conditions."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self._cuts = [Columns(cuts) for cuts in analysis.cuts]
        self._bits = Columns(analysis.bits)
        self.varies = any(columns.varies for columns in (*self._cuts, self._bits))
        self._patterns: dict[bytes, tuple[list[Box], list[Box]]] = {}

    @property
    def cells(self) -> int:
        """Cells of the grid between cuts: no more boxes than that."""
        cells = math.prod(columns.width + 1 for columns in self._cuts)
        return cells if cells <= MAX_CELLS else 1

    def bands(self, batch: Batch) -> Bands:
        rows = len(batch.qo_len) if self.varies else 1
        pattern = [self._bits(batch, rows)] if self._bits.width else []
        edges = []
        for columns in self._cuts:
            if not columns.width:
                edges.append(_WHOLE_LINE)
                continue
            cuts = columns(batch, rows)
            if columns.width > 1:
                order = np.argsort(cuts, axis=1, kind="stable")
                cuts = cuts[np.arange(rows)[:, None], order]
                pattern += [order, (cuts[:, 1:] == cuts[:, :-1]).astype(np.int64)]
            edges.append(_edges(cuts))
        if rows == 0:
            return Bands(_gather(edges, [], 0), _gather(edges, [], 0))
        kinds = np.concatenate(pattern, axis=1) if pattern else NO_COLUMNS
        if len(kinds) == 1 or (kinds == kinds[0]).all():
            may, not_must = self._boxes(kinds[0])
            return Bands(_gather(edges, may, rows), _gather(edges, not_must, rows))
        samples, which = _distinct(kinds)
        choices = [self._boxes(kinds[row]) for row in samples]
        return Bands(
            _mixed(edges, [may for may, _ in choices], which),
            _mixed(edges, [not_must for _, not_must in choices], which),
        )

    def _boxes(self, kind: Ints) -> tuple[list[Box], list[Box]]:
        key = kind.tobytes()
        found = self._patterns.get(key)
        if found is None:
            if len(self._patterns) >= MAX_PATTERNS:
                self._patterns.clear()
            found = self._patterns[key] = self._boxes_of(kind.tolist())
        return found

    def _boxes_of(self, kind: list[int]) -> tuple[list[Box], list[Box]]:
        """Boxes of cells where the mask can be true, and where it can be false, for one order of the cuts."""
        widths = [columns.width for columns in self._cuts]
        shape = tuple(width + 1 for width in widths)
        if np.prod(shape) > MAX_CELLS:
            everything: Box = tuple((0, width) for width in widths)
            return [everything], [everything]
        bits, at = kind[: self._bits.width], self._bits.width
        below: list[list[tuple[Grid, Grid]]] = []
        empty = np.zeros(shape, dtype=np.bool_)
        for axis, columns in enumerate(self._cuts):
            along = [-1 if i == axis else 1 for i in range(len(shape))]
            rank, ties, used = _order(kind[at:], columns.width)
            at += used
            cells = np.arange(columns.width + 1).reshape(along)
            below.append([(cells <= rank[first], cells <= rank[last]) for first, last in columns.places])
            empty |= np.array([False, *ties, False]).reshape(along)[: shape[axis]] if columns.width else False
        can = three_valued(self.analysis.formula, below, bits)
        true, false = (np.ascontiguousarray(np.broadcast_to(grid, shape)) for grid in can)
        return cover(true, empty), cover(false, empty)


def _distinct(kinds: Ints) -> tuple[Ints, Ints]:
    """Rows that differ (one of each), and for every row the number of its like."""
    radix = kinds.max(axis=0) + 1
    if math.prod(radix.tolist()) < 2**62:  # one number says it all
        places = np.cumprod(radix) // radix
        _, samples, which = np.unique(kinds @ places, return_index=True, return_inverse=True)
    else:
        _, samples, which = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    return samples, which.reshape(-1)


def _order(kind: list[int], width: int) -> tuple[list[int], list[bool], int]:
    """From a pattern: the rank of each cut, whether neighbours are equal, and the numbers read."""
    if width < 2:
        return [0], [], 0
    return [int(i) for i in np.argsort(kind[:width])], [bool(tie) for tie in kind[width : 2 * width - 1]], 2 * width - 1


def _edges(ordered: Ints) -> Ints:
    """First position of each cell, and one past the last: ``[rows, cuts + 2]``."""
    rows, width = ordered.shape
    edges = np.empty((rows, width + 2), dtype=np.int64)
    edges[:, 0], edges[:, 1:-1], edges[:, -1] = -INF, ordered, INF + 1
    return edges


def _gather(edges: list[Ints], boxes: list[Box], rows: int) -> Ints:
    """The bands of boxes of cells: int64 [rows, boxes, 6]."""
    out = np.empty((rows, len(boxes), 6), dtype=np.int64)
    for j, box in enumerate(boxes):
        for axis, (first, last) in enumerate(box):
            out[:, j, 2 * axis] = edges[axis][:, first]
            out[:, j, 2 * axis + 1] = edges[axis][:, last + 1]
    out[:, :, 1::2] -= 1  # an edge is the first position of the next cell
    return out


def _mixed(edges: list[Ints], choices: list[list[Box]], which: Ints) -> Ints:
    """`_gather` with the boxes of request i chosen by which[i]; shorter lists end in empty bands."""
    out = np.empty((len(which), max(len(boxes) for boxes in choices), 6), dtype=np.int64)
    out[:] = _EMPTY
    for kind, boxes in enumerate(choices):
        rows = np.flatnonzero(which == kind)
        some = [edge if edge is _WHOLE_LINE else edge[rows] for edge in edges]
        out[rows, : len(boxes)] = _gather(some, boxes, len(rows))
    return out


def compile_bounds(program: Program) -> BoundsProgram:
    """The bounds of `program`'s mask; made once, kept on the program."""
    found = program.__dict__.get("_bounds")
    if not isinstance(found, BoundsProgram):
        found = program.__dict__["_bounds"] = BoundsProgram(program)
    return found
