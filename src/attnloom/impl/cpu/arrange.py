"""A Plan's items, arranged for matrix products on few threads.

tile   items that differ by their kv head only, and neighbours in rows that read the same keys: one batched product
unit   tiles of one request over the same heads: they share gathered keys, and one worker computes them

Every item of the Plan is in exactly one tile. Where several items name the same place for their state (a
sound plan has none), the place gets the union of their states.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attnloom.schedule.work import (
    ALL_HEADS,
    FINAL_OUTPUT,
    KV_BEGIN,
    KV_END,
    KV_HEAD,
    OUT_SLOT,
    REQUEST,
    ROW_COUNT,
    ROW_START,
    ClassPlan,
    Plan,
)

Ints = npt.NDArray[np.int32]
Place = tuple[int, int, int, int]
"""(class, request, row_start, kv head) of a final state, (class, -1, slot, kv head or 0) of a partial one."""

# Microseconds of one core, to divide work among threads; what is computed does not depend on them beyond
# where units are cut.
_TILE_COST = 60.0
_KEY_COST = 0.15
_PAIR_COST = 0.006

_SMALL = 300.0  # a plan cheaper than this is not worth waking threads
_UNITS_PER_WORKER = 3  # a unit is at most this fraction of a worker's share, where it can be divided
# Few long operations rather than many short ones: each asks for the interpreter, which workers share.
PRODUCT_ROWS = 2048  # of all heads of a product
_JOINED_ROWS = 512  # of a head: many compute more beyond the diagonal
_KEYS_PER_ROW = 3  # tiles are joined while a row has this many keys
_PANEL_KEYS = 1 << 13  # keys times heads that a unit of several tiles gathers once for all of them


class Span(NamedTuple):
    """Neighbouring keys [begin, end) that a tile reads; the mask is needed in ``partial`` only."""

    begin: int
    end: int
    partial: tuple[tuple[int, int], ...]


class Tile(NamedTuple):
    """Packed rows of kv heads [first_head, last_head); slots: partial states by head, None for final output."""

    row_start: int
    row_count: int
    first_head: int
    last_head: int
    spans: tuple[Span, ...]
    slots: tuple[int, ...] | None

    @property
    def keys(self) -> int:
        """Keys that are read."""
        return sum(span.end - span.begin for span in self.spans)


@dataclass(frozen=True)
class Unit:
    """What one worker computes in one go. cost is in microseconds of one core."""

    region: int
    request: int
    first_head: int
    last_head: int
    tiles: tuple[Tile, ...]
    cost: float

    @property
    def heads(self) -> int:
        """kv heads."""
        return self.last_head - self.first_head

    @property
    def hull(self) -> tuple[int, int]:
        """From the first key that a tile reads to behind the last; (0, 0) where none reads any."""
        spans = [span for tile in self.tiles for span in (tile.spans[:1] + tile.spans[-1:])]
        return min((s.begin for s in spans), default=0), max((s.end for s in spans), default=0)


@dataclass(frozen=True)
class Arrangement:
    """Units, dearest first; workers: how many threads they are worth; shared: places named more than once."""

    units: tuple[Unit, ...]
    workers: int
    shared: frozenset[Place]


def arrange(plan: Plan, threads: int) -> Arrangement:
    """The arrangement of a plan for `threads` workers; kept while the plan lives and its arrays stay the same."""
    known = _cache.get(id(plan))
    arrays = [array for work in plan.classes for array in _arrays(work)]
    if known is not None and known[0]() is plan and known[1] == threads and all(map(np.array_equal, arrays, known[2])):
        return known[3]
    made = _arrange(plan, threads)
    key = id(plan)

    def forget(_: weakref.ref[Plan]) -> None:
        _cache.pop(key, None)

    _cache[key] = weakref.ref(plan, forget), threads, [array.copy() for array in arrays], made
    return made


_cache: dict[int, tuple[weakref.ref[Plan], int, list[Ints], Arrangement]] = {}


def _arrays(work: ClassPlan) -> tuple[Ints, Ints, Ints, Ints]:
    return work.items.numpy(), work.item_segments.numpy(), work.segments.numpy(), work.work_indptr.numpy()


def _arrange(plan: Plan, threads: int) -> Arrangement:
    bundles: dict[tuple[int, int, int, int], list[Tile]] = {}
    places: list[Place] = []
    for region, work in enumerate(plan.classes):
        for request, tile in _tiles(work, plan.num_kv_heads):
            bundles.setdefault((region, request, tile.first_head, tile.last_head), []).append(tile)
            places += tile_places(region, request, tile)
    shared = frozenset(place for place, count in Counter(places).items() if count > 1)
    units = [
        _unit(region, request, tiles if shared else _fused(tiles)) for (region, request, _, _), tiles in bundles.items()
    ]
    total = sum(unit.cost for unit in units)
    workers = threads if total > _SMALL else 1
    share = total / (workers * _UNITS_PER_WORKER) if workers > 1 else math.inf
    cut = [part for unit in units for part in _divide(unit, share)]
    cut.sort(key=lambda unit: -unit.cost)
    return Arrangement(tuple(cut), workers, shared)


def tile_places(region: int, request: int, tile: Tile) -> list[Place]:
    """Where a tile's states go, head by head."""
    if tile.slots is None:
        return [(region, request, tile.row_start, head) for head in range(tile.first_head, tile.last_head)]
    return [(region, -1, slot, 0) for slot in tile.slots]


