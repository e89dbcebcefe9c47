"""Rows of q into shared memory by the warpgroup that reads them, where TMA cannot bring them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attnloom.kernels.gluon.functors import packed_rows


@gluon.jit
def load_piece(slot, q_tensor, item, first: gl.constexpr, dim_begin: gl.constexpr, cfg: gl.constexpr):
    """One piece of the packed rows from `first` on into slot [rows, width]; zeros past the head dim."""
    row_start, row_count, kv_head, _out_slot, q_begin, _qo_len, _kv_len, _request = item
    q_ptr, stride_row, stride_head = q_tensor
    NUM: gl.constexpr = slot.shape[0]
    WIDTH: gl.constexpr = slot.shape[1]
    ACROSS: gl.constexpr = min(WIDTH // 8, 32)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    inside, q_idx, head = packed_rows(row_start, first, row_count, NUM, cfg.GROUP, gl.SliceLayout(1, wide))
    row = (q_begin + q_idx).to(gl.int64)
    base = q_ptr + row * stride_row + (kv_head * cfg.GROUP + head).to(gl.int64) * stride_head
    dim = dim_begin + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, wide))
    slot.store(gl.load(base[:, None] + dim[None, :], mask=inside[:, None] & (dim < cfg.DIM_QK)[None, :], other=0.0))


@gluon.jit
def load_queries(slots, q_tensor, item, first: gl.constexpr, cfg: gl.constexpr):
    """Both pieces, ready for products."""
    load_piece(slots[0], q_tensor, item, first, 0, cfg)
    if cfg.K1 > 0:
        load_piece(slots[1], q_tensor, item, first, cfg.K0, cfg)
    fence_async_shared()
