"""The attention kernel: persistent CTAs, each running its work items of the Plan.

FlashAttention-2's loop per item: q stays, kv tiles stream, fp32 online softmax. A head dimension is one or
two pieces of power-of-two width (192 = 128 + 64). Functors come as constexpr functions, or None.
"""

import triton
import triton.language as tl

from attnloom.kernels.triton.finish import finish_rows, write_final, write_partial
from attnloom.kernels.triton.paging import row_offsets
from attnloom.kernels.triton.rows import load_rows, packed_rows, read_item, row_positions
from attnloom.kernels.triton.softmax import LOG2E, NEG_INF, close_softmax, dot, online_softmax


@triton.jit
def raw_scores(q, k_ptr, offsets, cfg: tl.constexpr):
    """q · k of one kv tile, fp32 [TILE_Q, TILE_KV]."""
    q0, q1 = q
    ROWS: tl.constexpr = cfg.TILE_Q
    KEYS: tl.constexpr = cfg.TILE_KV
    every = tl.full([KEYS], True, tl.int1)
    k0 = load_rows(k_ptr + offsets, 0, every, cfg.K0, cfg.DIM_QK)
    scores = dot(q0, tl.trans(k0), tl.zeros([ROWS, KEYS], tl.float32), cfg.UPCAST)
    if cfg.K1 > 0:
        k1 = load_rows(k_ptr + offsets, cfg.K0, every, cfg.K1, cfg.DIM_QK)
        scores = dot(q1, tl.trans(k1), scores, cfg.UPCAST)
    return scores


@triton.jit
def functors(
    scores,
    tile_begin,
    kv,
    rows,
    operands,
    LOGITS: tl.constexpr,
    MASK: tl.constexpr,
    cfg: tl.constexpr,
    FULL: tl.constexpr,
):
    """Logits functor and mask on raw scores; the result is in base 2 (times scale) for softmax, a weight without.

    With it come the keys whose values count, bool [TILE_KV]: those that exist and that some row of the tile sees.
    What lies at another key, perhaps in a page outside the window, may be NaN and must not meet its weight of 0.
    """
    q_pos, q_idx, qo_head, kv_head, batch, qo_len = rows
    kv_len, sm_scale, kv_pos_ptr = kv
    index = tile_begin + tl.arange(0, cfg.TILE_KV)
    kv_pos = (tl.load(kv_pos_ptr + tl.minimum(index, kv_len - 1)) if cfg.HAS_KV_POS else index)[None, :]
    q_pos, q_idx, qo_head = q_pos[:, None], q_idx[:, None], qo_head[:, None]
    if not cfg.FOLD:
        scores = scores * sm_scale
    if LOGITS is not None:
        scores = LOGITS(scores, q_pos, kv_pos, q_idx, qo_head, kv_head, batch, qo_len, kv_len, operands)
        # a functor that leaves logits out may depend on rows, on keys or on nothing
        scores = tl.broadcast_to(tl.cast(scores, tl.float32), [cfg.TILE_Q, cfg.TILE_KV])
    if cfg.SOFTMAX and not cfg.FOLD:
        scores = scores * LOG2E
    if FULL:
        return scores, tl.full([cfg.TILE_KV], True, tl.int1)
    useful = index < kv_len
    keep = useful[None, :]
    if MASK is not None:
        keep = keep & MASK(q_pos, kv_pos, q_idx, qo_head, kv_head, batch, qo_len, kv_len, operands)
        useful = tl.max(tl.broadcast_to(keep, [cfg.TILE_Q, cfg.TILE_KV]).to(tl.int32), 0) > 0
    return tl.where(keep, scores, NEG_INF if cfg.SOFTMAX else 0.0), useful


@triton.jit
def visit_tile(
    state,
    q,
    tile_begin,
    caches,
    table,
    rows,
    kv,
    operands,
    LOGITS: tl.constexpr,
    MASK: tl.constexpr,
    cfg: tl.constexpr,
    FULL: tl.constexpr,
):
    """One kv tile joins the state; FULL: every key of it exists and is visible to every row."""
    acc0, acc1, row_max, row_sum = state
    k_ptr, v_ptr, k_page, k_token, v_page, v_token = caches
    kv_len, sm_scale, _ = kv
    TAIL: tl.constexpr = not FULL
    k_rows = row_offsets(tile_begin, kv_len, table, k_page, k_token, cfg.TILE_KV, cfg.PAGED, cfg.PAGE_SIZE, TAIL)
    scores = raw_scores(q, k_ptr, k_rows, cfg)
    scores, useful = functors(scores, tile_begin, kv, rows, operands, LOGITS, MASK, cfg, FULL)
    if cfg.SOFTMAX:
        scale = sm_scale * LOG2E if cfg.FOLD else 1.0
        weights, rescale, row_max, row_sum = online_softmax(scores, scale, row_max, row_sum, cfg.GUARD or TAIL)
        acc0 = acc0 * rescale[:, None]
        acc1 = acc1 * rescale[:, None]
    else:
        weights = scores
    if cfg.SAME_KV:
        v_rows = k_rows
    else:
        v_rows = row_offsets(tile_begin, kv_len, table, v_page, v_token, cfg.TILE_KV, cfg.PAGED, cfg.PAGE_SIZE, TAIL)
    v0 = load_rows(v_ptr + v_rows, 0, useful, cfg.V0, cfg.DIM_VO)
    acc0 = dot(weights, v0, acc0, cfg.UPCAST)
    if cfg.V1 > 0:
        v1 = load_rows(v_ptr + v_rows, cfg.V0, useful, cfg.V1, cfg.DIM_VO)
        acc1 = dot(weights, v1, acc1, cfg.UPCAST)
    return acc0, acc1, row_max, row_sum


