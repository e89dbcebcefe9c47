"""Pieces of kv to the Plan's arrays, all in one int32 buffer, and the merge list (compiled)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attnloom.schedule import tiles as t
from attnloom.schedule.balance import zeros
from attnloom.schedule.jit import inlined, inner
from attnloom.schedule.split import CTA, FIRST, LAST, UNIT
from attnloom.schedule.work import (
    ALL_HEADS,
    FINAL_OUTPUT,
    KV_BEGIN,
    KV_END,
    KV_HEAD,
    NO_ROW_MAP,
    OUT_SLOT,
    REQUEST,
    ROW_COUNT,
    ROW_MAP,
    ROW_START,
)

Ints = npt.NDArray[np.int64]

ALIGNMENT = 8  # int32: arrays of the buffer start at multiples of 32 bytes


class Out(NamedTuple):
    """The buffer and where the arrays of the class start in it."""

    buffer: Any
    segments: int
    items: int
    item_segments: int
    work_indptr: int


class Units(NamedTuple):
    """Unit u of the pieces is q tile ids[u] // heads and kv head ids[u] % heads; heads 0: every head of tile ids[u]."""

    ids: Ints
    heads: int
    tile_kv: int


@inner
def aligned(at: int) -> int:
    """The next start of an array."""
    return (at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@inner
def grown_rows(table: Any, rows: int) -> Any:
    """The table, or a larger copy if it has fewer rows."""
    if rows <= table.shape[0]:
        return table
    larger = np.empty((2 * table.shape[0] + rows, table.shape[1]), np.int32)
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            larger[i, j] = table[i, j]
    return larger


@inner
def places(pieces: Ints, order: Ints, num_ctas: int, out: Out) -> Ints:
    """Write work_indptr; the place of each piece among the items: by CTA, within one in ``order``."""
    cursor = zeros(num_ctas + 1)
    for p in range(pieces.shape[0]):
        cursor[pieces[p, CTA] + 1] += 1
    for c in range(num_ctas):
        cursor[c + 1] += cursor[c]
    for c in range(num_ctas + 1):
        out.buffer[out.work_indptr + c] = cursor[c]
    place = np.empty(pieces.shape[0], np.int64)
    for i in range(order.shape[0]):
        cta = pieces[order[i], CTA]
        place[order[i]] = cursor[cta]
        cursor[cta] += 1
    return place


@inner
def seek(out: Out, tile_kv: int, at: Any, kv_tile: int) -> Any:
    """From at = (start of a segment, kv tiles before it) on to the segment with the kv_tile-th non-empty tile."""
    segment, before = at
    while True:
        held = t.divided(out.buffer[segment + 1] - out.buffer[segment] + tile_kv - 1, tile_kv)
        if kv_tile < before + held:
            return segment, before
        before += held
        segment += 3


@inner
def kv_range(out: Out, tile_kv: int, at: Any, first: int, last: int) -> Any:
    """(kv_begin, kv_end, cursor) of kv tiles [first, last); the cursor serves the unit's next piece."""
    segment, before = seek(out, tile_kv, at, first)
    begin = out.buffer[segment] + (first - before) * tile_kv
    segment, before = seek(out, tile_kv, (segment, before), last - 1)
    end = min(out.buffer[segment] + (last - before) * tile_kv, np.int64(out.buffer[segment + 1]))
    return begin, end, (segment, before)


@inlined
def write_item(out: Out, at: int, tiles: Ints, tile: int, head: int) -> None:
    """Everything of an item but its kv range and its slot."""
    item = out.items + 8 * at
    out.buffer[item + REQUEST] = tiles[tile, t.REQUEST]
    out.buffer[item + ROW_START] = tiles[tile, t.ROW_START]
    out.buffer[item + ROW_COUNT] = tiles[tile, t.ROW_COUNT]
    out.buffer[item + ROW_MAP] = NO_ROW_MAP
    out.buffer[item + KV_HEAD] = head
    segments = out.item_segments + 2 * at
    out.buffer[segments] = tiles[tile, t.SEG_START]
    out.buffer[segments + 1] = tiles[tile, t.SEG_COUNT]


@inner
def write_items(out: Out, tiles: Ints, pieces: Ints, place: Ints, units: Units) -> int:
    """The items in their places; partial slots are numbered in the order of the pieces. Returns how many slots."""
    slot = 0
    cursor = (np.int64(0), np.int64(0))
    for p in range(pieces.shape[0]):
        unit = units.ids[pieces[p, UNIT]]
        tile = unit // units.heads if units.heads else unit
        head = unit % units.heads if units.heads else ALL_HEADS
        first = pieces[p, FIRST]
        last = pieces[p, LAST]
        write_item(out, place[p], tiles, tile, head)
        segments = out.segments + 3 * tiles[tile, t.SEG_START]
        count = tiles[tile, t.SEG_COUNT]
        partial = last - first < tiles[tile, t.KV_TILES]
        begin = np.int64(0)
        end = np.int64(0)
        if partial:
            if first == 0:
                cursor = (segments, np.int64(0))
            begin, end, cursor = kv_range(out, units.tile_kv, cursor, first, last)
        elif count:
            begin = np.int64(out.buffer[segments])
            end = np.int64(out.buffer[segments + 3 * count - 2])
        item = out.items + 8 * place[p]
        out.buffer[item + KV_BEGIN] = begin
        out.buffer[item + KV_END] = end
        out.buffer[item + OUT_SLOT] = slot if partial else FINAL_OUTPUT
        if partial:
            slot += 1
    return slot


@inner
def add_merges(out: Out, pieces: Ints, place: Ints, region: int, merges: Any) -> int:
    """Append the cut tiles of a class to merges = (entries [n, 6] with the end of each one's slots, slots, n).

    Returns the new n; the tables are large enough.
    """
    entries, slots, count = merges
    used = entries[count - 1, 5] if count else 0
    for p in range(pieces.shape[0]):
        item = out.items + 8 * place[p]
        slot = out.buffer[item + OUT_SLOT]
        if slot == FINAL_OUTPUT:
            continue
        if pieces[p, FIRST] == 0:
            for field in range(5):
                entries[count, field] = out.buffer[item + field]
            count += 1
        slots[used, 0] = region
        slots[used, 1] = slot
        used += 1
        entries[count - 1, 5] = used
    return count
