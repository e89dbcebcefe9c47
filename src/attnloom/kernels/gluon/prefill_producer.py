"""The producer of the prefill kernel: one warp that reads the Plan and starts every copy."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from attnloom.kernels.gluon.items import publish_item
from attnloom.kernels.gluon.tma import copy_tile, locate_tile
from attnloom.kernels.gluon.walk import before, last_piece, last_tile, publish, tag_of
from attnloom.kernels.triton.items import read_item, read_request

ROWS = gl.constexpr(64)
_BYTES = gl.constexpr(2)


@gluon.jit
def copy_queries(descs, q_begin, row_start, kv_head, slot, q_smem, q_full, cfg: gl.constexpr):
    """Start the copies of an item's packed rows, as boxes of ROWS / GROUP tokens and a group of heads."""
    mbarrier.expect(q_full.index(slot), 2 * ROWS * (cfg.K0 + cfg.K1) * _BYTES)
    token = q_begin + row_start // cfg.GROUP
    head = kv_head * cfg.GROUP
    for half in gl.static_range(2):
        at = token + half * (ROWS // cfg.GROUP)
        tma.async_copy_global_to_shared(descs[0], [at, head, 0], q_full.index(slot), q_smem[0].index(slot * 2 + half))
        if cfg.K1 > 0:
            tma.async_copy_global_to_shared(
                descs[1], [at, head, cfg.K0], q_full.index(slot), q_smem[1].index(slot * 2 + half)
            )


@gluon.jit
def produce_tile(c, at, where, tag, kv_head, bufs, bars, k_descs, v_descs, cfg: gl.constexpr):
    """Start the copies of the CTA's c-th tile."""
    _q_full, _q_empty, k_full, k_empty, v_full, v_empty, _cleaning = bars
    st = c % cfg.STAGES
    phase = ((c // cfg.STAGES) & 1) ^ 1
    mbarrier.wait(k_empty.index(st), phase)
    publish(bufs[4].index(st), tag, 1)
    mbarrier.expect(k_full.index(st), cfg.TILE_KV * (cfg.K0 + cfg.K1) * _BYTES)
    copy_tile(k_descs, at, where, kv_head, k_full.index(st), bufs[1], st, cfg.K0, cfg.K1, cfg)
    mbarrier.wait(v_empty.index(st), phase)
    mbarrier.expect(v_full.index(st), cfg.TILE_KV * (cfg.V0 + cfg.V1) * _BYTES)
    copy_tile(v_descs, at, where, kv_head, v_full.index(st), bufs[2], st, cfg.V0, cfg.V1, cfg)


@gluon.jit
def produce_tiles(c, item, limit, page_start, bufs, bars, k_descs, v_descs, pages, cfg: gl.constexpr):
    """Every tile of an item, last to first; an empty item has one, of zeros. Returns the next c."""
    _request, _row_start, _row_count, kv_head, kv_begin, kv_end, _out_slot, first, last = item
    segments_ptr, pages_ptr, num_pages = pages
    span = (kv_begin, kv_end)
    table = (pages_ptr, page_start, num_pages)
    segment, begin, end, full = last_piece(segments_ptr, first, last, span)
    at = last_tile(begin, end, cfg.TILE_KV)
    where = locate_tile(gl.maximum(at, 0), limit, table, cfg)
    going = True
    while going:
        following, piece = before(at, (segment, begin, end, full), segments_ptr, first, span, cfg.TILE_KV)
        going = following >= 0
        next_where = locate_tile(gl.maximum(following, 0), limit, table, cfg)
        tag = tag_of(at, limit, full, following < 0, cfg.TILE_KV)
        produce_tile(c, gl.maximum(at, 0), where, tag, kv_head, bufs, bars, k_descs, v_descs, cfg)
        segment, begin, end, full = piece
        at = following
        where = next_where
        c += 1
    return c


@gluon.jit
def produce(bufs, bars, q_descs, k_descs, v_descs, work, sequences, num_pages, heads_per_item, cfg: gl.constexpr):
    """Every item of this CTA, then the word that none follows."""
    q_full, q_empty, _k_full, _k_empty, _v_full, _v_empty, _cleaning = bars
    items_ptr, item_segments_ptr, segments_ptr, work_indptr_ptr = work
    cta = gl.program_id(0)
    group = cta // heads_per_item
    begin = gl.load(work_indptr_ptr + group)
    end = gl.load(work_indptr_ptr + group + 1)
    pages = (segments_ptr, sequences[3], num_pages)
    c = 0
    number = 0
    next_item = read_item(items_ptr, item_segments_ptr, begin, begin < end, cta, heads_per_item)
    next_request = read_request(sequences, next_item[0])
    for index in range(begin, end):
        item, of_request = next_item, next_request
        next_item = read_item(items_ptr, item_segments_ptr, index + 1, index + 1 < end, cta, heads_per_item)
        request, row_start, row_count, kv_head, _kv_begin, kv_end, out_slot, _first, _last = item
        q_begin, qo_len, kv_len, page_start = of_request
        slot = number % cfg.Q_STAGES
        limit = gl.minimum(kv_len, kv_end)
        mbarrier.wait(q_empty.index(slot), ((number // cfg.Q_STAGES) & 1) ^ 1)
        fields = (row_start, row_count, kv_head, out_slot, q_begin, qo_len, kv_len, request)
        publish_item(bufs[3], slot, 1, limit, fields, 1)
        if cfg.Q_TMA:
            copy_queries(q_descs, q_begin, row_start, kv_head, slot, bufs[0], q_full, cfg)
        else:
            mbarrier.arrive(q_full.index(slot))
        c = produce_tiles(c, item, limit, page_start, bufs, bars, k_descs, v_descs, pages, cfg)
        next_request = read_request(sequences, next_item[0])
        number += 1
    slot = number % cfg.Q_STAGES
    mbarrier.wait(q_empty.index(slot), ((number // cfg.Q_STAGES) & 1) ^ 1)
    publish_item(bufs[3], slot, 0, 0, (0, 0, 0, 0, 0, 0, 0, 0), 1)
    mbarrier.arrive(q_full.index(slot))
