"""One kv tile joins the state of a few rows of q, with the operands of both products swapped.

Scores are [keys, rows], the accumulated output [dims, rows]: the tensor cores' 64 rows are filled by keys and dims,
and the few rows of q are their columns.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from attnloom.kernels.gluon.functors import (
    cut_off,
    key_positions,
    masked,
    packed_rows,
    row_positions,
    softmax_scale,
    transformed,
)
from attnloom.kernels.gluon.gather import rows_layout
from attnloom.kernels.gluon.softmax import anchor_of
from attnloom.kernels.gluon.walk import FLAGS, MASKED
from attnloom.kernels.triton.softmax import NEG_INF

CHUNK = gl.constexpr(16)  # rows of values that pass through registers at a time


@triton.constexpr_function
def product_layout(rows):
    """The layout of both products: a warpgroup over keys or dims, `rows` columns."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 16])


@gluon.jit
def fresh(x, moment):
    """`x` as the compiler cannot know it: what follows from it is computed anew where the tile or item is `moment`."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r", [x, moment], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def item_rows(item, of_request, q_pos_ptr, moment, cfg: gl.constexpr):
    """(inside, what functors see of an item's rows: (q_pos, q_idx, qo_head, kv_head, request, qo_len)).

    Many rows are more than a thread can keep in registers beside the state.
    """
    request, row_start, row_count, kv_head = item[0], item[1], item[2], item[3]
    q_begin, qo_len, kv_len = of_request[0], of_request[1], of_request[2]
    columns: gl.constexpr = gl.SliceLayout(0, product_layout(cfg.TILE_Q))
    if cfg.TILE_Q >= 32:
        row_start = fresh(row_start, moment)
    inside, q_idx, head = packed_rows(row_start, 0, row_count, cfg.TILE_Q, cfg.GROUP, columns)
    q_pos = row_positions(q_pos_ptr, q_begin, q_idx, qo_len, kv_len, cfg)
    return inside, (q_pos, q_idx, kv_head * cfg.GROUP + head, kv_head, request, qo_len)


@gluon.jit
def partial_sums(weights):
    """Column sums per thread, [rows / 16, 8, columns]: a thread holds every eighth row of 16."""
    rows: gl.constexpr = weights.shape[0]
    return gl.sum(weights.reshape([rows // 16, 2, 8, weights.shape[1]]), axis=1)


@gluon.jit
def whole_sums(sums, layout: gl.constexpr):
    """Column sums of `partial_sums`."""
    return gl.convert_layout(gl.sum(gl.sum(sums, axis=1), axis=0), layout)


@gluon.jit
def empty_state(cfg: gl.constexpr):
    """(acc0, acc1, row maximum, partial sums) before any key; a second piece that is not there is a scalar."""
    layout: gl.constexpr = product_layout(cfg.TILE_Q)
    acc0 = gl.full([cfg.V0, cfg.TILE_Q], 0.0, gl.float32, layout)
    acc1 = gl.full([cfg.V1, cfg.TILE_Q], 0.0, gl.float32, layout) if cfg.V1 > 0 else gl.to_tensor(0.0)
    top = gl.full([cfg.TILE_Q], NEG_INF, gl.float32, gl.SliceLayout(0, layout))
    return acc0, acc1, top, partial_sums(gl.full([cfg.TILE_KV, cfg.TILE_Q], 0.0, gl.float32, layout))


@gluon.jit
def raw_scores(q, rings, st, cfg: gl.constexpr):
    """k · q of a stage of keys, fp32 [TILE_KV, TILE_Q]."""
    zero = gl.full([cfg.TILE_KV, cfg.TILE_Q], 0.0, gl.float32, product_layout(cfg.TILE_Q))
    k0 = rings[0].index(st).reshape([cfg.TILE_KV, cfg.K0])
    scores = warpgroup_mma(k0, q[0].permute((1, 0)), zero, use_acc=False, is_async=True)
    if cfg.K1 > 0:
        k1 = rings[1].index(st).reshape([cfg.TILE_KV, cfg.K1])
        scores = warpgroup_mma(k1, q[1].permute((1, 0)), scores, is_async=True)
    return warpgroup_mma_wait(0, deps=[scores])


@gluon.jit
def keep_rows(values, useful, WIDTH: gl.constexpr, cfg: gl.constexpr):
    """Zero the rows of a stage that are not useful, int32 [TILE_KV] in shared memory."""
    wide: gl.constexpr = rows_layout(WIDTH, 8, 4)
    stage = values.reshape([cfg.TILE_KV, WIDTH])
    for i in gl.static_range(cfg.TILE_KV // CHUNK):
        keep = useful.slice(i * CHUNK, CHUNK).load(gl.SliceLayout(1, wide)) != 0
        part = stage.slice(i * CHUNK, CHUNK)
        old = part.load(wide)
        part.store(gl.where(keep[:, None], old, gl.zeros_like(old)))


@gluon.jit
def clean_values(scores, index, limit, rings, st, useful, cfg: gl.constexpr):
    """Zero the values of a tile's keys that no row sees: they may be NaN, and would meet weights of 0.

    With OWNS only keys from `limit` on are not the request's own; gathered rows from there on are zeros already.
    """
    HIDDEN: gl.constexpr = NEG_INF if cfg.SOFTMAX else 0.0
    if cfg.OWNS:
        useful.store((index < limit).to(gl.int32))
    else:
        useful.store(gl.max((scores != HIDDEN).to(gl.int32), axis=1))
    keep_rows(rings[0].index(st), useful, cfg.V0, cfg)
    if cfg.V1 > 0:
        keep_rows(rings[1].index(st), useful, cfg.V1, cfg)


@gluon.jit
def online_softmax(scores, scale, top, total):
    """Weights of one tile and the rescaled statistics: (weights, rescale of what was accumulated, top, total)."""
    new_top = gl.maximum(top, gl.max(scores, axis=0) * scale)
    anchor = anchor_of(new_top)
    weights = gl.exp2(scores * scale - anchor[None, :])
    rescale = gl.exp2(top - anchor)
    wide: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(0, total.type.layout))
    total = total * gl.convert_layout(rescale, wide)[None, :][None, :, :] + partial_sums(weights)
    return weights, rescale, new_top, total


@gluon.jit
def add_values(acc0, acc1, weights, rings, st, p_smem, cfg: gl.constexpr):
    """The products of a stage of values with the weights, which pass through shared memory, join the accumulators."""
    p_smem.store(weights.to(p_smem.dtype))
    fence_async_shared()
    v0 = rings[0].index(st).reshape([cfg.TILE_KV, cfg.V0])
    acc0 = warpgroup_mma(v0.permute((1, 0)), p_smem, acc0, is_async=True)
    if cfg.V1 > 0:
        v1 = rings[1].index(st).reshape([cfg.TILE_KV, cfg.V1])
        acc1 = warpgroup_mma(v1.permute((1, 0)), p_smem, acc1, is_async=True)
        acc0, acc1 = warpgroup_mma_wait(0, deps=[acc0, acc1])
    else:
        acc0 = warpgroup_mma_wait(0, deps=[acc0])
    return acc0, acc1


@gluon.jit
def visit_tile(
    state, q, bufs, st, tag, item, of_request, positions, inputs, LOGITS: gl.constexpr, MASK: gl.constexpr,
    cfg: gl.constexpr,
):  # fmt: skip
    """The tile in stage st joins the state; its tag says where it lies and whether a mask may hide some of it.

    positions is (pointer to q_pos, to the request's first kv_pos), inputs is (operands, sm_scale).
    """
    acc0, acc1, top, total = state
    k_rings, v_rings, p_smem, useful = bufs
    operands, sm_scale = inputs
    at = tag & ~FLAGS
    limit = item[5]
    kv = (of_request[2], sm_scale)
    index = at + gl.arange(0, cfg.TILE_KV, layout=gl.SliceLayout(1, product_layout(cfg.TILE_Q)))
    kv_pos = key_positions(positions[1], index, kv[0], cfg)
    scores = raw_scores(q, k_rings, st, cfg)
    _inside, rows = item_rows(item, of_request, positions[0], tag, cfg)
    scores = transformed(scores, kv_pos, rows, kv, operands, LOGITS, cfg, 1)
    if (tag & MASKED) != 0:
        _inside, rows = item_rows(item, of_request, positions[0], at, cfg)
        if MASK is not None:
            scores = masked(scores, kv_pos, rows, kv, operands, MASK, cfg, 1)
        scores = cut_off(scores, index, limit, cfg, 1)
        if not cfg.OWNS or (not cfg.GATHER and at + cfg.TILE_KV > limit):
            clean_values(scores, index, limit, v_rings, st, useful, cfg)
    weights = scores
    if cfg.SOFTMAX:
        weights, rescale, top, total = online_softmax(scores, softmax_scale(sm_scale, cfg), top, total)
        acc0 = acc0 * rescale[None, :]
        if cfg.V1 > 0:
            acc1 = acc1 * rescale[None, :]
    acc0, acc1 = add_values(acc0, acc1, weights, v_rings, st, p_smem, cfg)
    return acc0, acc1, top, total