@triton.jit
def empty_state(cfg: tl.constexpr):
    """(acc0, acc1, row_max, row_sum) before any key."""
    ROWS: tl.constexpr = cfg.TILE_Q
    WIDTH0: tl.constexpr = cfg.V0
    WIDTH1: tl.constexpr = cfg.V1 if cfg.V1 > 0 else 1
    acc0 = tl.zeros([ROWS, WIDTH0], tl.float32)
    acc1 = tl.zeros([ROWS, WIDTH1], tl.float32)
    return acc0, acc1, tl.full([ROWS], NEG_INF, tl.float32), tl.zeros([ROWS], tl.float32)


@triton.jit(do_not_specialize=["operands", "sm_scale", "page_size", "num_pages", "heads_per_item"])
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
    LOGITS: tl.constexpr,
    MASK: tl.constexpr,
    SINK: tl.constexpr,
    OUTPUT: tl.constexpr,
    cfg: tl.constexpr,
):
    """Run the items of CTA `program_id(0)`."""
    q_ptr, q_stride_row, q_stride_head = q_tensor
    k_ptr, k_page, k_token, k_stride_head = k_tensor
    v_ptr, v_page, v_token, v_stride_head = v_tensor
    out_ptr, out_stride_row, out_stride_head = out_tensor
    lse_ptr, lse_stride_row = lse_tensor
    items_ptr, item_segments_ptr, segments_ptr, work_indptr_ptr = work
    qo_indptr_ptr, kv_indptr_ptr, kv_len_ptr, pages_ptr, page_start_ptr = sequences
    q_pos_ptr, kv_pos_ptr = positions
    cta = tl.program_id(0)
    group = cta // heads_per_item
    for item in range(tl.load(work_indptr_ptr + group), tl.load(work_indptr_ptr + group + 1)):
        request, row_start, row_count, kv_head, kv_begin, kv_end, slot = read_item(
            items_ptr, item, cta - group * heads_per_item, heads_per_item
        )
        q_begin = tl.load(qo_indptr_ptr + request)
        qo_len = tl.load(qo_indptr_ptr + request + 1) - q_begin
        kv_len = tl.load(kv_len_ptr + request)
        inside, q_idx, head_in_group = packed_rows(row_start, row_count, cfg.TILE_Q, cfg.GROUP)
        q_row = (q_begin + q_idx).to(tl.int64)
        qo_head = kv_head * cfg.GROUP + head_in_group
        q_pos = row_positions(q_pos_ptr, q_begin, q_idx, qo_len, kv_len, cfg.HAS_Q_POS)
        q_base = q_ptr + q_row * q_stride_row + qo_head.to(tl.int64) * q_stride_head
        q0 = load_rows(q_base, 0, inside, cfg.K0, cfg.DIM_QK)
        q1 = load_rows(q_base, cfg.K0, inside, cfg.K1, cfg.DIM_QK) if cfg.K1 > 0 else q0
        rows = (q_pos, q_idx, qo_head, kv_head, request, qo_len)
        head = kv_head.to(tl.int64)
        caches = (k_ptr + head * k_stride_head, v_ptr + head * v_stride_head, k_page, k_token, v_page, v_token)
        table = (pages_ptr, tl.load(page_start_ptr + request), page_size, num_pages)
        kv = (kv_len, sm_scale, kv_pos_ptr + tl.load(kv_indptr_ptr + request))
        acc0, acc1, row_max, row_sum = empty_state(cfg)
        first = tl.load(item_segments_ptr + item * 2)
        for segment in range(first, first + tl.load(item_segments_ptr + item * 2 + 1)):
            low = tl.maximum(tl.load(segments_ptr + segment * 3), kv_begin)
            high = tl.minimum(tl.load(segments_ptr + segment * 3 + 1), kv_end)
            whole = low
            if tl.load(segments_ptr + segment * 3 + 2) != 0:
                whole = low + tl.maximum(high - low, 0) // cfg.TILE_KV * cfg.TILE_KV
            for at in tl.range(low, whole, cfg.TILE_KV, num_stages=cfg.STAGES):
                acc0, acc1, row_max, row_sum = visit_tile(
                    (acc0, acc1, row_max, row_sum),
                    (q0, q1),
                    at,
                    caches,
                    table,
                    rows,
                    kv,
                    operands,
                    LOGITS,
                    MASK,
                    cfg,
                    True,
                )
            for at in tl.range(whole, high, cfg.TILE_KV, num_stages=cfg.STAGES):
                acc0, acc1, row_max, row_sum = visit_tile(
                    (acc0, acc1, row_max, row_sum),
                    (q0, q1),
                    at,
                    caches,
                    table,
                    rows,
                    kv,
                    operands,
                    LOGITS,
                    MASK,
                    cfg,
                    False,
                )
        lse = row_max
        if cfg.SOFTMAX:
            factor, lse = close_softmax(row_max, row_sum)
            acc0 = acc0 * factor[:, None]
            acc1 = acc1 * factor[:, None]
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
