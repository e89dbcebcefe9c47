"""The consumer of the decode kernel: one warpgroup that runs the items of a CTA as their tiles arrive."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from attnloom.kernels.gluon.decode_finish import close_rows, finish_rows, write_final, write_partial
from attnloom.kernels.gluon.decode_producer import next_stage
from attnloom.kernels.gluon.decode_tile import empty_state, item_rows, visit_tile
from attnloom.kernels.gluon.functors import packed_rows
from attnloom.kernels.gluon.gather import rows_layout
from attnloom.kernels.gluon.walk import LAST, published
from attnloom.kernels.triton.items import read_item, read_request


@gluon.jit
def load_piece(q_tensor, item, q_begin, dim_begin: gl.constexpr, WIDTH: gl.constexpr, cfg: gl.constexpr):
    """One piece of an item's rows of q, [TILE_Q, WIDTH]; 0 outside of the item and past the head dim."""
    q_ptr, stride_row, stride_head = q_tensor
    row_start, row_count, kv_head = item[1], item[2], item[3]
    wide: gl.constexpr = rows_layout(WIDTH, 8, 4)
    inside, q_idx, head = packed_rows(row_start, 0, row_count, cfg.TILE_Q, cfg.GROUP, gl.SliceLayout(1, wide))
    row = (q_begin + q_idx).to(gl.int64)
    base = q_ptr + row * stride_row + (kv_head * cfg.GROUP + head).to(gl.int64) * stride_head
    dim = dim_begin + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, wide))
    return gl.load(base[:, None] + dim[None, :], mask=inside[:, None] & (dim < cfg.DIM_QK)[None, :], other=0.0)


@gluon.jit
def load_queries(q_tensor, item, of_request, cfg: gl.constexpr):
    """Both pieces of an item's rows of q; a second one that is not there is a scalar."""
    q0 = load_piece(q_tensor, item, of_request[0], 0, cfg.K0, cfg)
    q1 = load_piece(q_tensor, item, of_request[0], cfg.K0, cfg.K1, cfg) if cfg.K1 > 0 else gl.to_tensor(0)
    return q0, q1


@gluon.jit
def attend(
    st, phase, bufs, bars, item, of_request, positions, inputs, LOGITS: gl.constexpr, MASK: gl.constexpr,
    cfg: gl.constexpr,
):  # fmt: skip
    """The state of an item, the last tile's tag, and the ring's stage and phase behind that tile."""
    q, k_rings, v_rings, tags, p_smem, useful = bufs
    full, empty = bars
    acc0, acc1, top, total = empty_state(cfg)
    tag = 0
    while (tag & LAST) == 0:
        mbarrier.wait(full.index(st), phase)
        if cfg.GATHER:
            fence_async_shared()  # what cp.async wrote is read by products
        tag = published(tags.index(st), 4)
        acc0, acc1, top, total = visit_tile(
            (acc0, acc1, top, total),
            q,
            (k_rings, v_rings, p_smem, useful),
            st,
            tag,
            item,
            of_request,
            positions,
            inputs,
            LOGITS,
            MASK,
            cfg,
        )
        mbarrier.arrive(empty.index(st))
        st, phase = next_stage(st, phase, cfg.STAGES)
    return acc0, acc1, top, total, tag, st, phase


@gluon.jit
def finish(state, q, tensors, item, of_request, rows, operands, SINK: gl.constexpr, OUTPUT: gl.constexpr,
    cfg: gl.constexpr,
):  # fmt: skip
    """Write an item: final rows, or a partial state into its slot; rows is what `item_rows` gave."""
    out_tensor, lse_tensor, parts = tensors
    inside, seen = rows
    q_pos, q_idx, qo_head, kv_head, request, _qo_len = seen
    acc0, acc1, top, total = state
    acc0, acc1, lse = close_rows(acc0, acc1, top, total, cfg)
    slot = item[6]
    if slot < 0:
        row = (q_pos, qo_head, kv_head, request)
        acc0, acc1, lse = finish_rows(acc0, acc1, lse, row, operands, SINK, OUTPUT, cfg)
        row = (inside, (of_request[0] + q_idx).to(gl.int64), qo_head)
        write_final(acc0, acc1, lse, q, (out_tensor, lse_tensor), item, of_request[0], row, cfg)
    else:
        write_partial(acc0, acc1, lse, parts, slot, inside, cfg)


@gluon.jit
def consume(
    bufs, bars, tensors, where, inputs, LOGITS: gl.constexpr, MASK: gl.constexpr, SINK: gl.constexpr,
    OUTPUT: gl.constexpr, cfg: gl.constexpr,
):  # fmt: skip
    """The CTA's items, each read while the one before it runs."""
    q_tensor, out_tensor, lse_tensor, parts = tensors
    work, sequences, span, heads_per_item = where
    positions, operands, sm_scale = inputs
    items_ptr, item_segments_ptr = work[0], work[1]
    q_smem = bufs[0]
    begin, end = span
    cta = gl.program_id(0)
    st = 0
    phase = 0
    next_item = read_item(items_ptr, item_segments_ptr, begin, begin < end, cta, heads_per_item)
    next_request = read_request(sequences, next_item[0])
    q0, q1 = load_queries(q_tensor, next_item, next_request, cfg)
    for index in range(begin, end):
        q_smem[0].store(q0)
        if cfg.K1 > 0:
            q_smem[1].store(q1)
        fence_async_shared()
        item, of_request = next_item, next_request
        next_item = read_item(items_ptr, item_segments_ptr, index + 1, index + 1 < end, cta, heads_per_item)
        kv_pos_ptr = positions[1] + gl.load(sequences[1] + item[0]) if cfg.HAS_KV_POS else positions[1]
        acc0, acc1, top, total, tag, st, phase = attend(
            st,
            phase,
            bufs,
            bars,
            item,
            of_request,
            (positions[0], kv_pos_ptr),
            (operands, sm_scale),
            LOGITS,
            MASK,
            cfg,
        )
        next_request = read_request(sequences, next_item[0])
        q0, q1 = load_queries(q_tensor, next_item, next_request, cfg)
        finish(
            (acc0, acc1, top, total),
            q_smem,
            (out_tensor, lse_tensor, parts),
            item,
            of_request,
            item_rows(item, of_request, positions[0], tag, cfg),
            operands,
            SINK,
            OUTPUT,
            cfg,
        )
