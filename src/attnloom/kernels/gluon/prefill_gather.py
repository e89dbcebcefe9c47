"""Producer and walker of the prefill kernel in one warpgroup, where rows of k and v are gathered one by one."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier

from attnloom.kernels.gluon.gather import gather_pieces, locate_rows, row_offsets, rows_layout
from attnloom.kernels.gluon.items import ITEMS, publish_item
from attnloom.kernels.gluon.prefill_producer import copy_queries
from attnloom.kernels.gluon.taking import open_list, take
from attnloom.kernels.gluon.walk import before, last_piece, last_tile, publish, tag_of
from attnloom.kernels.triton.items import read_item, read_request

WARPS = gl.constexpr(4)
# arrivals at a gathered stage's barrier: each thread's when its copies are there, one for what was stored
ARRIVALS = gl.constexpr(32 * 4 + 1)


@gluon.jit
def gather_stage(
    rings, st, base, offsets, inside, full, DIM: gl.constexpr, W0: gl.constexpr, W1: gl.constexpr, cfg: gl.constexpr
):
    """Start the copies of a tile's rows into stage st, both pieces; the barrier completes when they are there."""
    gather_pieces(rings, st, base, offsets, inside, DIM, W0, W1, cfg)
    async_copy.mbarrier_arrive(full.index(st), increment_count=False)
    mbarrier.arrive(full.index(st))


@gluon.jit
def gather_tile(c, at, tag, limit, found, kv_head, bufs, bars, tensors, table, cfg: gl.constexpr):
    """Keys and values of the CTA's c-th tile; found: the page of each row. Rows from `limit` on become zeros."""
    k_full, k_empty, v_full, v_empty = bars[2], bars[3], bars[4], bars[5]
    k_tensor, v_tensor = tensors
    head = kv_head.to(gl.int64)
    inside = at + gl.arange(0, cfg.TILE_KV, layout=found.type.layout) < limit
    offsets = row_offsets(at, found, table, k_tensor[1], k_tensor[2], cfg)
    st = c % cfg.K_STAGES
    mbarrier.wait(k_empty.index(st), ((c // cfg.K_STAGES) & 1) ^ 1)
    publish(bufs[4].index(st), tag, WARPS)
    base = k_tensor[0] + head * k_tensor[3]
    gather_stage(bufs[1], st, base, offsets, inside, k_full, cfg.DIM_QK, cfg.K0, cfg.K1, cfg)
    if not cfg.SAME_KV:
        offsets = row_offsets(at, found, table, v_tensor[1], v_tensor[2], cfg)
    st = c % cfg.STAGES
    mbarrier.wait(v_empty.index(st), ((c // cfg.STAGES) & 1) ^ 1)
    base = v_tensor[0] + head * v_tensor[3]
    gather_stage(bufs[2], st, base, offsets, inside, v_full, cfg.DIM_VO, cfg.V0, cfg.V1, cfg)


@gluon.jit
def gather_tiles(c, item, limit, table, bufs, bars, tensors, segments_ptr, cfg: gl.constexpr):
    """Every tile of an item, last to first; an empty item has one, of zeros. Returns the next c."""
    _request, _row_start, _row_count, kv_head, kv_begin, kv_end, _out_slot, first, last = item
    span = (kv_begin, kv_end)
    rows: gl.constexpr = gl.SliceLayout(1, rows_layout(64, cfg.ALIGN // 2, WARPS))
    segment, begin, end, full = last_piece(segments_ptr, first, last, span)
    at = last_tile(begin, end, cfg.TILE_KV)
    found = locate_rows(gl.maximum(at, 0), limit, table, cfg.TILE_KV, rows, cfg)
    going = True
    while going:
        following, piece = before(at, (segment, begin, end, full), segments_ptr, first, span, cfg.TILE_KV)
        going = following >= 0
        next_found = locate_rows(gl.maximum(following, 0), limit, table, cfg.TILE_KV, rows, cfg)
        tag = tag_of(at, limit, full, following < 0, cfg.TILE_KV)
        gather_tile(c, gl.maximum(at, 0), tag, limit, found, kv_head, bufs, bars, tensors, table, cfg)
        segment, begin, end, full = piece
        at = following
        found = next_found
        c += 1
    return c


@gluon.jit
def gather(bufs, bars, q_descs, tensors, work, sequences, pool, heads_per_item, counters, cfg: gl.constexpr):
    """Items of this CTA and of others that have not begun theirs, as `prefill_walker.walk` lists them."""
    q_full, q_empty, item_empty = bars[0], bars[1], bars[7]
    items_ptr, item_segments_ptr, segments_ptr, work_indptr_ptr = work
    page_size, num_pages = pool
    c = 0
    number = 0
    open_list(counters, work_indptr_ptr, heads_per_item)
    owner, index = take(counters, work_indptr_ptr, gl.program_id(0), heads_per_item, WARPS)
    going = True
    while going:
        going = owner >= 0
        place = number % ITEMS
        slot = number % cfg.Q_STAGES
        mbarrier.wait(item_empty.index(place), ((number // ITEMS) & 1) ^ 1)
        mbarrier.arrive(item_empty.index(place))  # as the producer of its own would
        mbarrier.wait(q_empty.index(slot), ((number // cfg.Q_STAGES) & 1) ^ 1)
        if going:
            item = read_item(items_ptr, item_segments_ptr, index, True, owner, heads_per_item)
            request, row_start, row_count, kv_head, _kv_begin, kv_end, out_slot, _first, _last = item
            q_begin, qo_len, kv_len, page_start = read_request(sequences, request)
            limit = gl.minimum(kv_len, kv_end)
            fields = (row_start, row_count, kv_head, out_slot, q_begin, qo_len, kv_len, request)
            publish_item(bufs[3], place, 1, limit, fields, WARPS)
            if cfg.Q_TMA:
                copy_queries(q_descs, q_begin, row_start, kv_head, slot, bufs[0], q_full, cfg)
            else:
                mbarrier.arrive(q_full.index(slot))
            table = (sequences[3], page_start, page_size, num_pages)
            c = gather_tiles(c, item, limit, table, bufs, bars, tensors, segments_ptr, cfg)
            owner, index = take(counters, work_indptr_ptr, owner, heads_per_item, WARPS)
        else:
            publish_item(bufs[3], place, 0, 0, (0, 0, 0, 0, 0, 0, 0, 0), WARPS)
            mbarrier.arrive(q_full.index(slot))
        number += 1
