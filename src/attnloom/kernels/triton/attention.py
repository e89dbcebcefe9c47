"""The attention kernel: persistent CTAs, each running its work items of the Plan.

FlashAttention-2's loop per item: q stays, kv tiles stream, fp32 online softmax. A head dimension is one or
two pieces of power-of-two width (192 = 128 + 64). Functors come as constexpr functions, or None.
"""

import triton
import triton.language as tl

from attnloom.kernels.fp8 import logits_scale, scale_of
from attnloom.kernels.triton.finish import finish_rows, write_final, write_partial
from attnloom.kernels.triton.items import load_queries, locate_rows, next_run, read_item, read_request, read_segment
from attnloom.kernels.triton.rows import row_positions
from attnloom.kernels.triton.softmax import close_softmax
from attnloom.kernels.triton.tile import EITHER, FULL, PARTIAL, empty_state, visit_tile


@triton.jit
def visit_run(
    state,
    q,
    run,
    full,
    caches,
    table,
    rows,
    kv,
    operands,
    LOGITS: tl.constexpr,
    MASK: tl.constexpr,
    cfg: tl.constexpr,
    KIND: tl.constexpr,
):
    """The tiles of run, (begin, end), join the state."""
    acc0, acc1, row_max, row_sum = state
    for at in tl.range(run[0], run[1], cfg.TILE_KV, num_stages=cfg.STAGES):
        acc0, acc1, row_max, row_sum = visit_tile(
            (acc0, acc1, row_max, row_sum), q, at, full, caches, table, rows, kv, operands, LOGITS, MASK, cfg, KIND
        )
    return acc0, acc1, row_max, row_sum


