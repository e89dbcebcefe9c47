"""Lengths and mask bands to a Schedule: q tiles, their kv ranges, balanced over the CTAs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from attnloom.errors import InvalidArgument, InvalidMetadata
from attnloom.schedule.cost import CostModel
from attnloom.schedule.work import ClassPlan, MergeList, TileClass

if TYPE_CHECKING:
    import torch

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Planner = Literal["stream", "algorithm1"]

_INT32_LIMIT = 2**31
_IDLE_SHARE = 20  # every kv head in one item where at most 1/20 of the CTAs idle for it


class BandTables(Protocol):
    """What `schedule` reads of `variant.bounds.Bands`: int64 [R, n, 6] and [R, m, 6], R = 1 or the batch."""

    @property
    def may(self) -> Ints: ...  # noqa: D102
    @property
    def not_must(self) -> Ints: ...  # noqa: D102


@dataclass(frozen=True)
class Problem:
    """What a plan is made from.

    qo_indptr  int64 [batch + 1], rows of q (tokens)
    kv_len     int64 [batch], keys per request, < 2**31
    bands      where the mask may be visible and where it may mask: `variant.bounds`
    q_pos      int64 [total_q] or None for q_idx + kv_len - qo_len
    kv_pos     int64 [total_kv], packed by request, or None for the index in the request's keys
    """

    qo_indptr: Ints
    kv_len: Ints
    group_size: int
    num_kv_heads: int
    bands: BandTables
    q_pos: Ints | None = None
    kv_pos: Ints | None = None


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
    """Work items of every tile class, in the order of the classes, and `MergeList` in numpy."""

    classes: tuple[ClassArrays, ...]
    merge_entries: Int32s
    merge_indptr: Int32s
    merge_slots: Int32s

    def to_classes(self, device: torch.device | str) -> tuple[tuple[ClassPlan, ...], MergeList]:
        """The Plan's tensors on a device; on the CPU they share memory with this schedule."""
        import torch

        def put(array: Int32s) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        plans = tuple(
            ClassPlan(
                tile=c.tile,
                heads_per_item=c.heads_per_item,
                items=put(c.items),
                item_segments=put(c.item_segments),
                segments=put(c.segments),
                work_indptr=put(c.work_indptr),
            )
            for c in self.classes
        )
        return plans, MergeList(put(self.merge_entries), put(self.merge_indptr), put(self.merge_slots))


def heads_per_item(num_ctas: int, num_kv_heads: int) -> int:
    """num_kv_heads where an item stands for every kv head (``kv_head = -1``), 1 where it names its own."""
    groups = num_ctas // num_kv_heads
    idle = num_ctas - groups * num_kv_heads
    return num_kv_heads if groups >= 1 and idle * _IDLE_SHARE <= num_ctas else 1


def schedule(
    problem: Problem, classes: Sequence[TileClass], *, planner: Planner = "stream", cost: CostModel
) -> Schedule:
    """Divide the work of a batch among the CTAs of each tile class.

    A request goes to the class with the smallest tile_q that holds its packed rows, else to the largest.
    The result depends on lengths, mask and positions alone. Raises InvalidArgument, InvalidMetadata.
    """
    _check(problem, classes, planner)
    batch, mask = _batch(problem), _mask(problem)
    by_tile_q = sorted(range(len(classes)), key=lambda c: classes[c].tile_q)
    arrays: list[ClassArrays | None] = [None] * len(classes)
    merges = []
    above = 0
    for c in by_tile_q:
        upto = classes[c].tile_q if c != by_tile_q[-1] else 2**62
        arrays[c], merge = _schedule_class(problem, (batch, mask), classes[c], (above, upto), (planner, cost))
        merges.append((c, *merge))
        above = classes[c].tile_q
    done = tuple(a for a in arrays if a is not None)
    return Schedule(done, *_join_merges(merges))


