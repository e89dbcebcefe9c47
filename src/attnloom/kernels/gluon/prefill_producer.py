"""The producer of the prefill kernel: one warp that starts the copies of q, k and v, tile after tile of the ring.

Keys go one tile ahead of values: they are needed earlier, and their stage is free earlier.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from attnloom.kernels.gluon.items import ITEMS, item_fields
from attnloom.kernels.gluon.prefill_walker import TILES
from attnloom.kernels.gluon.tma import copy_tile
from attnloom.kernels.gluon.walk import FIRST, FLAGS, NONE, publish, published

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
def produce_queries(number, bufs, bars, descs, cfg: gl.constexpr):
    """The number-th item: its rows of q, or, where consumers copy them, the word that it is there."""
    q_full, q_empty, item_empty = bars[0], bars[1], bars[7]
    item, _limit = item_fields(bufs[3], number % ITEMS, 1)
    row_start, _row_count, kv_head, _out_slot, q_begin, _qo_len, _kv_len, _request = item
    mbarrier.arrive(item_empty.index(number % ITEMS))
    slot = number % cfg.Q_STAGES
    mbarrier.wait(q_empty.index(slot), ((number // cfg.Q_STAGES) & 1) ^ 1)
    if cfg.Q_TMA:
        copy_queries(descs, q_begin, row_start, kv_head, slot, bufs[0], q_full, cfg)
    else:
        mbarrier.arrive(q_full.index(slot))


@gluon.jit
def produce_keys(c, tag, kv_head, where, bufs, bars, descs, cfg: gl.constexpr):
    """Start the copies of the keys of the CTA's c-th tile."""
    k_full, k_empty = bars[2], bars[3]
    st = c % cfg.K_STAGES
    mbarrier.wait(k_empty.index(st), ((c // cfg.K_STAGES) & 1) ^ 1)
    publish(bufs[4].index(st), tag, 1)
    mbarrier.expect(k_full.index(st), cfg.TILE_KV * (cfg.K0 + cfg.K1) * _BYTES)
    copy_tile(descs, tag & ~FLAGS, where, kv_head, k_full.index(st), bufs[1], st, cfg.K0, cfg.K1, cfg)


@gluon.jit
def produce_values(c, tag, kv_head, where, bufs, bars, descs, cfg: gl.constexpr):
    """Start the copies of the values of the CTA's c-th tile."""
    v_full, v_empty = bars[4], bars[5]
    st = c % cfg.STAGES
    mbarrier.wait(v_empty.index(st), ((c // cfg.STAGES) & 1) ^ 1)
    mbarrier.expect(v_full.index(st), cfg.TILE_KV * (cfg.V0 + cfg.V1) * _BYTES)
    copy_tile(descs, tag & ~FLAGS, where, kv_head, v_full.index(st), bufs[2], st, cfg.V0, cfg.V1, cfg)


@gluon.jit
def produce(bufs, bars, q_descs, k_descs, v_descs, ring, cfg: gl.constexpr):
    """Every tile that the walker lists."""
    tags, heads, places, full, empty = ring
    lanes: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    c = 0
    number = 0
    past_tag = 0
    past_head = 0
    past_where = 0 * gl.arange(0, 32, layout=lanes)
    going = True
    while going:
        slot = c % TILES
        mbarrier.wait(full.index(slot), (c // TILES) & 1)
        tag = published(tags.index(slot), 1)
        kv_head = published(heads.index(slot), 1)
        where = places.index(slot).load(lanes)
        mbarrier.arrive(empty.index(slot))
        going = (tag & NONE) == 0
        # with one place for q, the next item's rows wait for the end of this one, and that for its last values
        early = (tag & FIRST) != 0 if cfg.Q_STAGES == 1 else False
        if early & (c > 0):
            produce_values(c - 1, past_tag, past_head, past_where, bufs, bars, v_descs, cfg)
        if ((tag & FIRST) != 0) & going:
            produce_queries(number, bufs, bars, q_descs, cfg)
            number += 1
        if going:
            produce_keys(c, tag, kv_head, where, bufs, bars, k_descs, cfg)
        if (c > 0) & (not early):
            produce_values(c - 1, past_tag, past_head, past_where, bufs, bars, v_descs, cfg)
        past_tag = tag
        past_head = kv_head
        past_where = where
        c += 1
    last = number % cfg.Q_STAGES
    mbarrier.wait(bars[1].index(last), ((number // cfg.Q_STAGES) & 1) ^ 1)
    mbarrier.arrive(bars[7].index(number % ITEMS))
    mbarrier.arrive(bars[0].index(last))