@triton.jit
def attend(
    q,
    segments,
    span,
    caches,
    table,
    rows,
    kv,
    operands,
    LOGITS: tl.constexpr,
    MASK: tl.constexpr,
    cfg: tl.constexpr,
):
    """The state of an item: the keys of its segments (pointer, first, last) within span (kv_begin, kv_end).

    With ONE_LOOP neighbouring segments are one loop, whose copies run through; else full and other tiles have loops of
    their own.
    """
    acc0, acc1, row_max, row_sum = empty_state(cfg)
    segments_ptr, segment, last = segments
    kv_begin, kv_end = span
    while segment < last:
        if cfg.ONE_LOOP:
            segment, begin, end, full_begin, full_end = next_run(segments_ptr, segment, last)
            acc0, acc1, row_max, row_sum = visit_run(
                (acc0, acc1, row_max, row_sum),
                q,
                (tl.maximum(begin, kv_begin), tl.minimum(end, kv_end)),
                (full_begin, full_end),
                caches,
                table,
                rows,
                kv,
                operands,
                LOGITS,
                MASK,
                cfg,
                EITHER,
            )
        else:
            begin, end, full = read_segment(segments_ptr, segment, last)
            segment += 1
            begin = tl.maximum(begin, kv_begin)
            end = tl.minimum(end, kv_end)
            whole = tl.where(full, begin + tl.maximum(end - begin, 0) // cfg.TILE_KV * cfg.TILE_KV, begin)
            acc0, acc1, row_max, row_sum = visit_run(
                (acc0, acc1, row_max, row_sum),
                q,
                (begin, whole),
                (begin, whole),
                caches,
                table,
                rows,
                kv,
                operands,
                LOGITS,
                MASK,
                cfg,
                FULL,
            )
            acc0, acc1, row_max, row_sum = visit_run(
                (acc0, acc1, row_max, row_sum),
                q,
                (whole, end),
                (begin, whole),
                caches,
                table,
                rows,
                kv,
                operands,
                LOGITS,
                MASK,
                cfg,
                PARTIAL,
            )
    return acc0, acc1, row_max, row_sum


@triton.jit(do_not_specialize=["operands", "sm_scale", "page_size", "num_pages", "heads_per_item", "kv_scales"])
def attention_kernel(
    q_tensor,  # (pointer, row stride, head stride)
    k_tensor,  # (pointer, page stride, token stride, head stride)
    v_tensor,
    out_tensor,  # (pointer, row stride, head stride)
    lse_tensor,  # (pointer, row stride)
    parts,  # (out, lse) of this class in the workspace
    work,  # (items, item_segments, segments, work_indptr)
    sequences,  # (qo_indptr, kv_indptr, kv_len, pages, page_start)
    positions,  # (q_pos, kv_pos)
    operands,  # the variant's, flat
    sm_scale,
    page_size,
    num_pages,  # of the pool
    heads_per_item,
    kv_scales,  # () or (scale of k, stride, scale of v, stride): numbers, or pointers to one or one a kv head
    LOGITS: tl.constexpr,
    MASK: tl.constexpr,
    SINK: tl.constexpr,
    OUTPUT: tl.constexpr,
    cfg: tl.constexpr,
):
    """Run the items of CTA `program_id(0)`."""
    k_ptr, k_page, k_token, k_stride_head = k_tensor
    v_ptr, v_page, v_token, v_stride_head = v_tensor
    out_ptr, out_stride_row, out_stride_head = out_tensor
    lse_ptr, lse_stride_row = lse_tensor
    items_ptr, item_segments_ptr, segments_ptr, work_indptr_ptr = work
    _qo_indptr_ptr, kv_indptr_ptr, _kv_len_ptr, pages_ptr, _page_start_ptr = sequences
    q_pos_ptr, kv_pos_ptr = positions
    cta = tl.program_id(0)
    group = cta // heads_per_item
    begin = tl.load(work_indptr_ptr + group)
    end = tl.load(work_indptr_ptr + group + 1)
    # read one item ahead: what comes next arrives while this one is computed and written
    next_item = read_item(items_ptr, item_segments_ptr, begin, begin < end, cta, heads_per_item)
    next_request = read_request(sequences, next_item[0])
    next_q = load_queries(q_tensor, next_item, next_request, cfg)
    for index in range(begin, end):
        item, of_request = next_item, next_request
        q = next_q if cfg.AHEAD else load_queries(q_tensor, item, of_request, cfg)
        next_item = read_item(items_ptr, item_segments_ptr, index + 1, index + 1 < end, cta, heads_per_item)
        request, _row_start, _row_count, kv_head, kv_begin, kv_end, slot, first, last = item
        q_begin, qo_len, kv_len, page_start = of_request
        inside, q_idx, q_row, qo_head = locate_rows(item, of_request, cfg)
        q_pos = row_positions(q_pos_ptr, q_begin, q_idx, qo_len, kv_len, cfg.HAS_Q_POS)
        head = kv_head.to(tl.int64)
        scale = tl.cast(sm_scale, tl.float32)
        if cfg.KV_FP8 != "":
            scale = logits_scale(scale, kv_scales, head, cfg.FOLD)
        acc0, acc1, row_max, row_sum = attend(
            q,
            (segments_ptr, first, last),
            (kv_begin, kv_end),
            (k_ptr + head * k_stride_head, v_ptr + head * v_stride_head, k_page, k_token, v_page, v_token),
            (pages_ptr, page_start, page_size, num_pages),
            (q_pos, q_idx, qo_head, kv_head, request, qo_len),
            (kv_len, scale, kv_pos_ptr + tl.load(kv_indptr_ptr + request)),
            operands,
            LOGITS,
            MASK,
            cfg,
        )
        next_request = read_request(sequences, next_item[0])
        if cfg.AHEAD:
            next_q = load_queries(q_tensor, next_item, next_request, cfg)
        lse = row_max
        if cfg.SOFTMAX:
            factor, lse = close_softmax(row_max, row_sum)
            acc0 = acc0 * factor[:, None]
            acc1 = acc1 * factor[:, None]
        if cfg.KV_FP8 != "":
            v_scale = scale_of(kv_scales[2], kv_scales[3], head)
            acc0 = acc0 * v_scale
            acc1 = acc1 * v_scale
        if slot < 0:
            acc0, acc1, lse = finish_rows(
                (acc0, acc1), lse, (q_pos, qo_head, kv_head, request), operands, SINK, OUTPUT, cfg
            )
            write_final(
                (acc0, acc1),
                lse,
                (out_ptr, lse_ptr),
                (out_stride_row, out_stride_head, lse_stride_row),
                q_row,
                qo_head,
                inside,
                cfg,
            )
        else:
            write_partial((acc0, acc1), lse, parts, slot, inside, cfg)
