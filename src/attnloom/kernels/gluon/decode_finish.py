"""The end of an item of the decode kernel: close the softmax, complete the rows or write a partial state.

Accumulators are [dims, rows].
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnloom.kernels.gluon.decode_tile import whole_sums
from attnloom.kernels.gluon.functors import packed_rows
from attnloom.kernels.gluon.gather import rows_layout
from attnloom.kernels.triton.softmax import add_sink, close_softmax


@gluon.jit
def close_rows(acc0, acc1, top, total, cfg: gl.constexpr):
    """(acc0, acc1, natural-log lse) of a state; without softmax there is nothing to close."""
    if not cfg.SOFTMAX:
        return acc0, acc1, top
    columns: gl.constexpr = top.type.layout
    factor, lse = close_softmax(top, whole_sums(total, columns))
    acc0 = acc0 * factor[None, :]
    if cfg.V1 > 0:
        acc1 = acc1 * factor[None, :]
    return acc0, acc1, lse


@gluon.jit
def transform_output(x, row, operands, OUTPUT: gl.constexpr):
    """output_transform of `x`, in its shape also where the functor leaves `x` out; row is (pos, head, batch, lse)."""
    pos, head, batch, lse = row
    return gl.zeros_like(x) + OUTPUT(x, pos[None, :], head[None, :], batch, lse[None, :], operands)


@gluon.jit
def finish_rows(acc0, acc1, lse, row, operands, SINK: gl.constexpr, OUTPUT: gl.constexpr, cfg: gl.constexpr):
    """(acc0, acc1, lse) completed; row is (q_pos, qo_head, kv_head, batch)."""
    q_pos, qo_head, kv_head, batch = row
    if SINK is not None and not cfg.RAW:
        factor, lse = add_sink(lse, SINK(qo_head, kv_head, batch, operands))
        acc0 = acc0 * factor[None, :]
        if cfg.V1 > 0:
            acc1 = acc1 * factor[None, :]
    if OUTPUT is not None and not cfg.RAW:
        columns = (q_pos, qo_head, batch, lse)
        acc0 = transform_output(acc0, columns, operands, OUTPUT)
        if cfg.V1 > 0:
            acc1 = transform_output(acc1, columns, operands, OUTPUT)
    return acc0, acc1, lse


@gluon.jit
def store_columns(base, values, dim_begin: gl.constexpr, inside, DIM: gl.constexpr):
    """Write [width, rows] elements from dim_begin on, in the pointer's type; base points at each row."""
    WIDTH: gl.constexpr = values.shape[0]
    dim = dim_begin + gl.arange(0, WIDTH, layout=gl.SliceLayout(1, values.type.layout))
    keep = inside[None, :] & (dim < DIM)[:, None] if dim_begin + WIDTH > DIM else inside[None, :]
    gl.store(base[None, :] + dim[:, None], values.to(base.dtype.element_ty), mask=keep)


@gluon.jit
def store_through(values, staging, out_tensor, item, q_begin, dim_begin: gl.constexpr, cfg: gl.constexpr):
    """Rows of out by 16-byte stores, turned in shared memory [rows, width]."""
    out_ptr, stride_row, stride_head = out_tensor
    row_start, row_count, kv_head = item[1], item[2], item[3]
    WIDTH: gl.constexpr = values.shape[0]
    wide: gl.constexpr = rows_layout(WIDTH, 8, 4)
    staging.permute((1, 0)).store(values.to(staging.dtype))
    turned = staging.load(wide)
    inside, q_idx, head = packed_rows(row_start, 0, row_count, cfg.TILE_Q, cfg.GROUP, gl.SliceLayout(1, wide))
    row = (q_begin + q_idx).to(gl.int64)
    base = out_ptr + row * stride_row + (kv_head * cfg.GROUP + head).to(gl.int64) * stride_head
    dim = dim_begin + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, wide))
    keep = inside[:, None] & (dim < cfg.DIM_VO)[None, :] if dim_begin + WIDTH > cfg.DIM_VO else inside[:, None]
    gl.store(base[:, None] + dim[None, :], turned, mask=keep)


@gluon.jit
def write_final(acc0, acc1, lse, q, tensors, item, q_begin, row, cfg: gl.constexpr):
    """Rows of out, through the free slots of q, and of lse where it is wanted; row is (inside, q_row, qo_head)."""
    out_tensor, lse_tensor = tensors
    out_ptr, stride_row, stride_head = out_tensor
    inside, q_row, qo_head = row
    base = out_ptr + q_row * stride_row + qo_head.to(gl.int64) * stride_head
    TYPED: gl.constexpr = out_ptr.dtype.element_ty == q[0].dtype
    if TYPED and cfg.V0 == cfg.K0:
        store_through(acc0, q[0], out_tensor, item, q_begin, 0, cfg)
    else:
        store_columns(base, acc0, 0, inside, cfg.DIM_VO)
    if cfg.V1 > 0:
        if TYPED and cfg.V1 == cfg.K1:
            store_through(acc1, q[1], out_tensor, item, q_begin, cfg.V0, cfg)
        else:
            store_columns(base, acc1, cfg.V0, inside, cfg.DIM_VO)
    if cfg.HAS_LSE:
        lse_ptr, stride_lse = lse_tensor
        gl.store(lse_ptr + q_row * stride_lse + qo_head, lse, mask=inside)


@gluon.jit
def write_partial(acc0, acc1, lse, parts, slot, inside, cfg: gl.constexpr):
    """A partial state into its slot of the workspace; parts is (out [slots, TILE_Q, DIM_VO], lse [slots, TILE_Q])."""
    out_ptr, lse_ptr = parts
    row = slot.to(gl.int64) * cfg.TILE_Q + gl.arange(0, cfg.TILE_Q, layout=lse.type.layout)
    base = out_ptr + row * cfg.DIM_VO
    store_columns(base, acc0, 0, inside, cfg.DIM_VO)
    if cfg.V1 > 0:
        store_columns(base, acc1, cfg.V0, inside, cfg.DIM_VO)
    if cfg.SOFTMAX:
        gl.store(lse_ptr + row, lse, mask=inside)
