"""One kv tile joins the state of a q tile: scores, functors, online softmax, product with the values."""

import triton
import triton.language as tl

from attnloom.kernels.fp8 import dequantised
from attnloom.kernels.triton.paging import row_offsets
from attnloom.kernels.triton.rows import load_rows
from attnloom.kernels.triton.softmax import LOG2E, NEG_INF, dot, online_softmax

FULL = tl.constexpr(0)  # every key of the tile exists and is visible to every row
PARTIAL = tl.constexpr(1)
EITHER = tl.constexpr(2)  # tiles within the range `full` are full; all keys below kv_len are the request's own


@triton.jit
def empty_state(cfg: tl.constexpr):
    """(acc0, acc1, row_max, row_sum) before any key."""
    ROWS: tl.constexpr = cfg.TILE_Q
    WIDTH0: tl.constexpr = cfg.V0
    WIDTH1: tl.constexpr = cfg.V1 if cfg.V1 > 0 else 1
    acc0 = tl.zeros([ROWS, WIDTH0], tl.float32)
    acc1 = tl.zeros([ROWS, WIDTH1], tl.float32)
    return acc0, acc1, tl.full([ROWS], NEG_INF, tl.float32), tl.zeros([ROWS], tl.float32)


@triton.jit
def load_cached(base, dim_begin: tl.constexpr, inside, q, WIDTH: tl.constexpr, DIM: tl.constexpr, cfg: tl.constexpr):
    """`load_rows` of a cache, as numbers that a product with `q` takes; scales are left to who uses them."""
    rows = load_rows(base, dim_begin, inside, WIDTH, DIM)
    FORMAT: tl.constexpr = cfg.KV_FP8
    if FORMAT != "":
        rows = dequantised(rows, FORMAT, cfg.FP8_CAST, tl.float32 if cfg.UPCAST else q.dtype)
    return rows


@triton.jit
def raw_scores(q, k_ptr, offsets, cfg: tl.constexpr):
    """q · k of one kv tile, fp32 [TILE_Q, TILE_KV]."""
    q0, q1 = q
    ROWS: tl.constexpr = cfg.TILE_Q
    KEYS: tl.constexpr = cfg.TILE_KV
    every = tl.full([KEYS], True, tl.int1)
    k0 = load_cached(k_ptr + offsets, 0, every, q0, cfg.K0, cfg.DIM_QK, cfg)
    scores = dot(q0, tl.trans(k0), tl.zeros([ROWS, KEYS], tl.float32), cfg.UPCAST)
    if cfg.K1 > 0:
        k1 = load_cached(k_ptr + offsets, cfg.K0, every, q1, cfg.K1, cfg.DIM_QK, cfg)
        scores = dot(q1, tl.trans(k1), scores, cfg.UPCAST)
    return scores


@triton.jit
def transformed(scores, keys, rows, kv, operands, LOGITS: tl.constexpr, cfg: tl.constexpr):
    """Logits functor on raw scores; the result is in base 2 (times scale) for softmax, a weight without.

    keys is (index, kv_pos) of the tile, each [TILE_KV].
    """
    q_pos, q_idx, qo_head, kv_head, batch, qo_len = rows
    kv_len, sm_scale, _ = kv
    if not cfg.FOLD:
        scores = scores * sm_scale
    if LOGITS is not None:
        q_pos, q_idx, qo_head, kv_pos = q_pos[:, None], q_idx[:, None], qo_head[:, None], keys[1][None, :]
        scores = LOGITS(scores, q_pos, kv_pos, q_idx, qo_head, kv_head, batch, qo_len, kv_len, operands)
        # a functor that leaves logits out may depend on rows, on keys or on nothing
        scores = tl.broadcast_to(tl.cast(scores, tl.float32), [cfg.TILE_Q, cfg.TILE_KV])
    if cfg.SOFTMAX and not cfg.FOLD:
        scores = scores * LOG2E
    return scores


@triton.jit
def visible(keys, rows, kv, operands, MASK: tl.constexpr, cfg: tl.constexpr):
    """bool, broadcastable to [TILE_Q, TILE_KV]: the key exists and the mask shows it to the row."""
    q_pos, q_idx, qo_head, kv_head, batch, qo_len = rows
    kv_len, _, _ = kv
    index, kv_pos = keys
    keep = (index < kv_len)[None, :]
    if MASK is not None:
        q_pos, q_idx, qo_head, kv_pos = q_pos[:, None], q_idx[:, None], qo_head[:, None], kv_pos[None, :]
        keep = keep & MASK(q_pos, kv_pos, q_idx, qo_head, kv_head, batch, qo_len, kv_len, operands)
    return keep


@triton.jit
def masked(
    scores, tile_begin, keys, full, rows, kv, operands, MASK: tl.constexpr, cfg: tl.constexpr, KIND: tl.constexpr
):
    """Scores with the mask applied, and the keys whose values count, bool [TILE_KV].

    PARTIAL: those that some row of the tile sees; what lies at another key, perhaps in a page outside the window,
    may be NaN and must not meet its weight of 0.
    """
    index, _ = keys
    HIDDEN: tl.constexpr = NEG_INF if cfg.SOFTMAX else 0.0
    useful = index < kv[0]
    if KIND == PARTIAL:
        keep = visible(keys, rows, kv, operands, MASK, cfg)
        if MASK is not None:
            useful = tl.max(tl.broadcast_to(keep, [cfg.TILE_Q, cfg.TILE_KV]).to(tl.int32), 0) > 0
        scores = tl.where(keep, scores, HIDDEN)
    elif (tile_begin < full[0]) | (tile_begin + cfg.TILE_KV > full[1]):
        scores = tl.where(visible(keys, rows, kv, operands, MASK, cfg), scores, HIDDEN)
    return scores, useful


@triton.jit
def visit_tile(
    state,
    q,
    tile_begin,
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
    """One kv tile joins the state; full is (begin, end) of the keys whose tiles need no mask, read if EITHER."""
    acc0, acc1, row_max, row_sum = state
    k_ptr, v_ptr, k_page, k_token, v_page, v_token = caches
    kv_len, sm_scale, kv_pos_ptr = kv
    TAIL: tl.constexpr = KIND != FULL
    index = tile_begin + tl.arange(0, cfg.TILE_KV)
    kv_pos = tl.load(kv_pos_ptr + tl.minimum(index, kv_len - 1)) if cfg.HAS_KV_POS else index
    keys = (index, kv_pos)
    k_rows = row_offsets(tile_begin, kv_len, table, k_page, k_token, cfg.TILE_KV, cfg.PAGED, cfg.PAGE_SIZE, TAIL)
    scores = raw_scores(q, k_ptr, k_rows, cfg)
    scores = transformed(scores, keys, rows, kv, operands, LOGITS, cfg)
    useful = tl.full([cfg.TILE_KV], True, tl.int1)
    if TAIL:
        scores, useful = masked(scores, tile_begin, keys, full, rows, kv, operands, MASK, cfg, KIND)
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
    v0 = load_cached(v_ptr + v_rows, 0, useful, q[0], cfg.V0, cfg.DIM_VO, cfg)
    acc0 = dot(weights, v0, acc0, cfg.UPCAST)
    if cfg.V1 > 0:
        v1 = load_cached(v_ptr + v_rows, cfg.V0, useful, q[0], cfg.V1, cfg.DIM_VO, cfg)
        acc1 = dot(weights, v1, acc1, cfg.UPCAST)
    return acc0, acc1, row_max, row_sum
