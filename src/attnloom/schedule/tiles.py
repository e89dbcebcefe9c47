"""q tiles and the kv tiles that each of them sees (compiled).

A band is six integers (kv_lo, kv_hi, q_lo, q_hi, d_lo, d_hi), inclusive, d = kv_pos - q_pos: see
`variant.bounds`. Over the q positions a..b of a tile a band covers one interval of keys, so the kv tiles
of a mask come from interval ends alone, whatever kv_len is. All arithmetic is int64: infinities are
2**40 and kv_len reaches 2**31 - 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attnloom.schedule.jit import inlined, inner

Ints = npt.NDArray[np.int64]

# columns of the table of q tiles
REQUEST, ROW_START, ROW_COUNT, SEG_START, SEG_COUNT, KV_TILES, KEYS = range(7)


class Batch(NamedTuple):
    """Lengths of the requests; group_size query heads share one of num_kv_heads kv heads."""

    qo_indptr: Ints
    kv_len: Ints
    kv_start: Ints  # exclusive cumsum of kv_len, only read where kv_pos is given
    group_size: int


class Mask(NamedTuple):
    """Bands (one table for all requests or one each) and explicit positions (read only where has_* is set)."""

    may: Ints
    not_must: Ints
    q_pos: Ints
    kv_pos: Ints
    has_q_pos: bool
    has_kv_pos: bool


class Shape(NamedTuple):
    """One tile class; it takes the requests with rows_above < packed rows <= rows_upto."""

    tile_q: int
    tile_kv: int
    num_ctas: int
    rows_above: int
    rows_upto: int


@inlined
def add_run(runs: Ints, count: int, lo: int, hi: int) -> int:
    """Insert [lo, hi) into a list ordered by its first column; returns the new count."""
    at = count
    while at > 0 and runs[at - 1, 0] > lo:
        runs[at, 0] = runs[at - 1, 0]
        runs[at, 1] = runs[at - 1, 1]
        at -= 1
    runs[at, 0] = lo
    runs[at, 1] = hi
    return count + 1


@inlined
def unite(runs: Ints, count: int) -> int:
    """Merge the ordered runs that overlap or touch; returns the new count."""
    if count < 2:
        return count
    kept = 0
    for i in range(1, count):
        if runs[i, 0] <= runs[kept, 1]:
            runs[kept, 1] = max(runs[kept, 1], runs[i, 1])
        else:
            kept += 1
            runs[kept, 0] = runs[i, 0]
            runs[kept, 1] = runs[i, 1]
    return kept + 1


@inlined
def divided(number: Any, by: Any) -> Any:
    """The quotient of numbers >= 0, without what signs would cost."""
    return np.int64(np.float64(number) / np.float64(by))


@inlined
def covered(bands: Any, table: int, rows: Any, limits: Any, runs: Ints) -> int:
    """kv tiles that a band of a table touches for q positions rows = (first, last); limits = (tile_kv, kv_len).

    Written as ordered runs [lo, hi); returns how many.
    """
    tile_kv, kv_len = limits
    count: Any = np.int64(0)  # numba would compile what takes a literal 0 twice
    for j in range(bands.shape[1]):
        first = max(rows[0], bands[table, j, 2])
        last = min(rows[1], bands[table, j, 3])
        if first > last or bands[table, j, 4] > bands[table, j, 5]:
            continue
        lo = max(0, bands[table, j, 0], first + bands[table, j, 4])
        hi = min(kv_len - 1, bands[table, j, 1], last + bands[table, j, 5])
        if lo <= hi:
            count = add_run(runs, count, divided(lo, tile_kv), divided(hi, tile_kv) + 1)
    return unite(runs, count)


@inner
def touches(bands: Any, table: int, rows: Any, lo: int, hi: int) -> bool:
    """Whether kv positions lo..hi may meet a band of a table for q positions rows = (first, last)."""
    for j in range(bands.shape[1]):
        first = max(rows[0], bands[table, j, 2])
        last = min(rows[1], bands[table, j, 3])
        low = max(lo, bands[table, j, 0])
        high = min(hi, bands[table, j, 1])
        if first > last or low > high or bands[table, j, 4] > bands[table, j, 5]:
            continue
        if low - last <= bands[table, j, 5] and high - first >= bands[table, j, 4]:
            return True
    return False


@inner
def grown(buffer: Any, used: int, size: int) -> Any:
    """A larger buffer than ``size`` with the first ``used`` numbers of this one, which is shorter."""
    larger = np.empty(2 * buffer.shape[0] + size, np.int32)
    for i in range(used):
        larger[i] = buffer[i]
    return larger


@inlined
def add_segments(buffer: Any, at: int, pieces: Ints, count: int, limits: Any) -> Any:
    """Write pieces of kv tiles (lo, hi, full) as segments; limits = (tile_kv, kv_len); returns (kv tiles, keys)."""
    tile_kv, kv_len = limits
    kv_tiles = 0
    keys = 0
    for j in range(count):
        begin = pieces[j, 0] * tile_kv
        end = min(pieces[j, 1] * tile_kv, kv_len)
        buffer[at + 3 * j] = begin
        buffer[at + 3 * j + 1] = end
        buffer[at + 3 * j + 2] = pieces[j, 2]
        kv_tiles += pieces[j, 1] - pieces[j, 0]
        keys += end - begin
    return kv_tiles, keys


@inlined
def cut_runs(seen: Ints, num_seen: int, masked: Ints, num_masked: int, pieces: Ints) -> int:
    """Cut the seen runs where masked ones begin and end: pieces (lo, hi, full); returns their count."""
    count = 0
    j = 0
    for i in range(num_seen):
        lo = seen[i, 0]
        while lo < seen[i, 1]:
            while j < num_masked and masked[j, 1] <= lo:
                j += 1
            inside = j < num_masked and masked[j, 0] <= lo
            hi = seen[i, 1]
            if inside:
                hi = min(hi, masked[j, 1])
            elif j < num_masked:
                hi = min(hi, masked[j, 0])
            pieces[count, 0] = lo
            pieces[count, 1] = hi
            pieces[count, 2] = 0 if inside else 1
            count += 1
            lo = hi
    return count


@inner
def count_tiles(batch: Batch, shape: Shape) -> int:
    """q tiles of the class."""
    total = 0
    for i in range(batch.kv_len.shape[0]):
        rows = (batch.qo_indptr[i + 1] - batch.qo_indptr[i]) * batch.group_size
        if shape.rows_above < rows <= shape.rows_upto:
            total += divided(rows + shape.tile_q - 1, shape.tile_q)
    return total


@inlined
def q_range(batch: Batch, mask: Mask, request: int, row: int, rows: int) -> Any:
    """Least and greatest q position of packed rows row..row+rows-1."""
    first = divided(row, batch.group_size)
    last = divided(row + rows - 1, batch.group_size)
    start = batch.qo_indptr[request]
    if not mask.has_q_pos:
        shift = batch.kv_len[request] - (batch.qo_indptr[request + 1] - start)
        return first + shift, last + shift
    low = mask.q_pos[start + first]
    high = low
    for i in range(start + first + 1, start + last + 1):
        low = min(low, mask.q_pos[i])
        high = max(high, mask.q_pos[i])
    return low, high


@inner
def tile_positions(mask: Mask, start: int, kv_len: int, tile_kv: int) -> Ints:
    """Least and greatest kv position of each kv tile of a request, where kv_pos is given."""
    ranges = np.empty(((kv_len + tile_kv - 1) // tile_kv, 2), np.int64)
    for t in range(ranges.shape[0]):
        low = mask.kv_pos[start + t * tile_kv]
        high = low
        for i in range(start + t * tile_kv + 1, start + min((t + 1) * tile_kv, kv_len)):
            low = min(low, mask.kv_pos[i])
            high = max(high, mask.kv_pos[i])
        ranges[t, 0] = low
        ranges[t, 1] = high
    return ranges


@inner
def walk_tiles(mask: Mask, tables: Any, rows: Any, ranges: Ints, pieces: Ints) -> int:
    """As `cut_runs`, kv tile by kv tile, where kv positions are explicit; tables: of may and of not_must."""
    count = 0
    for t in range(ranges.shape[0]):
        if not touches(mask.may, tables[0], rows, ranges[t, 0], ranges[t, 1]):
            continue
        full = 0 if touches(mask.not_must, tables[1], rows, ranges[t, 0], ranges[t, 1]) else 1
        if count and pieces[count - 1, 1] == t and pieces[count - 1, 2] == full:
            pieces[count - 1, 1] = t + 1
        else:
            pieces[count, 0] = t
            pieces[count, 1] = t + 1
            pieces[count, 2] = full
            count += 1
    return count


@inner
def longest_walk(batch: Batch, mask: Mask, shape: Shape) -> int:
    """Most pieces that one q tile can have."""
    bound = mask.may.shape[1] + 2 * mask.not_must.shape[1]
    if mask.has_kv_pos:
        for i in range(batch.kv_len.shape[0]):
            bound = max(bound, (batch.kv_len[i] + shape.tile_kv - 1) // shape.tile_kv)
    return bound


@inner
def find_tiles(batch: Batch, mask: Mask, shape: Shape, buffer: Any, at: int) -> Any:
    """The q tiles of a class, and the segments they see written into the buffer from ``at`` on.

    Returns (tiles int64 [n, 7], buffer or a larger one, number of segments).
    """
    tiles = np.empty((count_tiles(batch, shape), 7), np.int64)
    most = longest_walk(batch, mask, shape) if tiles.shape[0] else 0
    seen = np.empty((mask.may.shape[1], 2), np.int64)
    masked = np.empty((mask.not_must.shape[1], 2), np.int64)
    pieces = np.empty((most, 3), np.int64)
    ranges = np.empty((0, 2), np.int64)
    t = 0
    used: Any = np.int64(0)
    for i in range(batch.kv_len.shape[0]):
        rows = (batch.qo_indptr[i + 1] - batch.qo_indptr[i]) * batch.group_size
        if not shape.rows_above < rows <= shape.rows_upto:
            continue
        kv_len = batch.kv_len[i]
        tables = (i if mask.may.shape[0] > 1 else 0, i if mask.not_must.shape[0] > 1 else 0)
        limits = (shape.tile_kv, kv_len)
        if mask.has_kv_pos:
            ranges = tile_positions(mask, batch.kv_start[i], kv_len, shape.tile_kv)
        for row in range(0, rows, shape.tile_q):
            row_count = min(shape.tile_q, rows - row)
            span = q_range(batch, mask, i, row, row_count)
            if mask.has_kv_pos:
                count = walk_tiles(mask, tables, span, ranges, pieces)
            else:
                num_seen = covered(mask.may, tables[0], span, limits, seen)
                num_masked = covered(mask.not_must, tables[1], span, limits, masked) if num_seen else 0
                count = cut_runs(seen, num_seen, masked, num_masked, pieces)
            end = at + 3 * used
            if end + 3 * count > buffer.shape[0]:
                buffer = grown(buffer, end, end + 3 * count)
            kv_tiles, keys = add_segments(buffer, end, pieces, count, limits)
            tiles[t, REQUEST] = i
            tiles[t, ROW_START] = row
            tiles[t, ROW_COUNT] = row_count
            tiles[t, SEG_START] = used
            tiles[t, SEG_COUNT] = count
            tiles[t, KV_TILES] = kv_tiles
            tiles[t, KEYS] = keys
            used += count
            t += 1
    return tiles, buffer, used
