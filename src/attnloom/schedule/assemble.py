"""Pieces of kv to the Plan's arrays: work items, work_indptr and the merge list (compiled)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attnloom.schedule import tiles as t
from attnloom.schedule.jit import inner
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


@inner
def places(pieces: Ints, order: Ints, workers: int, num_ctas: int) -> Any:
    """(work_indptr, place of each piece among the items): by CTA, within one in ``order``; idle CTAs get none."""
    indptr = np.zeros(num_ctas + 1, np.int32)
    for p in range(pieces.shape[0]):
        indptr[pieces[p, CTA] + 1] += 1
    for c in range(num_ctas):
        indptr[c + 1] += indptr[c]
    cursor = np.empty(workers, np.int64)
    for c in range(workers):
        cursor[c] = indptr[c]
    place = np.empty(pieces.shape[0], np.int64)
    for i in range(order.shape[0]):
        cta = pieces[order[i], CTA]
        place[order[i]] = cursor[cta]
        cursor[cta] += 1
    return indptr, place


@inner
def seek(segments: Any, tile_kv: int, at: Any, kv_tile: int) -> Any:
    """From at = (segment, kv tiles before it) on to the segment that holds the kv_tile-th non-empty tile."""
    segment, before = at
    while True:
        held = (segments[segment, 1] - segments[segment, 0] + tile_kv - 1) // tile_kv
        if kv_tile < before + held:
            return segment, before
        before += held
        segment += 1


@inner
def write_item(items: Any, at: int, tile: Any, head: int, slot: int) -> None:
    """Everything of an item but its kv range."""
    items[at, REQUEST] = tile[t.REQUEST]
    items[at, ROW_START] = tile[t.ROW_START]
    items[at, ROW_COUNT] = tile[t.ROW_COUNT]
    items[at, ROW_MAP] = NO_ROW_MAP
    items[at, KV_HEAD] = head
    items[at, OUT_SLOT] = slot


@inner
def kv_range(segments: Any, tile_kv: int, at: Any, piece: Any) -> Any:
    """(kv_begin, kv_end, cursor) of a piece that holds some kv tile; the cursor serves the unit's next piece."""
    segment, before = seek(segments, tile_kv, at, piece[FIRST])
    begin = segments[segment, 0] + (piece[FIRST] - before) * tile_kv
    segment, before = seek(segments, tile_kv, (segment, before), piece[LAST] - 1)
    end = min(segments[segment, 0] + (piece[LAST] - before) * tile_kv, np.int64(segments[segment, 1]))
    return begin, end, (segment, before)


@inner
def assemble(found: Any, cut: Any, unit_ids: Ints, heads: int, shape: Any) -> Any:
    """The arrays of one class: items, item_segments, work_indptr, then merge entries, indptr and slots.

    found = (tiles, segments); cut = (pieces, order, workers). unit u of the pieces is the q tile and head
    unit_ids[u] = tile * heads + head; heads = 0: units are tiles and an item stands for every head.
    """
    tiles, segments = found
    pieces, order, workers = cut
    indptr, place = places(pieces, order, workers, shape.num_ctas)
    items = np.empty((pieces.shape[0], 8), np.int32)
    item_segments = np.empty((pieces.shape[0], 2), np.int32)
    entries = np.empty((pieces.shape[0], 5), np.int32)
    merge_indptr = np.zeros(pieces.shape[0] + 1, np.int32)
    slots = np.empty(pieces.shape[0], np.int32)
    num_merges = 0
    slot = 0
    cursor = (np.int64(0), np.int64(0))
    for p in range(pieces.shape[0]):
        piece = pieces[p]
        unit = unit_ids[piece[UNIT]]
        tile = tiles[unit // max(heads, 1)]
        head = unit % heads if heads else ALL_HEADS
        at = place[p]
        partial = piece[LAST] - piece[FIRST] < tile[t.KV_TILES]
        write_item(items, at, tile, head, slot if partial else FINAL_OUTPUT)
        item_segments[at, 0] = tile[t.SEG_START]
        item_segments[at, 1] = tile[t.SEG_COUNT]
        if piece[FIRST] == 0:
            cursor = (tile[t.SEG_START], np.int64(0))
        begin = 0
        end = 0
        if tile[t.SEG_COUNT] > 0:
            begin, end, cursor = kv_range(segments, shape.tile_kv, cursor, piece)
        items[at, KV_BEGIN] = begin
        items[at, KV_END] = end
        if partial:
            if piece[FIRST] == 0:
                for field in range(5):
                    entries[num_merges, field] = items[at, field]
                num_merges += 1
            slots[slot] = slot
            slot += 1
            merge_indptr[num_merges] = slot
    return items, item_segments, indptr, entries[:num_merges], merge_indptr[: num_merges + 1], slots[:slot]