def _check(problem: Problem, classes: Sequence[TileClass], planner: str) -> None:
    if planner not in ("stream", "algorithm1"):
        raise InvalidArgument(
            name="planner", given=planner, supported="'stream' or 'algorithm1'", fix="'stream' is the shipped one."
        )
    if not classes:
        raise InvalidArgument(name="classes", given=(), supported="at least one tile class", fix="Pass a TileClass.")
    for tile in classes:
        if min(tile.tile_q, tile.tile_kv, tile.num_ctas) < 1:
            raise InvalidArgument(name="tile class", given=tile, supported="positive sizes", fix="Use num_ctas >= 1.")
    rows = int(problem.qo_indptr[-1]) * problem.group_size
    if rows >= _INT32_LIMIT:
        raise InvalidMetadata(
            name="qo_indptr",
            given=f"{rows} packed rows (tokens x query heads per kv head)",
            expected="fewer than 2**31",
            fix="Divide the batch.",
        )
    if problem.kv_len.size and int(problem.kv_len.max()) >= _INT32_LIMIT:
        raise InvalidMetadata(
            name="kv_len", given=int(problem.kv_len.max()), expected="fewer than 2**31 keys", fix="Divide the request."
        )


def _int64(array: npt.NDArray[Any]) -> Ints:
    """The array as the compiled code is specialised for: contiguous, writable int64."""
    if array.dtype == np.int64 and array.flags.c_contiguous and array.flags.writeable:
        return array
    return np.array(array, np.int64, order="C")


_NO_POSITIONS = np.empty(0, np.int64)


def _batch(problem: Problem) -> Any:
    from attnloom.schedule.tiles import Batch

    kv_len = _int64(problem.kv_len)
    kv_start = _NO_POSITIONS if problem.kv_pos is None else np.cumsum(kv_len) - kv_len
    return Batch(_int64(problem.qo_indptr), kv_len, kv_start, problem.group_size)


def _mask(problem: Problem) -> Any:
    from attnloom.schedule.tiles import Mask

    return Mask(
        _int64(problem.bands.may),
        _int64(problem.bands.not_must),
        _NO_POSITIONS if problem.q_pos is None else _int64(problem.q_pos),
        _NO_POSITIONS if problem.kv_pos is None else _int64(problem.kv_pos),
        problem.q_pos is not None,
        problem.kv_pos is not None,
    )


def _schedule_class(
    problem: Problem,
    inputs: tuple[Any, Any],
    tile: TileClass,
    rows: tuple[int, int],
    how: tuple[Planner, CostModel],
) -> tuple[ClassArrays, tuple[Int32s, Int32s, Int32s]]:
    """One class's arrays and its merges (entries, indptr, slots without the class index)."""
    from attnloom.schedule.native import plan_class_compiled
    from attnloom.schedule.split import Costs
    from attnloom.schedule.tiles import Shape

    planner, cost = how
    heads = heads_per_item(tile.num_ctas, problem.num_kv_heads)
    unit = cost.beta * tile.tile_kv
    costs = Costs(
        cost.item(tile.tile_q, 0) / unit, cost.merge_fixed / unit, cost.merge_slot / unit, tile.num_ctas // heads, heads
    )
    shape = Shape(tile.tile_q, tile.tile_kv, tile.num_ctas, *rows)
    chunk = (problem.num_kv_heads, cost.min_chunk if planner == "algorithm1" else -1)
    (items, item_segments, indptr, *merges), segments = plan_class_compiled(*inputs, shape, costs, chunk)
    return ClassArrays(tile, heads, items, item_segments, segments, indptr), tuple(merges)


def _join_merges(merges: list[tuple[int, Int32s, Int32s, Int32s]]) -> tuple[Int32s, Int32s, Int32s]:
    """The merge lists of all classes as one; each slot gets its class index."""
    merges = sorted((merge for merge in merges if merge[3].size), key=lambda merge: merge[0])
    if not merges:
        return np.empty((0, 5), np.int32), np.zeros(1, np.int32), np.empty((0, 2), np.int32)
    indptr, slots, total = [np.zeros(1, np.int32)], [], 0
    for region, _, ends, used in merges:
        indptr.append(ends[1:] + np.int32(total))
        slots.append(np.stack((np.full_like(used, region), used), axis=1))
        total += used.size
    return np.concatenate([merge[1] for merge in merges]), np.concatenate(indptr), np.concatenate(slots)
