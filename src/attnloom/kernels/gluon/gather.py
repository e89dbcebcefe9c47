"""K and V by cp.async: rows gathered one by one, for pages and strides that TMA cannot take."""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy


@triton.constexpr_function
def rows_layout(width, vector, warps):
    """A layout of [rows, width] with `vector` neighbouring elements a thread, whole rows a warp where they fit."""
    vector = min(vector, width)
    across = min(width // vector, 32)
    return gl.BlockedLayout([1, vector], [32 // across, across], [warps, 1], [1, 0])


@gluon.jit
def locate_rows(at, limit, table, ROWS: gl.constexpr, layout: gl.constexpr, cfg: gl.constexpr):
    """Page of each of a tile's rows, int32 [ROWS] (ragged: 0); rows from `limit` on touch no page."""
    pages_ptr, page_start, page_size, num_pages = table
    row = at + gl.arange(0, ROWS, layout=layout)
    if not cfg.PAGED:
        return 0 * row
    number = row // cfg.PAGE_SIZE if cfg.PAGE_SIZE > 0 else row // page_size
    page = gl.load(pages_ptr + (page_start + number), mask=row < limit, other=0)
    return gl.minimum(gl.maximum(page, 0), num_pages - 1)


@gluon.jit
def row_offsets(at, page, table, stride_page, stride_token, cfg: gl.constexpr):
    """Elements from the head's base to each row, int64, from what `locate_rows` gave."""
    _, page_start, page_size, _ = table
    row = at + gl.arange(0, page.shape[0], layout=page.type.layout)
    if not cfg.PAGED:
        return (page_start + row).to(gl.int64) * stride_page
    within = row % cfg.PAGE_SIZE if cfg.PAGE_SIZE > 0 else row % page_size
    return page.to(gl.int64) * stride_page + within.to(gl.int64) * stride_token


@gluon.jit
def gather_rows(
    stage, base, offsets, inside, dim_begin: gl.constexpr, DIM: gl.constexpr, ALIGN: gl.constexpr, layout: gl.constexpr
):
    """Start filling a stage [rows, width] with dims dim_begin .. of the rows at base + offsets; 0 outside and past DIM.

    ALIGN is the bytes that divide every row's address, and a copy's size; two bytes are too few for cp.async: those
    rows pass through registers, and have arrived on return. offsets and inside are laid out as SliceLayout(1, layout).
    """
    WIDTH: gl.constexpr = stage.shape[1]
    dim = dim_begin + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    keep = inside[:, None] & (dim < DIM)[None, :] if dim_begin + WIDTH > DIM else inside[:, None]
    pointers = gl.multiple_of(base + offsets[:, None] + dim[None, :], [1, ALIGN])
    if ALIGN >= 4:
        async_copy.async_copy_global_to_shared(stage, pointers, mask=keep)
    else:
        stage.store(gl.load(pointers, mask=keep, other=0.0))


@gluon.jit
def gather_pieces(
    rings, st, base, offsets, inside, DIM: gl.constexpr, W0: gl.constexpr, W1: gl.constexpr, cfg: gl.constexpr
):
    """Start the copies of a tile's rows into stage st, both pieces, of widths W0 and W1 (0: none)."""
    layout: gl.constexpr = offsets.type.layout.parent
    stage0 = rings[0].index(st).reshape([cfg.TILE_KV, W0])
    gather_rows(stage0, base, offsets, inside, 0, DIM, cfg.ALIGN, layout)
    if W1 > 0:
        stage1 = rings[1].index(st).reshape([cfg.TILE_KV, W1])
        gather_rows(stage1, base, offsets, inside, W0, DIM, cfg.ALIGN, layout)
