"""The decode producer's way through the tiles of a CTA's items, without a break from one item to the next."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnloom.kernels.gluon.walk import before, last_piece, last_tile
from attnloom.kernels.triton.items import read_item, read_request

# a tile that no key belongs to: an item always has one tile, so that its rows are written
NOWHERE = gl.constexpr(1 << 30)


@gluon.jit
def start_item(item, of_request, segments_ptr, cfg: gl.constexpr):
    """(first key of the item's first tile or NOWHERE, its piece, where its keys lie) of an item.

    The last is (first segment, kv_begin, kv_end, kv_head, start in the page table).
    """
    _, _, _, kv_head, kv_begin, kv_end, _, first, last = item
    segment, begin, end, full = last_piece(segments_ptr, first, last, (kv_begin, kv_end))
    at = last_tile(begin, end, cfg.TILE_KV)
    at = gl.where(at < 0, NOWHERE, at)
    return at, (segment, begin, end, full), (first, kv_begin, kv_end, kv_head, of_request[3])


@gluon.jit
def start_walk(work, sequences, begin, end, heads_per_item, cfg: gl.constexpr):
    """(tile, piece, keys of the item, the next item with its request) at the first tile of items begin .. end."""
    items_ptr, item_segments_ptr, segments_ptr, _ = work
    cta = gl.program_id(0)
    item = read_item(items_ptr, item_segments_ptr, begin, begin < end, cta, heads_per_item)
    ahead = read_item(items_ptr, item_segments_ptr, begin + 1, begin + 1 < end, cta, heads_per_item)
    at, piece, keys = start_item(item, read_request(sequences, item[0]), segments_ptr, cfg)
    return at, piece, keys, (ahead, read_request(sequences, ahead[0]))


@gluon.jit
def step(index, at, piece, keys, ahead, work, sequences, end, heads_per_item, cfg: gl.constexpr):
    """The walk one tile on: (index of its item, tile, piece, keys of the item, the next item with its request)."""
    items_ptr, item_segments_ptr, segments_ptr, _ = work
    first, kv_begin, kv_end, _, _ = keys
    following, piece = before(at, piece, segments_ptr, first, (kv_begin, kv_end), cfg.TILE_KV)
    if (following < 0) | (at == NOWHERE):
        item, of_request = ahead
        index += 1
        following, piece, keys = start_item(item, of_request, segments_ptr, cfg)
        cta = gl.program_id(0)
        item = read_item(items_ptr, item_segments_ptr, index + 1, index + 1 < end, cta, heads_per_item)
        ahead = (item, read_request(sequences, item[0]))
    return index, following, piece, keys, ahead
