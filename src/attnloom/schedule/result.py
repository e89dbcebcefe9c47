"""What the planner gives back: every array of the plan in one buffer, so that one copy takes it to a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attnloom.schedule.arrays import ArrayBuffer
from attnloom.schedule.work import ClassPlan, MergeList, TileClass

Int32s = npt.NDArray[np.int32]

_WIDTHS = (3, 8, 2, 0)  # columns of a class's arrays, 0: one dimension
_MERGE_WIDTHS = (5, 0, 2)


@dataclass(frozen=True)
class ClassArrays:
    """`ClassPlan` in numpy."""

    tile: TileClass
    heads_per_item: int
    items: Int32s
    item_segments: Int32s
    segments: Int32s
    work_indptr: Int32s


@dataclass(frozen=True)
class Schedule:
    """The work of every tile class, in their order, and the merges of cut tiles.

    buffer    int32, all arrays, each at a multiple of 32 bytes
    sections  (start, length) of each array: segments, items, item_segments and work_indptr of every class,
              then the merge list's entries, indptr and slots
    """

    tiles: tuple[TileClass, ...]
    heads_per_item: tuple[int, ...]
    buffer: Int32s
    sections: list[list[int]]

    @cached_property
    def _arrays(self) -> list[Int32s]:
        widths = section_widths(len(self.tiles))
        flat = [self.buffer[start : start + length] for start, length in self.sections]
        return [a.reshape(-1, w) if w else a for a, w in zip(flat, widths, strict=True)]

    @cached_property
    def classes(self) -> tuple[ClassArrays, ...]:
        """One `ClassArrays` per tile class, without work too."""
        parts = []
        for c, (tile, heads) in enumerate(zip(self.tiles, self.heads_per_item, strict=True)):
            segments, items, item_segments, work_indptr = self._arrays[4 * c : 4 * c + 4]
            parts.append(ClassArrays(tile, heads, items, item_segments, segments, work_indptr))
        return tuple(parts)

    @property
    def merge_entries(self) -> Int32s:
        """`MergeList.entries`."""
        return self._arrays[-3]

    @property
    def merge_indptr(self) -> Int32s:
        """`MergeList.indptr`."""
        return self._arrays[-2]

    @property
    def merge_slots(self) -> Int32s:
        """`MergeList.slots`."""
        return self._arrays[-1]


def class_plans(
    tiles: Sequence[TileClass], heads_per_item: Sequence[int], buffer: ArrayBuffer
) -> tuple[tuple[ClassPlan, ...], MergeList]:
    """The Plan's parts from a buffer whose first places are those of `Schedule.sections`."""
    width = len(_WIDTHS)
    parts = [
        ClassPlan.stored(buffer, width * c, tile=tile, heads_per_item=heads)
        for c, (tile, heads) in enumerate(zip(tiles, heads_per_item, strict=True))
    ]
    return tuple(parts), MergeList.stored(buffer, width * len(parts))


def section_widths(num_classes: int) -> tuple[int, ...]:
    """Columns of each array in `Schedule.sections`, 0: one dimension."""
    return _WIDTHS * num_classes + _MERGE_WIDTHS
