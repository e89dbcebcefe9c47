"""Work items and their query rows."""

import triton
import triton.language as tl

from attnloom.schedule.work import ITEM_FIELDS

FIELDS = tl.constexpr(len(ITEM_FIELDS))


@triton.jit
def read_item(items_ptr, item, head_of_cta, heads_per_item):
    """(request, row_start, row_count, kv_head, kv_begin, kv_end, out_slot) with every-head items resolved."""
    at = items_ptr + item * FIELDS
    kv_head = tl.load(at + 4)
    slot = tl.load(at + 7)
    if kv_head < 0:
        kv_head = head_of_cta
        slot = tl.where(slot >= 0, slot * heads_per_item + head_of_cta, slot)
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), kv_head, tl.load(at + 5), tl.load(at + 6), slot


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
