"""How q, k and v reach shared memory: decided by a launch's strides, addresses and page size alone.

TMA copies boxes: it wants addresses and strides that 16 bytes divide, and pages of at least 8 rows that fill a tile
evenly. What it cannot copy, warps gather row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnloom.impl.base import LaunchTensors
from attnloom.schedule.work import Plan

BYTES = 16
LEAST_PAGE = 8  # rows of a box: the pattern in which shared memory is laid out repeats after 8
ROWS_OF_A_WARPGROUP = 64


def kv_by_tma(plan: Plan, t: LaunchTensors, tile_kv: int) -> bool:
    """Whether TMA can bring tiles of k and v."""
    view = plan.levels[0]
    if view.pages is not None and not _fills_tiles(view.page_size, tile_kv):
        return False
    return _kv_alignment(plan, t) >= BYTES


def q_by_tma(plan: Plan, t: LaunchTensors) -> bool:
    """Whether TMA can bring a warpgroup's packed rows of q: whole tokens, strides that it takes."""
    group = plan.group_size
    if ROWS_OF_A_WARPGROUP % group:
        return False
    strides = t.q.stride()[:1] if plan.num_qo_heads == 1 else t.q.stride()[:2]
    return _alignment(t.q.data_ptr(), strides, t.q.element_size()) >= BYTES


def kv_alignment(plan: Plan, t: LaunchTensors) -> int:
    """Bytes of the widest copy that every row of k and v allows: 16, 8, 4 or 2 (1 for types of one byte)."""
    return _kv_alignment(plan, t, gathered=True)


def _fills_tiles(page_size: int, tile_kv: int) -> bool:
    power = page_size & (page_size - 1) == 0
    return (power and page_size >= LEAST_PAGE) or page_size % tile_kv == 0


def _kv_alignment(plan: Plan, t: LaunchTensors, *, gathered: bool = False) -> int:
    """As `_alignment` over k and v; strides that no address depends on do not count."""
    ragged, one_head = plan.levels[0].pages is None, plan.num_kv_heads == 1
    least = BYTES
    for cache in (t.k, t.v):
        page, token, head, _ = cache.stride()
        used = [page, *([] if ragged else [token]), *([] if one_head else [head])]
        least = min(least, _alignment(cache.data_ptr(), used, cache.element_size(), zero=gathered))
    return least


def _alignment(address: int, strides: Sequence[int], element: int, *, zero: bool = False) -> int:
    """The largest power of two up to 16 that divides an address and strides in bytes; 0 for a stride TMA refuses."""
    bits = address | BYTES
    for stride in strides:
        if stride <= 0 and not zero:
            return 0
        bits |= stride * element
    return bits & -bits
