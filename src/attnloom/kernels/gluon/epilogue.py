"""The end of an item of a warpgroup: close the softmax, complete the rows or write a partial state."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnloom.kernels.gluon.functors import packed_rows, row_positions
from attnloom.kernels.gluon.softmax import whole_sums
from attnloom.kernels.triton.softmax import add_sink, close_softmax


@gluon.jit
def beside(vector, x):
    """A vector over rows as a column beside `x`, in its layout."""
    return gl.convert_layout(vector, gl.SliceLayout(1, x.type.layout))[:, None]


@gluon.jit
def transform_output(x, row, operands, OUTPUT: gl.constexpr):
    """output_transform of `x`, in its shape also where the functor leaves `x` out; row is (pos, head, batch, lse)."""
    pos, head, batch, lse = row
    return gl.zeros_like(x) + OUTPUT(x, beside(pos, x), beside(head, x), batch, beside(lse, x), operands)


@gluon.jit
def finish_rows(acc, lse, row, operands, SINK: gl.constexpr, OUTPUT: gl.constexpr, cfg: gl.constexpr):
    """(acc, lse) completed; row is (q_pos, qo_head, kv_head, batch), acc its two pieces."""
    acc0, acc1 = acc
    q_pos, qo_head, kv_head, batch = row
    if SINK is not None and not cfg.RAW:
        factor, lse = add_sink(lse, SINK(qo_head, kv_head, batch, operands))
        acc0 = acc0 * beside(factor, acc0)
        if cfg.V1 > 0:
            acc1 = acc1 * beside(factor, acc1)
    if OUTPUT is not None and not cfg.RAW:
        columns = (q_pos, qo_head, batch, lse)
        acc0 = transform_output(acc0, columns, operands, OUTPUT)
        if cfg.V1 > 0:
            acc1 = transform_output(acc1, columns, operands, OUTPUT)
    return acc0, acc1, lse


@gluon.jit
def store_rows(base, values, dim_begin: gl.constexpr, inside, DIM: gl.constexpr):
    """Write [rows, width] elements from dim_begin on; base points at each row."""
    WIDTH: gl.constexpr = values.shape[1]
    dim = dim_begin + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, values.type.layout))
    keep = inside[:, None] & (dim < DIM)[None, :] if dim_begin + WIDTH > DIM else inside[:, None]
    gl.store(base[:, None] + dim[None, :], values, mask=keep)


@gluon.jit
def out_rows(out_tensor, item, first: gl.constexpr, NUM: gl.constexpr, cfg: gl.constexpr, layout: gl.constexpr):
    """(pointer at each row of out, inside) of packed rows; item is (row_start, row_count, q_begin, kv_head)."""
    out_ptr, stride_row, stride_head = out_tensor
    row_start, row_count, q_begin, kv_head = item
    inside, q_idx, head = packed_rows(row_start, first, row_count, NUM, cfg.GROUP, layout)
    row = (q_begin + q_idx).to(gl.int64)
    return out_ptr + row * stride_row + (kv_head * cfg.GROUP + head).to(gl.int64) * stride_head, inside


@gluon.jit
def write_piece(values, staging, out_tensor, item, first: gl.constexpr, dim_begin: gl.constexpr, cfg: gl.constexpr):
    """One piece of the rows of out: by 16-byte stores, through shared memory.

    fp32 (raw states), and a piece whose width is not that of the staging memory, straight from registers.
    """
    NUM: gl.constexpr = values.shape[0]
    ELEMENT: gl.constexpr = out_tensor[0].dtype.element_ty
    if gl.float32 == ELEMENT or staging.shape[1] != values.shape[1]:
        base, inside = out_rows(out_tensor, item, first, NUM, cfg, gl.SliceLayout(1, values.type.layout))
        store_rows(base, values.to(ELEMENT), dim_begin, inside, cfg.DIM_VO)
    else:
        ACROSS: gl.constexpr = min(values.shape[1] // 8, 32)
        wide: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
        staging.store(values.to(staging.dtype))
        base, inside = out_rows(out_tensor, item, first, NUM, cfg, gl.SliceLayout(1, wide))
        store_rows(base, staging.load(wide), dim_begin, inside, cfg.DIM_VO)


@gluon.jit
def write_partial(acc, lse, parts, slot, first: gl.constexpr, row_count, cfg: gl.constexpr):
    """A partial state into its slot of the workspace; parts is (out [slots, TILE_Q, DIM_VO], lse [slots, TILE_Q])."""
    out_ptr, lse_ptr = parts
    acc0, acc1 = acc
    row = first + gl.arange(0, acc0.shape[0], layout=gl.SliceLayout(1, acc0.type.layout))
    at = slot.to(gl.int64) * cfg.TILE_Q + row
    store_rows(out_ptr + at * cfg.DIM_VO, acc0, 0, row < row_count, cfg.DIM_VO)
    if cfg.V1 > 0:
        row1 = gl.convert_layout(row, gl.SliceLayout(1, acc1.type.layout))
        at1 = slot.to(gl.int64) * cfg.TILE_Q + row1
        store_rows(out_ptr + at1 * cfg.DIM_VO, acc1, cfg.V0, row1 < row_count, cfg.DIM_VO)
    if cfg.SOFTMAX:
        gl.store(lse_ptr + at, lse, mask=row < row_count)


@gluon.jit
def close_rows(acc, row_max, sums, cfg: gl.constexpr):
    """(acc, lse) of a state in o's row layout: rows divided by their sums. Weights without softmax stay."""
    acc0, acc1 = acc
    layout: gl.constexpr = gl.SliceLayout(1, acc0.type.layout)
    lse = gl.convert_layout(row_max, layout)
    if cfg.SOFTMAX:
        factor, lse = close_softmax(lse, whole_sums(sums, layout))
        acc0 = acc0 * factor[:, None]
        if cfg.V1 > 0:
            acc1 = acc1 * beside(factor, acc1)
    return acc0, acc1, lse


