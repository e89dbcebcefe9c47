"""Lengths and mask bands to a Schedule: q tiles, their kv ranges, balanced over the CTAs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from attnloom.errors import InvalidArgument, InvalidMetadata
from attnloom.schedule.cost import CostModel
from attnloom.schedule.result import Schedule
from attnloom.schedule.work import TileClass

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Planner = Literal["stream", "algorithm1"]
PLANNERS = get_args(Planner)

_INT32_MAX = 2**31 - 1
_ANY_ROWS = 2**62
_NO_POSITIONS = np.empty(0, np.int64)
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


def heads_per_item(tile: TileClass, num_kv_heads: int) -> int:
    """num_kv_heads where an item stands for every kv head (``kv_head = -1``), 1 where it names its own."""
    groups = tile.num_ctas // num_kv_heads
    idle = tile.num_ctas - groups * num_kv_heads
    return num_kv_heads if tile.every_head and groups >= 1 and idle * _IDLE_SHARE <= tile.num_ctas else 1


def schedule(
    problem: Problem, classes: Sequence[TileClass], *, planner: Planner = "stream", cost: CostModel
) -> Schedule:
    """Divide the work of a batch among the CTAs of each tile class.

    A request goes to the class with the smallest tile_q that holds its packed rows, else to the largest.
    The result depends on lengths, mask and positions alone. Raises InvalidArgument, InvalidMetadata.
    """
    classes = tuple(classes)
    shapes, costs, heads = _class_tables(classes, problem.num_kv_heads, cost)
    if planner not in PLANNERS:
        raise InvalidArgument(
            name="planner",
            given=planner,
            supported=" or ".join(map(repr, PLANNERS)),
            fix="'stream' is the shipped one.",
        )
    vectors = (
        _int64(problem.qo_indptr),
        _int64(problem.kv_len),
        _NO_POSITIONS if problem.q_pos is None else _int64(problem.q_pos),
        _NO_POSITIONS if problem.kv_pos is None else _int64(problem.kv_pos),
    )
    bands = (_int64(problem.bands.may), _int64(problem.bands.not_must))
    scalars = (
        problem.group_size,
        problem.num_kv_heads,
        int(problem.q_pos is not None),
        int(problem.kv_pos is not None),
        cost.min_chunk if planner == "algorithm1" else -1,
    )
    buffer, sections = _plan_batch()(vectors, bands, shapes, costs, scalars)
    if not buffer.size:
        _refuse_size(problem)
    return Schedule(classes, heads, buffer, sections.tolist())


@cache
def _plan_batch() -> Any:
    """The compiled planner; importing it imports numba."""
    from attnloom.schedule.native import plan_batch_compiled

    return plan_batch_compiled


@lru_cache(maxsize=64)
def _class_tables(
    classes: tuple[TileClass, ...], num_kv_heads: int, cost: CostModel
) -> tuple[Ints, Floats, tuple[int, ...]]:
    """shapes and costs as `native.plan_batch` takes them, and heads_per_item of each class."""
    if not classes:
        raise InvalidArgument(name="classes", given=(), supported="at least one tile class", fix="Pass a TileClass.")
    shapes = np.empty((len(classes), 8), np.int64)
    costs = np.empty((len(classes), 3), np.float64)
    heads = tuple(heads_per_item(tile, num_kv_heads) for tile in classes)
    above = 0
    for c in sorted(range(len(classes)), key=lambda c: classes[c].tile_q):
        tile = classes[c]
        if min(tile.tile_q, tile.tile_kv, tile.num_ctas) < 1:
            raise InvalidArgument(name="tile class", given=tile, supported="positive sizes", fix="Use num_ctas >= 1.")
        largest = tile.tile_q == max(other.tile_q for other in classes)
        upto = _ANY_ROWS if largest else tile.tile_q
        shapes[c, :7] = (tile.tile_q, tile.tile_kv, tile.num_ctas, above, upto, tile.num_ctas // heads[c], heads[c])
        shapes[c, 7] = tile.section_keys if heads[c] == 1 else 0
        above = upto
        one = cost.of(tile.tile_q)
        unit = one.beta * tile.tile_kv
        costs[c] = (one.item(tile.tile_q, 0) / unit, one.merge_fixed / unit, one.merge_slot / unit)
    return shapes, costs, heads


def _refuse_size(problem: Problem) -> None:
    """Name what does not fit int32."""
    rows = int(problem.qo_indptr[-1]) * problem.group_size
    if rows > _INT32_MAX:
        raise InvalidMetadata(
            name="qo_indptr",
            given=f"{rows} packed rows (tokens x query heads per kv head)",
            expected="fewer than 2**31",
            fix="Divide the batch.",
        )
    raise InvalidMetadata(
        name="kv_len", given=int(problem.kv_len.max()), expected="fewer than 2**31 keys", fix="Divide the request."
    )


def _int64(array: npt.NDArray[Any]) -> Ints:
    """The array as the compiled code is specialised for: contiguous, writable int64."""
    if array.dtype == np.int64 and array.flags.c_contiguous and array.flags.writeable:
        return array
    return np.array(array, np.int64, order="C")
