"""The end of a row: sink and output_transform, once, after the last merge; then the write."""

import triton
import triton.language as tl

from attnloom.kernels.triton.rows import store_rows
from attnloom.kernels.triton.softmax import add_sink


@triton.jit
def transform_output(x, row, operands, OUTPUT: tl.constexpr):
    """output_transform of `x`, in its shape also where the functor leaves `x` out; row is (pos, head, batch, lse)."""
    ROWS: tl.constexpr = x.shape[0]
    WIDTH: tl.constexpr = x.shape[1]
    pos, head, batch, lse = row
    return tl.broadcast_to(tl.cast(OUTPUT(x, pos, head, batch, lse, operands), tl.float32), [ROWS, WIDTH])


@triton.jit
def finish_rows(acc, lse, row, operands, SINK: tl.constexpr, OUTPUT: tl.constexpr, cfg: tl.constexpr):
    """(acc, lse) completed; row is (q_pos, qo_head, kv_head, batch)."""
    acc0, acc1 = acc
    q_pos, qo_head, kv_head, batch = row
    if SINK is not None and not cfg.RAW:
        factor, lse = add_sink(lse, SINK(qo_head, kv_head, batch, operands))
        acc0 = acc0 * factor[:, None]
        acc1 = acc1 * factor[:, None]
    if OUTPUT is not None and not cfg.RAW:
        columns = (q_pos[:, None], qo_head[:, None], batch, lse[:, None])
        acc0 = transform_output(acc0, columns, operands, OUTPUT)
        acc1 = transform_output(acc1, columns, operands, OUTPUT)
    return acc0, acc1, lse


@triton.jit
def write_final(acc, lse, tensors, strides, q_row, qo_head, inside, cfg: tl.constexpr):
    """Rows of out, and of lse where it is wanted; tensors is (out, lse), strides (out row, out head, lse row)."""
    out_ptr, lse_ptr = tensors
    stride_row, stride_head, stride_lse = strides
    acc0, acc1 = acc
    base = out_ptr + q_row * stride_row + qo_head.to(tl.int64) * stride_head
    store_rows(base, acc0, 0, inside, cfg.DIM_VO)
    if cfg.V1 > 0:
        store_rows(base, acc1, cfg.V0, inside, cfg.DIM_VO)
    if cfg.HAS_LSE:
        tl.store(lse_ptr + q_row * stride_lse + qo_head, lse, mask=inside)


@triton.jit
def write_partial(acc, lse, parts, slot, inside, cfg: tl.constexpr):
    """A partial state into its slot of the workspace; parts is (out [slots, TILE_Q, DIM_VO], lse [slots, TILE_Q])."""
    out_ptr, lse_ptr = parts
    acc0, acc1 = acc
    row = slot.to(tl.int64) * cfg.TILE_Q + tl.arange(0, cfg.TILE_Q)
    base = out_ptr + row * cfg.DIM_VO
    store_rows(base, acc0, 0, inside, cfg.DIM_VO)
    if cfg.V1 > 0:
        store_rows(base, acc1, cfg.V0, inside, cfg.DIM_VO)
    if cfg.SOFTMAX:
        tl.store(lse_ptr + row, lse, mask=inside)
