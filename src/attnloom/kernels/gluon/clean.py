"""Values that nobody may read become zeros: they would meet weights of 0, and 0 times NaN is NaN.

Two warpgroups share a stage of values. Each cleans half of its rows, and goes on when both have.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from attnloom.kernels.gluon.walk import FLAGS

CHUNK = gl.constexpr(16)  # rows that pass through registers at a time


@gluon.jit
def meet(cleaning, turn):
    """Wait until both warpgroups have come here; returns the next turn."""
    mbarrier.arrive(cleaning.index(0))
    mbarrier.wait(cleaning.index(0), turn & 1)
    return turn + 1


@gluon.jit
def keep_rows(stage, useful, first: gl.constexpr):
    """Zero the rows first .. first + CHUNK of a stage [keys, width] that are not useful."""
    part = stage.slice(first, CHUNK)
    WIDTH: gl.constexpr = stage.shape[1]
    ACROSS: gl.constexpr = min(WIDTH // 8, 32)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    keep = gl.convert_layout(useful, gl.SliceLayout(1, wide))[:, None]
    values = part.load(wide)
    part.store(gl.where(keep, values, gl.zeros_like(values)))


@gluon.jit
def clean_chunk(stages, st, useful, first: gl.constexpr, cfg: gl.constexpr):
    """`keep_rows` for both pieces of the values."""
    keep_rows(stages[0].index(st).reshape([cfg.TILE_KV, cfg.V0]), useful, first)
    if cfg.V1 > 0:
        keep_rows(stages[1].index(st).reshape([cfg.TILE_KV, cfg.V1]), useful, first)


@gluon.jit
def clean_tail(tag, limit, st, stages, cfg: gl.constexpr, WG: gl.constexpr):
    """Zero the warpgroup's half of the rows from `limit` on."""
    HALF: gl.constexpr = cfg.TILE_KV // 2
    at = tag & ~FLAGS
    for i in gl.static_range(HALF // CHUNK):
        if at + WG * HALF + (i + 1) * CHUNK > limit:
            row = gl.arange(0, CHUNK, layout=gl.BlockedLayout([1], [32], [4], [0]))
            clean_chunk(stages, st, at + WG * HALF + i * CHUNK + row < limit, WG * HALF + i * CHUNK, cfg)


@gluon.jit
def seen_rows(seen, first: gl.constexpr, layout: gl.constexpr):
    """Whether either warpgroup sees the keys of a chunk."""
    one = seen.index(0).slice(first, CHUNK).load(layout)
    return (one | seen.index(1).slice(first, CHUNK).load(layout)) != 0


@gluon.jit
def clean_unseen(scores, seen, st, stages, cleaning, turn, cfg: gl.constexpr, WG: gl.constexpr):
    """Zero the warpgroup's half of the rows that no row of either warpgroup sees; seen: int32 [2, TILE_KV] shared."""
    HALF: gl.constexpr = cfg.TILE_KV // 2
    HIDDEN: gl.constexpr = float("-inf") if cfg.SOFTMAX else 0.0
    keys: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    mine = gl.max((scores != HIDDEN).to(gl.int32), axis=0)
    seen.index(WG).store(gl.convert_layout(mine, keys))
    turn = meet(cleaning, turn)
    for i in gl.static_range(HALF // CHUNK):
        useful = seen_rows(seen, WG * HALF + i * CHUNK, keys)
        clean_chunk(stages, st, useful, WG * HALF + i * CHUNK, cfg)
    return turn


@gluon.jit
def clean_values(scores, tag, limit, c, turn, bufs, bars, cfg: gl.constexpr, WG: gl.constexpr):
    """Clean the values of the CTA's c-th tile, one with a mask, where its place asks for it; returns the next turn.

    scores: the tile's, masked. TMA writes zeros for pages past `limit`, gathered copies for rows past it.
    """
    _q_full, _q_empty, _k_full, _k_empty, v_full, _v_empty, cleaning, _item_empty = bars
    if cfg.OWNS:
        dirty = (tag & ~FLAGS) + cfg.TILE_KV > limit
        if cfg.PAGED and not cfg.GATHER:
            dirty = dirty & (limit % cfg.PAGE_SIZE != 0)
        if cfg.GATHER:
            dirty = False
    else:
        dirty = True
    if dirty:
        st = c % cfg.STAGES
        mbarrier.wait(v_full.index(st), (c // cfg.STAGES) & 1)
        if cfg.OWNS:
            clean_tail(tag, limit, st, bufs[2], cfg, WG)
        else:
            turn = clean_unseen(scores, bufs[5], st, bufs[2], cleaning, turn, cfg, WG)
        fence_async_shared()
        turn = meet(cleaning, turn)
    return turn
