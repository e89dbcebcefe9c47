"""The walker of the prefill kernel: one warp that reads the Plan ahead of the copies.

It lists the tiles of every item in a ring, where each lies in memory included, so that no copy waits for the Plan or
for a page table.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attnloom.kernels.gluon.items import ITEMS, publish_item
from attnloom.kernels.gluon.taking import open_list, take
from attnloom.kernels.gluon.tma import locate_tile
from attnloom.kernels.gluon.walk import FIRST, NONE, before, last_piece, last_tile, publish, tag_of
from attnloom.kernels.triton.items import read_item, read_request

TILES = gl.constexpr(8)  # of the ring


@gluon.jit
def list_tile(n, tag, kv_head, where, ring):
    """Put a tile into the n-th place of the ring."""
    tags, heads, places, full, empty = ring
    slot = n % TILES
    mbarrier.wait(empty.index(slot), ((n // TILES) & 1) ^ 1)
    publish(tags.index(slot), tag, 1)
    publish(heads.index(slot), kv_head, 1)
    places.index(slot).store(where)
    mbarrier.arrive(full.index(slot))


@gluon.jit
def list_tiles(n, item, limit, page_start, ring, pages, cfg: gl.constexpr):
    """List every tile of an item, last to first; an empty item has one, of zeros. Returns the next n."""
    _request, _row_start, _row_count, kv_head, kv_begin, kv_end, _out_slot, first, last = item
    segments_ptr, pages_ptr, num_pages = pages
    span = (kv_begin, kv_end)
    table = (pages_ptr, page_start, num_pages)
    segment, begin, end, full = last_piece(segments_ptr, first, last, span)
    at = last_tile(begin, end, cfg.TILE_KV)
    where = locate_tile(gl.maximum(at, 0), limit, table, cfg)
    mark = FIRST + 0 * n
    going = True
    while going:
        following, piece = before(at, (segment, begin, end, full), segments_ptr, first, span, cfg.TILE_KV)
        going = following >= 0
        next_where = locate_tile(gl.maximum(following, 0), limit, table, cfg)
        list_tile(n, tag_of(at, limit, full, following < 0, cfg.TILE_KV) | mark, kv_head, where, ring)
        segment, begin, end, full = piece
        at = following
        where = next_where
        mark = 0
        n += 1
    return n


@gluon.jit
def walk(items, item_empty, ring, work, sequences, num_pages, heads_per_item, counters, cfg: gl.constexpr):
    """List the items of this CTA, then those that others have not begun, then that none follows."""
    items_ptr, item_segments_ptr, segments_ptr, work_indptr_ptr = work
    pages = (segments_ptr, sequences[3], num_pages)
    n = 0
    number = 0
    open_list(counters, work_indptr_ptr, heads_per_item)
    owner, index = take(counters, work_indptr_ptr, gl.program_id(0), heads_per_item, 1)
    while owner >= 0:
        item = read_item(items_ptr, item_segments_ptr, index, True, owner, heads_per_item)
        request, row_start, row_count, kv_head, _kv_begin, kv_end, out_slot, _first, _last = item
        q_begin, qo_len, kv_len, page_start = read_request(sequences, request)
        limit = gl.minimum(kv_len, kv_end)
        slot = number % ITEMS
        mbarrier.wait(item_empty.index(slot), ((number // ITEMS) & 1) ^ 1)
        fields = (row_start, row_count, kv_head, out_slot, q_begin, qo_len, kv_len, request)
        publish_item(items, slot, 1, limit, fields, 1)
        n = list_tiles(n, item, limit, page_start, ring, pages, cfg)
        owner, index = take(counters, work_indptr_ptr, owner, heads_per_item, 1)
        number += 1
    slot = number % ITEMS
    mbarrier.wait(item_empty.index(slot), ((number // ITEMS) & 1) ^ 1)
    publish_item(items, slot, 0, 0, (0, 0, 0, 0, 0, 0, 0, 0), 1)
    list_tile(n, FIRST + NONE + 0 * n, 0, 0 * gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0])), ring)
