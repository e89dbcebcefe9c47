"""The producers of the decode kernel: tiles of K and V into a ring of stages, by TMA or by cp.async."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier

from attnloom.kernels.gluon.decode_walk import start_walk, step
from attnloom.kernels.gluon.gather import gather_pieces, locate_rows, row_offsets, rows_layout
from attnloom.kernels.gluon.tma import copy_tile, locate_tile
from attnloom.kernels.gluon.walk import publish, tag_of

GATHER_WARPS = gl.constexpr(4)
# arrivals at a gathered stage's barrier: each thread's when its copies are there, one for the tag
GATHER_ARRIVALS = gl.constexpr(32 * 4 + 1)


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    """The ring's next stage, and the parity of its barriers' phase."""
    stage += 1
    wrapped = stage == STAGES
    return gl.where(wrapped, 0, stage), phase ^ wrapped.to(gl.int32)


@gluon.jit
def load_by_tma(bufs, bars, descs, where_work, num_pages, cfg: gl.constexpr):
    """One warp. What a tile needs to be found is asked for before the tile ahead of it waits for its stage."""
    k_rings, v_rings, tags = bufs
    full, empty = bars
    k_descs, v_descs = descs
    work, sequences, span, heads_per_item = where_work
    index, end = span
    BYTES: gl.constexpr = cfg.TILE_KV * (cfg.K0 + cfg.K1 + cfg.V0 + cfg.V1) * (k_rings[0].dtype.primitive_bitwidth // 8)
    at, piece, keys, ahead = start_walk(work, sequences, index, end, heads_per_item, cfg)
    where = locate_tile(at, keys[2], (sequences[3], keys[4], num_pages), cfg)
    st = 0
    phase = 1
    while index < end:
        this, this_at, this_where, is_full, limit, kv_head = index, at, where, piece[3], keys[2], keys[3]
        index, at, piece, keys, ahead = step(index, at, piece, keys, ahead, work, sequences, end, heads_per_item, cfg)
        where = locate_tile(at, keys[2], (sequences[3], keys[4], num_pages), cfg)
        mbarrier.wait(empty.index(st), phase)
        publish(tags.index(st), tag_of(this_at, limit, is_full, index != this, cfg.TILE_KV), 1)
        mbarrier.expect(full.index(st), BYTES)
        copy_tile(k_descs, this_at, this_where, kv_head, full.index(st), k_rings, st, cfg.K0, cfg.K1, cfg)
        copy_tile(v_descs, this_at, this_where, kv_head, full.index(st), v_rings, st, cfg.V0, cfg.V1, cfg)
        st, phase = next_stage(st, phase, cfg.STAGES)


@gluon.jit
def gather_tile(rings, st, at, limit, pages, kv_head, tensors, table, cfg: gl.constexpr):
    """Start the copies of a tile's keys and values into stage st; rows from `limit` on become zeros."""
    k_tensor, v_tensor = tensors
    k_rings, v_rings = rings
    head = kv_head.to(gl.int64)
    inside = at + gl.arange(0, cfg.TILE_KV, layout=pages.type.layout) < limit
    offsets = row_offsets(at, pages, table, k_tensor[1], k_tensor[2], cfg)
    base = k_tensor[0] + head * k_tensor[3]
    gather_pieces(k_rings, st, base, offsets, inside, cfg.DIM_QK, cfg.K0, cfg.K1, cfg)
    if not cfg.SAME_KV:
        offsets = row_offsets(at, pages, table, v_tensor[1], v_tensor[2], cfg)
    base = v_tensor[0] + head * v_tensor[3]
    gather_pieces(v_rings, st, base, offsets, inside, cfg.DIM_VO, cfg.V0, cfg.V1, cfg)


@gluon.jit
def load_by_gather(bufs, bars, tensors, where_work, pool, cfg: gl.constexpr):
    """A warpgroup. Pages of a tile are asked for before the tile ahead of it waits for its stage."""
    k_rings, v_rings, tags = bufs
    full, empty = bars
    work, sequences, span, heads_per_item = where_work
    page_size, num_pages = pool
    index, end = span
    rows: gl.constexpr = gl.SliceLayout(1, rows_layout(64, cfg.ALIGN // 2, GATHER_WARPS))
    at, piece, keys, ahead = start_walk(work, sequences, index, end, heads_per_item, cfg)
    table = (sequences[3], keys[4], page_size, num_pages)
    pages = locate_rows(at, keys[2], table, cfg.TILE_KV, rows, cfg)
    st = 0
    phase = 1
    while index < end:
        this, this_at, this_pages, is_full, this_keys = index, at, pages, piece[3], keys
        index, at, piece, keys, ahead = step(index, at, piece, keys, ahead, work, sequences, end, heads_per_item, cfg)
        table = (sequences[3], keys[4], page_size, num_pages)
        pages = locate_rows(at, keys[2], table, cfg.TILE_KV, rows, cfg)
        mbarrier.wait(empty.index(st), phase)
        tag = tag_of(this_at, this_keys[2], is_full, index != this, cfg.TILE_KV)
        publish(tags.index(st), tag, GATHER_WARPS)
        table = (sequences[3], this_keys[4], page_size, num_pages)
        gather_tile((k_rings, v_rings), st, this_at, this_keys[2], this_pages, this_keys[3], tensors, table, cfg)
        async_copy.mbarrier_arrive(full.index(st), increment_count=False)
        mbarrier.arrive(full.index(st))
        st, phase = next_stage(st, phase, cfg.STAGES)
