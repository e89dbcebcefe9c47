"""Packed query rows of a tile, and rows of elements in memory."""

import triton
import triton.language as tl


@triton.jit
def packed_rows(row_start, row_count, TILE_Q: tl.constexpr, GROUP: tl.constexpr):
    """(inside, q_idx, head in the group) of a tile's packed rows; rows past row_count repeat the last."""
    row = tl.arange(0, TILE_Q)
    packed = row_start + tl.minimum(row, row_count - 1)
    return row < row_count, packed // GROUP, packed % GROUP


@triton.jit
def row_positions(q_pos_ptr, q_begin, q_idx, qo_len, kv_len, HAS_Q_POS: tl.constexpr):
    """q_pos of each row: given, or aligned bottom-right."""
    if HAS_Q_POS:
        return tl.load(q_pos_ptr + q_begin + q_idx)
    return q_idx + (kv_len - qo_len)


@triton.jit
def load_rows(base, dim_begin: tl.constexpr, inside, WIDTH: tl.constexpr, DIM: tl.constexpr):
    """[rows, WIDTH] elements from dim_begin on; 0 outside `inside` and past DIM."""
    dim = dim_begin + tl.arange(0, WIDTH)
    if dim_begin + WIDTH > DIM:
        return tl.load(base[:, None] + dim[None, :], mask=inside[:, None] & (dim < DIM)[None, :], other=0.0)
    return tl.load(base[:, None] + dim[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def store_rows(base, values, dim_begin: tl.constexpr, inside, DIM: tl.constexpr):
    """Write [rows, WIDTH] elements from dim_begin on, in the pointer's type."""
    WIDTH: tl.constexpr = values.shape[1]
    dim = dim_begin + tl.arange(0, WIDTH)
    typed = values.to(base.dtype.element_ty)
    tl.store(base[:, None] + dim[None, :], typed, mask=inside[:, None] & (dim < DIM)[None, :])
