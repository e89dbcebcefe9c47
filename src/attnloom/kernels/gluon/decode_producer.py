"""The producers of the decode kernel: tiles of K and V into a ring of stages, by TMA or by cp.async."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attnloom.kernels.gluon.decode_walk import start_walk, step
from attnloom.kernels.gluon.tma import copy_tile, locate_tile
from attnloom.kernels.gluon.walk import publish, tag_of


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
