"""What can be counted in a Plan's arrays: tiles, keys, and the cache slots behind them. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from attnloom.errors import NotYetSupported
from attnloom.schedule.work import (
    KV_BEGIN,
    KV_END,
    KV_HEAD,
    OUT_SLOT,
    REQUEST,
    ROW_COUNT,
    ROW_MAP,
    ROW_START,
    ClassPlan,
    PageView,
    Plan,
)

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


# Further than any request is long: keeps the ranges of different requests apart in one sort.
_FAR = 2**40


@dataclass(frozen=True)
class ItemWork:
    """The items of one class and what each does, for one kv head; every array is [n].

    full, masked: non-empty kv tiles inside the item's range, without and with the mask applied; keys: the keys
    in them; cut_before, cut_after: another item has the keys before or after these of the same q tile;
    group: the group of CTAs (``heads_per_item`` of them) that runs the item.
    """

    request: Ints
    row_start: Ints
    row_count: Ints
    kv_head: Ints
    kv_begin: Ints
    kv_end: Ints
    partial: Flags
    full: Ints
    masked: Ints
    keys: Ints
    q_tile: Ints
    cut_before: Flags
    cut_after: Flags
    group: Ints


@dataclass(frozen=True)
class KeyRanges:
    """Ranges [begin, end) of keys of requests, as read by items; every array is [n]."""

    request: Ints
    begin: Ints
    end: Ints


def item_work(part: ClassPlan) -> tuple[ItemWork, KeyRanges]:
    """Count the tiles of every item of a class, and list the key ranges that they read."""
    items = _numpy(part.items)
    begin, end = items[:, KV_BEGIN], items[:, KV_END]
    owner, low, high, is_full = _clipped_segments(part, items)
    tiles = -(-(high - low) // part.tile.tile_kv)
    n = len(items)
    tile_key = items[:, [REQUEST, ROW_MAP, ROW_START, KV_HEAD]]
    _, q_tile = np.unique(tile_key, axis=0, return_inverse=True)
    q_tile = q_tile.reshape(-1)
    first = np.full(n, np.iinfo(np.int64).max)
    last = np.zeros(n, np.int64)
    np.minimum.at(first, q_tile, begin)
    np.maximum.at(last, q_tile, end)
    groups = part.tile.num_ctas // part.heads_per_item
    per_group = np.diff(_numpy(part.work_indptr)[: groups + 1])
    work = ItemWork(
        request=items[:, REQUEST],
        row_start=items[:, ROW_START],
        row_count=items[:, ROW_COUNT],
        kv_head=items[:, KV_HEAD],
        kv_begin=begin,
        kv_end=end,
        partial=items[:, OUT_SLOT] >= 0,
        full=_sum_at(owner, tiles * is_full, n),
        masked=_sum_at(owner, tiles * (1 - is_full), n),
        keys=_sum_at(owner, high - low, n),
        q_tile=q_tile,
        cut_before=begin > first[q_tile],
        cut_after=end < last[q_tile],
        group=np.repeat(np.arange(groups), per_group),
    )
    return work, KeyRanges(items[owner, REQUEST], low, high)


def kv_lengths(plan: Plan) -> Ints:
    """Keys of every sequence, the levels of a composed format numbered through."""
    return np.concatenate([_numpy(level.kv_len) for level in plan.levels])


def distinct_slots(plan: Plan, ranges: KeyRanges) -> int:
    """How many cache slots (one token of one kv head's K and V) the ranges touch, each counted once.

    Pages that requests share count once: the union is taken over physical slots.
    """
    offset = ranges.request * _FAR
    begin, end = _merged(offset + ranges.begin, offset + ranges.end)
    request, begin, end = begin // _FAR, begin % _FAR, (end - 1) % _FAR + 1
    starts, ends = [], []
    for index, level in enumerate(plan.levels):
        first, last = plan.level_indptr[index], plan.level_indptr[index + 1]
        of_level = (request >= first) & (request < last)
        low, high = _slots(level, request[of_level] - first, begin[of_level], end[of_level])
        starts.append(low)
        ends.append(high)
    low, high = _merged(np.concatenate(starts), np.concatenate(ends))
    return int((high - low).sum())


def _numpy(tensor: torch.Tensor) -> Ints:
    return tensor.detach().cpu().numpy().astype(np.int64)


def _sum_at(owner: Ints, values: Ints, n: int) -> Ints:
    total = np.zeros(n, np.int64)
    np.add.at(total, owner, values)
    return total


def _clipped_segments(part: ClassPlan, items: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """(item, begin, end, full) of every non-empty piece of a segment that lies in an item's kv range."""
    spans, segments = _numpy(part.item_segments), _numpy(part.segments)
    owner = np.repeat(np.arange(len(items)), spans[:, 1])
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(spans[:, 1]) - spans[:, 1], spans[:, 1])
    pieces = segments[np.repeat(spans[:, 0], spans[:, 1]) + nth]
    low = np.maximum(pieces[:, 0], items[owner, KV_BEGIN])
    high = np.minimum(pieces[:, 1], items[owner, KV_END])
    kept = high > low
    return owner[kept], low[kept], high[kept], pieces[kept, 2]


def _slots(level: PageView, request: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Physical slot ranges of key ranges: one per page touched, or one per range where KV is ragged."""
    if level.positions is not None:
        raise NotYetSupported(feature="explaining a plan over a sparse view", fix="Explain a paged or ragged plan.")
    page_start = _numpy(level.page_start)[request]
    if level.pages is None:
        return page_start + begin, page_start + end
    size = level.page_size
    pages = _numpy(level.pages).reshape(-1)
    count = -(-end // size) - begin // size
    row = np.repeat(np.arange(len(request)), count)
    logical = begin[row] // size + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    first_slot = pages[page_start[row] + logical] * size
    low = np.maximum(begin[row] - logical * size, 0)
    high = np.minimum(end[row] - logical * size, size)
    return first_slot + low, first_slot + high


def _merged(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The union of ranges as disjoint ascending ranges."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    covered = np.maximum.accumulate(end)
    opens = np.flatnonzero(np.concatenate([np.ones(min(len(start), 1), bool), start[1:] > covered[:-1]]))
    closes = np.append(opens[1:], len(start)) - 1
    return start[opens], covered[closes] if len(start) else end
