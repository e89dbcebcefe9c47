"""The one compiled function that Python calls: the scheduling of a whole batch, every tile class."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attnloom.schedule import tiles as t
from attnloom.schedule.assemble import Out, Units, add_merges, aligned, grown_rows, places, write_items
from attnloom.schedule.balance import zeros
from attnloom.schedule.jit import Entry, inner
from attnloom.schedule.split import Costs, algorithm1, stream

Ints = npt.NDArray[np.int64]

INT32_MAX = 2**31 - 1
SECTIONS_PER_CLASS = 4  # segments, items, item_segments, work_indptr; after all classes: merge entries, indptr, slots


@inner
def unit_order(tiles: Ints, heads: int) -> Ints:
    """Units tile * heads + head; the tiles of one request and head next to each other, as they read the same keys."""
    count = tiles.shape[0]
    ids = np.empty(count * heads, np.int64)
    at = 0
    start = 0
    while start < count:
        stop = start
        while stop < count and tiles[stop, t.REQUEST] == tiles[start, t.REQUEST]:
            stop += 1
        for head in range(heads):
            for tile in range(start, stop):
                ids[at] = tile * heads + head
                at += 1
        start = stop
    return ids


@inner
def sections_of(tiles: Ints, unit_ids: Ints, heads: int, section_keys: int) -> Ints:
    """The section of each unit: neighbouring requests and heads whose keys are at most ``section_keys``, 0: one."""
    found = zeros(unit_ids.shape[0])
    if section_keys <= 0:
        return found
    section = 0
    held = np.int64(0)
    unit = 0
    while unit < found.shape[0]:
        request = tiles[unit_ids[unit] // heads, t.REQUEST]
        head = unit_ids[unit] % heads
        stop = unit
        keys = np.int64(0)
        while (
            stop < found.shape[0]
            and tiles[unit_ids[stop] // heads, t.REQUEST] == request
            and unit_ids[stop] % heads == head
        ):
            keys = max(keys, tiles[unit_ids[stop] // heads, t.KEYS])
            stop += 1
        if held > 0 and held + keys > section_keys:
            section += 1
            held = np.int64(0)
        held += keys
        for u in range(unit, stop):
            found[u] = section
        unit = stop
    return found


@inner
def cut(tiles: Ints, unit_ids: Ints, shape: t.Shape, costs: Costs, chunk: Any) -> Any:
    """(pieces, order); chunk = (kv heads, Algorithm 1's least chunk in keys or -1 for stream, keys of a section)."""
    num_heads, least_chunk, section_keys = chunk
    sizes = np.empty(unit_ids.shape[0], np.int64)
    for unit in range(unit_ids.shape[0]):
        sizes[unit] = tiles[unit_ids[unit] // (num_heads if costs.heads == 1 else 1), t.KV_TILES]
    if least_chunk < 0:
        return stream(sizes, costs, sections_of(tiles, unit_ids, num_heads if costs.heads == 1 else 1, section_keys))
    keys = 0
    for tile in range(tiles.shape[0]):
        keys += num_heads * tiles[tile, t.KEYS]
    length = max(least_chunk, (keys + shape.num_ctas - 1) // shape.num_ctas, 1)
    return algorithm1(sizes, (length + shape.tile_kv - 1) // shape.tile_kv, costs)


@inner
def class_sections(sections: Ints, at: int, num_segments: int, num_items: int, num_ctas: int) -> int:
    """Lay out one class's arrays behind its segments, which start at ``at``; returns the end."""
    lengths = (3 * num_segments, 8 * num_items, 2 * num_items, num_ctas + 1)
    for s in range(SECTIONS_PER_CLASS):
        sections[s, 0] = at
        sections[s, 1] = lengths[s]
        at = aligned(at + lengths[s])
    return at


@inner
def copy_in(buffer: Any, at: int, table: Any, columns: Any, rows: int) -> int:
    """Write columns [first, stop) of a table's first rows into the buffer; returns the end."""
    for i in range(rows):
        for j in range(columns[0], columns[1]):
            buffer[at] = table[i, j]
            at += 1
    return at


@inner
def merge_sections(buffer: Any, sections: Ints, at: int, merges: Any) -> Any:
    """Append the merge list, merges = (entries [., 6], slots [., 2], n); returns (buffer, its end)."""
    entries, slots, count = merges
    used = entries[count - 1, 5] if count else 0
    first = sections.shape[0] - 3
    end = at
    lengths = (5 * count, count + 1, 2 * used)
    for s in range(3):
        sections[first + s, 0] = end
        sections[first + s, 1] = lengths[s]
        end = aligned(end + lengths[s])
    if end > buffer.shape[0]:
        buffer = t.grown(buffer, at, end)
    copy_in(buffer, sections[first, 0], entries, (0, 5), count)
    buffer[sections[first + 1, 0]] = 0
    copy_in(buffer, sections[first + 1, 0] + 1, entries, (5, 6), count)
    copy_in(buffer, sections[first + 2, 0], slots, (0, 2), used)
    return buffer, end


@inner
def clear_gaps(buffer: Any, sections: Ints) -> None:
    """Zero what alignment leaves between the arrays, so that equal schedules have equal buffers."""
    for s in range(sections.shape[0]):
        end = sections[s, 0] + sections[s, 1]
        for at in range(end, aligned(end)):
            buffer[at] = 0


@inner
def fits_int32(vectors: Any, group_size: int) -> bool:
    """Whether packed rows and lengths can be written as int32."""
    largest = vectors[0][vectors[0].shape[0] - 1] * group_size
    for i in range(vectors[1].shape[0]):
        largest = max(largest, vectors[1][i])
    return bool(largest <= INT32_MAX)


@inner
def kv_starts(kv_len: Ints) -> Ints:
    """Where each request's keys start among all keys."""
    starts = np.empty(kv_len.shape[0], np.int64)
    total = 0
    for i in range(kv_len.shape[0]):
        starts[i] = total
        total += kv_len[i]
    return starts


def plan_batch(vectors: Any, bands: Any, shapes: Ints, costs: Any, scalars: Any) -> Any:
    """All arrays of a schedule in one int32 buffer, and their (start, length) in it: int64 [4 C + 3, 2].

    vectors = (qo_indptr, kv_len, q_pos, kv_pos), bands = (may, not_must), both int64.
    shapes int64 [C, 8]: tile_q, tile_kv, num_ctas, rows_above, rows_upto, workers, heads of a unit, section keys.
    costs float64 [C, 3]: overhead, merge_fixed, merge_slot in kv tiles.
    scalars = (group_size, kv heads, has_q_pos, has_kv_pos, Algorithm 1's least chunk or -1).
    An empty buffer: the batch has too many packed rows, or a request too many keys, for int32.
    """
    group_size, num_heads, has_q_pos, has_kv_pos, least_chunk = scalars
    batch = t.Batch(vectors[0], vectors[1], kv_starts(vectors[1]), group_size)
    mask = t.Mask(bands[0], bands[1], vectors[2], vectors[3], has_q_pos != 0, has_kv_pos != 0)
    sections = np.empty((SECTIONS_PER_CLASS * shapes.shape[0] + 3, 2), np.int64)
    buffer = np.empty(64 * batch.kv_len.shape[0] + 1024, np.int32)
    if not fits_int32(vectors, group_size):
        return buffer[:0], sections
    entries = np.empty((16, 6), np.int32)
    slots = np.empty((32, 2), np.int32)
    merged: Any = np.int64(0)
    end: Any = np.int64(0)
    for c in range(shapes.shape[0]):
        shape = t.Shape(shapes[c, 0], shapes[c, 1], shapes[c, 2], shapes[c, 3], shapes[c, 4])
        cost = Costs(costs[c, 0], costs[c, 1], costs[c, 2], shapes[c, 5], shapes[c, 6])
        tiles, buffer, num_segments = t.find_tiles(batch, mask, shape, buffer, end)
        unit_heads = num_heads if cost.heads == 1 else 1
        unit_ids = unit_order(tiles, unit_heads)
        pieces, order = cut(tiles, unit_ids, shape, cost, (num_heads, least_chunk, shapes[c, 7]))
        mine = sections[SECTIONS_PER_CLASS * c :]
        start = end
        end = class_sections(mine, start, num_segments, pieces.shape[0], shape.num_ctas)
        if end > buffer.shape[0]:
            buffer = t.grown(buffer, start + 3 * num_segments, end)
        out = Out(buffer, start, mine[1, 0], mine[2, 0], mine[3, 0])
        place = places(pieces, order, shape.num_ctas, out)
        new_slots = write_items(
            out, tiles, pieces, place, Units(unit_ids, unit_heads if cost.heads == 1 else 0, shape.tile_kv)
        )
        used = entries[merged - 1, 5] if merged else 0
        entries = grown_rows(entries, merged + new_slots)
        slots = grown_rows(slots, used + new_slots)
        merged = add_merges(out, pieces, place, c, (entries, slots, merged))
    buffer, end = merge_sections(buffer, sections, end, (entries, slots, merged))
    clear_gaps(buffer, sections)
    return buffer[:end], sections


plan_batch_compiled = Entry(plan_batch)