@gluon.jit
def write_item(
    acc,
    lse,
    item,
    tensors,
    staging,
    positions,
    operands,
    first: gl.constexpr,
    SINK: gl.constexpr,
    OUTPUT: gl.constexpr,
    cfg: gl.constexpr,
):
    """Write a closed state: final rows of out and lse, or a partial state. staging: two pieces of shared memory.

    item is (row_start, row_count, kv_head, slot, q_begin, qo_len, kv_len, request), tensors (out, lse, parts).
    """
    acc0, acc1 = acc
    row_start, row_count, kv_head, slot, q_begin, qo_len, kv_len, request = item
    out_tensor, lse_tensor, parts = tensors
    NUM: gl.constexpr = acc0.shape[0]
    if slot >= 0:
        write_partial(acc, lse, parts, slot, first, row_count, cfg)
    else:
        layout: gl.constexpr = gl.SliceLayout(1, acc0.type.layout)
        inside, q_idx, head = packed_rows(row_start, first, row_count, NUM, cfg.GROUP, layout)
        qo_head = kv_head * cfg.GROUP + head
        q_pos = row_positions(positions[0], q_begin, q_idx, qo_len, kv_len, cfg)
        acc0, acc1, lse = finish_rows(acc, lse, (q_pos, qo_head, kv_head, request), operands, SINK, OUTPUT, cfg)
        rows = (row_start, row_count, q_begin, kv_head)
        write_piece(acc0, staging[0], out_tensor, rows, first, 0, cfg)
        if cfg.V1 > 0:
            write_piece(acc1, staging[1], out_tensor, rows, first, cfg.V0, cfg)
        if cfg.HAS_LSE:
            lse_ptr, stride = lse_tensor
            gl.store(lse_ptr + (q_begin + q_idx).to(gl.int64) * stride + qo_head, lse, mask=inside)
