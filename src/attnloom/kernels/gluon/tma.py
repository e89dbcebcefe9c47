"""K and V by TMA: boxes of whole pages, or of contiguous rows, into one stage of a ring."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

OUTSIDE = gl.constexpr(-1)  # a coordinate outside of every tensor: TMA writes zeros


@gluon.jit
def locate_tile(at, limit, table, cfg: gl.constexpr):
    """Where a tile's boxes lie: their pages, int32 [32], one a lane (ragged: the first row of k and v).

    Pages from `limit` on are OUTSIDE: no request's page is touched for them. Device tables are not checked anywhere
    else: clamped, no page leads out of the pool.
    """
    pages_ptr, page_start, num_pages = table
    lane = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
    if cfg.PAGED:
        ROWS: gl.constexpr = min(cfg.PAGE_SIZE, cfg.TILE_KV)
        key = at + lane * ROWS
        inside = (lane < cfg.TILE_KV // ROWS) & (key < limit)
        page = gl.load(pages_ptr + (page_start + key // cfg.PAGE_SIZE), mask=inside, other=0)
        return gl.where(inside, gl.minimum(gl.maximum(page, 0), num_pages - 1), OUTSIDE)
    row = gl.where(at < limit, page_start.to(gl.int32) + at, OUTSIDE * cfg.TILE_KV)
    return row + 0 * lane


@gluon.jit
def copy_tile(descs, at, where, kv_head, barrier, stages, st, W0: gl.constexpr, W1: gl.constexpr, cfg: gl.constexpr):
    """Start the copies of a tile into stage st; descs and stages are the pieces, of widths W0 and W1 (0: none).

    stages: [STAGES, 1, TILE_KV, 1, width]; the caller has told the barrier how many bytes to expect.
    """
    lane = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
    if cfg.PAGED:
        ROWS: gl.constexpr = min(cfg.PAGE_SIZE, cfg.TILE_KV)
        within = at % cfg.PAGE_SIZE if cfg.PAGE_SIZE > cfg.TILE_KV else 0
        for p in gl.static_range(cfg.TILE_KV // ROWS):
            page = gl.max(gl.where(lane == p, where, OUTSIDE), axis=0)
            part = stages[0].index(st).slice(p * ROWS, ROWS, dim=1)
            tma.async_copy_global_to_shared(descs[0], [page, within, kv_head, 0], barrier, part)
            if W1 > 0:
                part1 = stages[1].index(st).slice(p * ROWS, ROWS, dim=1)
                tma.async_copy_global_to_shared(descs[1], [page, within, kv_head, W0], barrier, part1)
    else:
        row = gl.max(where, axis=0)
        tma.async_copy_global_to_shared(descs[0], [0, row, kv_head, 0], barrier, stages[0].index(st))
        if W1 > 0:
            tma.async_copy_global_to_shared(descs[1], [0, row, kv_head, W0], barrier, stages[1].index(st))
