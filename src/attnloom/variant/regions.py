"""Few boxes that cover the cells of a small grid on which a formula holds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnloom.variant.formula import Formula

Grid = np.ndarray[Any, np.dtype[np.bool_]]
Below = Sequence[Sequence[tuple[Grid, Grid]]]
Box = tuple[tuple[int, int], ...]
"""First and last cell, inclusive, on each axis."""

FALSE, TRUE, UNKNOWN = range(3)


def three_valued(formula: Formula, below: Below, bits: Sequence[int]) -> tuple[Grid, Grid]:
    """Where `formula` can be true and where it can be false, on the grid of cells.

    Args:
        formula: the mask.
        below: per axis, per cut: (cell lies below the cut for sure, cell may lie below), shaped to broadcast.
        bits: FALSE, TRUE or UNKNOWN per uniform condition.
    """
    done: dict[Formula, tuple[Grid, Grid]] = {}
    stack = [formula]
    while stack:
        node = stack[-1]
        waiting = [arg for arg in node.args if arg not in done]
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        done[node] = _value(node, [done[arg] for arg in node.args], below, bits)
    return done[formula]


def _value(node: Formula, args: list[tuple[Grid, Grid]], below: Below, bits: Sequence[int]) -> tuple[Grid, Grid]:
    if node.kind == "below":
        surely, maybe = below[node.axis][node.value]
        return maybe, ~surely
    if node.kind == "bit":
        return np.array(bits[node.value] != FALSE), np.array(bits[node.value] != TRUE)
    if node.kind == "const":
        return np.array(bool(node.value)), np.array(not node.value)
    if node.kind == "unknown":
        return np.array(True), np.array(True)
    true, false = args[0]
    if node.kind == "not":
        return false, true
    true2, false2 = args[1]
    if node.kind == "and":
        return true & true2, false | false2
    if node.kind == "or":
        return true | true2, false & false2
    return (true & false2) | (false & true2), (true & true2) | (false & false2)


def cover(cells: Grid, empty: Grid) -> list[Box]:
    """Boxes whose union is exactly `cells`, up to cells known to be `empty`; they may overlap, and are few."""
    boxes: list[Box] = []
    left = cells & ~empty
    cells = cells | empty
    while left.any():
        seed = tuple(int(i) for i in np.argwhere(left)[0])
        grown = [_grow(cells, seed, order) for order in itertools.permutations(range(cells.ndim))]
        best = max(grown, key=lambda box: (int(left[_slices(box)].sum()), int(cells[_slices(box)].size)))
        boxes.append(best)
        left[_slices(best)] = False
    return _without_redundant(boxes, empty)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(first, last + 1) for first, last in box)


def _grow(cells: Grid, seed: tuple[int, ...], order: tuple[int, ...]) -> Box:
    """The box around `seed`, extended along the axes in turn as far as every cell belongs."""
    box = [(i, i) for i in seed]
    for axis in order:
        others = tuple(other for other in range(cells.ndim) if other != axis)
        window = list(_slices(tuple(box)))
        window[axis] = slice(None)
        inside: list[bool] = np.all(cells[tuple(window)], axis=others).tolist()
        first, last = box[axis]
        while first > 0 and inside[first - 1]:
            first -= 1
        while last + 1 < len(inside) and inside[last + 1]:
            last += 1
        box[axis] = (first, last)
    return tuple(box)


def _without_redundant(boxes: list[Box], empty: Grid) -> list[Box]:
    """`boxes` without those whose cells the others cover."""
    counts = 2 * empty.astype(np.int64)
    for box in boxes:
        counts[_slices(box)] += 1
    kept = []
    for box in boxes:
        if (counts[_slices(box)] > 1).all():
            counts[_slices(box)] -= 1
        else:
            kept.append(box)
    return kept