def _tiles(work: ClassPlan, num_kv_heads: int) -> list[tuple[int, Tile]]:
    """(request, tile) in the order of requests and rows."""
    items, item_segments, segments, indptr = _arrays(work)
    items, item_segments = items[indptr[0] : indptr[-1]], item_segments[indptr[0] : indptr[-1]]
    if not len(items):
        return []
    final = items[:, OUT_SLOT] == FINAL_OUTPUT
    keys = (items[:, REQUEST], items[:, ROW_START], items[:, ROW_COUNT], items[:, KV_BEGIN], items[:, KV_END], final)
    order = np.lexsort((items[:, KV_HEAD], *keys[::-1]))
    joined = np.zeros(len(items), bool)  # to the item before, which differs by the kv head only
    if len(items) > 1:
        joined[1:] = np.diff(items[order, KV_HEAD]) == 1
        for key in keys:
            joined[1:] &= key[order[1:]] == key[order[:-1]]
    starts = np.flatnonzero(~joined)
    rows, parts, bounds = items[order].tolist(), item_segments[order].tolist(), segments.tolist()
    ends = [*starts[1:].tolist(), len(items)]
    made = []
    for first, last in zip(starts.tolist(), ends, strict=True):
        item, (at, count) = rows[first], parts[first]
        spans = _spans(bounds[at : at + count], item[KV_BEGIN], item[KV_END])
        slots: tuple[int, ...] | None = None
        if item[OUT_SLOT] != FINAL_OUTPUT:
            slots = tuple(row[OUT_SLOT] for row in rows[first:last])
        heads = item[KV_HEAD], item[KV_HEAD] + last - first
        if item[KV_HEAD] == ALL_HEADS:
            heads = 0, num_kv_heads
            slots = slots and tuple(slots[0] * num_kv_heads + head for head in range(num_kv_heads))
        made.append((item[REQUEST], Tile(item[ROW_START], item[ROW_COUNT], *heads, spans, slots)))
    return made


def _spans(segments: list[list[int]], begin: int, end: int) -> tuple[Span, ...]:
    """Segments clipped to [begin, end), neighbours joined."""
    spans: list[Span] = []
    for segment_begin, segment_end, full in segments:
        first, last = max(segment_begin, begin), min(segment_end, end)
        if first >= last:
            continue
        partial = () if full else ((first, last),)
        if spans and spans[-1].end == first:
            before = spans.pop()
            spans.append(Span(before.begin, last, before.partial + partial))
        else:
            spans.append(Span(first, last, partial))
    return tuple(spans)


def _fused(tiles: list[Tile]) -> list[Tile]:
    """Neighbouring rows with the same keys and a final result as one tile."""
    fused: list[Tile] = []
    for tile in tiles:
        if fused:
            last = fused[-1]
            rows = last.row_count + tile.row_count
            joins = tile.slots is None and last.slots is None and tile.row_start == last.row_start + last.row_count
            if joins and rows <= min(_JOINED_ROWS, tile.keys // _KEYS_PER_ROW) and tile.spans == last.spans:
                fused[-1] = last._replace(row_count=rows)
                continue
        fused.append(tile)
    return fused


def _unit(region: int, request: int, tiles: list[Tile]) -> Unit:
    heads = tiles[0].last_head - tiles[0].first_head
    cost = sum(_TILE_COST + heads * tile.keys * (_KEY_COST + _PAIR_COST * tile.row_count) for tile in tiles)
    return Unit(region, request, tiles[0].first_head, tiles[0].last_head, tuple(tiles), cost)


def _divide(unit: Unit, share: float) -> list[Unit]:
    """Parts of a unit that cost about a share and fit caches: by kv heads, then by q tiles."""
    parts = max(1, math.ceil(unit.cost / share))
    rows = unit.heads * max(tile.row_count for tile in unit.tiles)
    parts = max(parts, math.ceil(rows / PRODUCT_ROWS))
    if len(unit.tiles) > 1:
        begin, end = unit.hull
        parts = max(parts, math.ceil(unit.heads * (end - begin) / _PANEL_KEYS))
    parts = min(parts, unit.heads)
    heads = [unit.first_head + unit.heads * i // parts for i in range(parts + 1)]
    divided = []
    for first, last in itertools.pairwise(heads):
        part = _unit(unit.region, unit.request, [heads_of(tile, first, last) for tile in unit.tiles])
        divided += _divide_tiles(part, share) if part.cost > share and len(part.tiles) > 1 else [part]
    return divided


def heads_of(tile: Tile, first: int, last: int) -> Tile:
    """The tile for kv heads [first, last) alone."""
    slots = tile.slots and tile.slots[first - tile.first_head : last - tile.first_head]
    return tile._replace(first_head=first, last_head=last, slots=slots)


def _divide_tiles(unit: Unit, share: float) -> list[Unit]:
    parts: list[list[Tile]] = [[]]
    spent = 0.0
    for tile in unit.tiles:
        cost = _unit(unit.region, unit.request, [tile]).cost
        if parts[-1] and spent + cost > share:
            parts.append([])
            spent = 0.0
        parts[-1].append(tile)
        spent += cost
    return [_unit(unit.region, unit.request, tiles) for tiles in parts]
