"""A consumer warpgroup of the prefill kernel: 64 packed rows of q against the kv tiles that the producer brings.

FlashAttention-3's order: the product with the values of a tile runs under the scores and the softmax of the next
one, the last of an item under the first scores of the next item.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attnloom.kernels.gluon.clean import clean_values
from attnloom.kernels.gluon.epilogue import beside, close_rows, write_item
from attnloom.kernels.gluon.functors import (
    cut_off,
    key_positions,
    masked,
    packed_rows,
    row_positions,
    softmax_scale,
    transformed,
)
from attnloom.kernels.gluon.items import ITEMS, item_fields, item_is_there
from attnloom.kernels.gluon.rows import load_queries
from attnloom.kernels.gluon.softmax import anchor_of, no_rows, partial_sums, row_max
from attnloom.kernels.gluon.walk import FLAGS, LAST, MASKED, published

ROWS = gl.constexpr(64)  # packed rows of a warpgroup


@gluon.jit
def empty_scores(KEYS: gl.constexpr):
    """Zeros in the layout of scores."""
    return gl.zeros([ROWS, KEYS], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16]))


@gluon.jit
def tile_of(stages, st, KEYS: gl.constexpr, WIDTH: gl.constexpr):
    """A stage as a matrix [keys, width]."""
    return stages.index(st).reshape([KEYS, WIDTH])


@gluon.jit
def issue_scores(q, stages, st, cfg: gl.constexpr):
    """Start the products q·k of a tile, [ROWS, TILE_KV]."""
    k0 = tile_of(stages[0], st, cfg.TILE_KV, cfg.K0)
    scores = warpgroup_mma(q[0], k0.permute((1, 0)), empty_scores(cfg.TILE_KV), use_acc=False, is_async=True)
    if cfg.K1 > 0:
        k1 = tile_of(stages[1], st, cfg.TILE_KV, cfg.K1)
        scores = warpgroup_mma(q[1], k1.permute((1, 0)), scores, is_async=True)
    return scores


@gluon.jit
def issue_values(weights, stages, st, acc, cfg: gl.constexpr):
    """Start the products of weights (as the first operand) with the values of a tile."""
    acc0, acc1 = acc
    acc0 = warpgroup_mma(weights, tile_of(stages[0], st, cfg.TILE_KV, cfg.V0), acc0, is_async=True)
    if cfg.V1 > 0:
        again = gl.convert_layout(weights, gl.DotOperandLayout(0, acc1.type.layout, 2))
        acc1 = warpgroup_mma(again, tile_of(stages[1], st, cfg.TILE_KV, cfg.V1), acc1, is_async=True)
    return acc0, acc1


@gluon.jit
def see_gathered(cfg: gl.constexpr):
    """Rows that were copied by threads, not by TMA, become visible to products."""
    if cfg.GATHER:
        fence_async_shared()


@gluon.jit
def wait_values(acc, cfg: gl.constexpr):
    """Wait for all products in flight, the state's among them."""
    acc0, acc1 = acc
    if cfg.V1 > 0:
        acc0, acc1 = warpgroup_mma_wait(0, deps=[acc0, acc1])
    else:
        acc0 = warpgroup_mma_wait(0, deps=[acc0])
    return acc0, acc1


@gluon.jit
def as_operand(weights, like, dtype: gl.constexpr):
    """Weights as the first operand of their product with values; like: the accumulator."""
    return gl.convert_layout(weights.to(dtype), gl.DotOperandLayout(0, like.type.layout, 2))


@gluon.jit
def empty_piece(WIDTH: gl.constexpr):
    """An accumulator of one piece before any key."""
    return gl.zeros([ROWS, WIDTH], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16]))


@gluon.jit
def empty_values(cfg: gl.constexpr):
    """The two pieces of an accumulator; the second is a number where there is none."""
    acc0 = empty_piece(cfg.V0)
    if cfg.V1 > 0:
        return acc0, empty_piece(cfg.V1)
    else:  # noqa: RET505 - types differ: only one of the two returns is compiled
        return acc0, 0.0


@gluon.jit
def functor_scores(
    scores, tag, c, turn, number, bufs, bars, inputs, LOGITS: gl.constexpr, MASK: gl.constexpr, cfg: gl.constexpr,
    WG: gl.constexpr,
):  # fmt: skip
    """(scores, turn) through the functors; the CTA's c-th tile is masked and its values cleaned if its tag says so.

    Fields of the item, the number-th, are read where they are needed: registers are scarce.
    """
    positions, kv_indptr_ptr, operands, sm_scale = inputs
    layout: gl.constexpr = scores.type.layout
    KEYS: gl.constexpr = cfg.TILE_KV
    at = tag & ~FLAGS
    if LOGITS is not None:
        item, _limit = item_fields(bufs[3], number % ITEMS, 4)
        rows = score_rows(item, positions, layout, cfg, WG)
        kv_pos = score_keys(at, item, positions, kv_indptr_ptr, layout, cfg)
        scores = transformed(scores, kv_pos, rows, (item[6], sm_scale), operands, LOGITS, cfg, 0)
    else:
        scores = transformed(scores, 0, (0, 0, 0, 0, 0, 0), (0, sm_scale), operands, None, cfg, 0)
    if (tag & MASKED) != 0:
        item, limit = item_fields(bufs[3], number % ITEMS, 4)
        rows = score_rows(item, positions, layout, cfg, WG)
        kv_pos = score_keys(at, item, positions, kv_indptr_ptr, layout, cfg)
        index = at + gl.arange(0, KEYS, layout=gl.SliceLayout(0, layout))
        if MASK is not None:
            scores = masked(scores, kv_pos, rows, (item[6], sm_scale), operands, MASK, cfg, 0)
        if at + KEYS > limit:
            scores = cut_off(scores, index, limit, cfg, 0)
        turn = clean_values(scores, tag, limit, c, turn, bufs, bars, cfg, WG)
    return scores, turn


@gluon.jit
def score_rows(item, positions, layout: gl.constexpr, cfg: gl.constexpr, WG: gl.constexpr):
    """(q_pos, q_idx, qo_head, kv_head, batch, qo_len) of the warpgroup's rows, as functors take them."""
    row_start, row_count, kv_head, _slot, q_begin, qo_len, kv_len, request = item
    _inside, q_idx, head = packed_rows(row_start, WG * ROWS, row_count, ROWS, cfg.GROUP, gl.SliceLayout(1, layout))
    q_pos = row_positions(positions[0], q_begin, q_idx, qo_len, kv_len, cfg)
    return q_pos, q_idx, kv_head * cfg.GROUP + head, kv_head, request, qo_len


@gluon.jit
def score_keys(at, item, positions, kv_indptr_ptr, layout: gl.constexpr, cfg: gl.constexpr):
    """kv_pos of a tile's keys."""
    KEYS: gl.constexpr = cfg.TILE_KV
    _row_start, _row_count, _kv_head, _slot, _q_begin, _qo_len, kv_len, request = item
    index = at + gl.arange(0, KEYS, layout=gl.SliceLayout(0, layout))
    if cfg.HAS_KV_POS:
        return key_positions(positions[1] + gl.load(kv_indptr_ptr + request), index, kv_len, cfg)
    return index


@gluon.jit
def first_weights(scores, scale, cfg: gl.constexpr):
    """(weights, maximum, partial sums) of an item's first tile."""
    if cfg.SOFTMAX:
        top = row_max(scores) * scale
        weights = gl.exp2(scores * scale - anchor_of(top)[:, None])
        return weights, top, partial_sums(weights)
    top, sums = no_rows(scores)
    return scores, top, sums


@gluon.jit
def other_tiles(
    acc,
    weights,
    row,
    tag,
    c,
    turn,
    number,
    bufs,
    bars,
    inputs,
    LOGITS: gl.constexpr,
    MASK: gl.constexpr,
    cfg: gl.constexpr,
    WG: gl.constexpr,
):
    """The item's tiles after the first. Weights of the tile before come in, those of the last go out."""
    acc0, acc1 = acc
    top, sums = row
    _q_full, _q_empty, k_full, k_empty, v_full, v_empty, _cleaning, _item_empty = bars
    scale = softmax_scale(inputs[3], cfg)
    q = query_slots(bufs[0], number % cfg.Q_STAGES, cfg, WG)
    operand = as_operand(weights, acc0, q[0].dtype)
    while (tag & LAST) == 0:
        st = c % cfg.K_STAGES
        past = (c - 1) % cfg.STAGES
        past_phase = ((c - 1) // cfg.STAGES) & 1
        mbarrier.wait(k_full.index(st), (c // cfg.K_STAGES) & 1)
        see_gathered(cfg)
        scores = issue_scores(q, bufs[1], st, cfg)
        tag = published(bufs[4].index(st), 4)
        mbarrier.wait(v_full.index(past), past_phase)
        see_gathered(cfg)
        acc0, acc1 = issue_values(operand, bufs[2], past, (acc0, acc1), cfg)
        scores = warpgroup_mma_wait(1 if cfg.V1 == 0 else 2, deps=[scores])
        mbarrier.arrive(k_empty.index(st))
        scores, turn = functor_scores(scores, tag, c, turn, number, bufs, bars, inputs, LOGITS, MASK, cfg, WG)
        if cfg.SOFTMAX:
            new_top = gl.maximum(top, row_max(scores) * scale)
            anchor = anchor_of(new_top)
            rescale = gl.exp2(top - anchor)
            # complete already: it ends a basic block, so that ptxas does not hoist the wait below above the maxima
            mbarrier.wait(v_full.index(past), past_phase)
            acc0, acc1 = wait_values((acc0, acc1), cfg)
            mbarrier.arrive(v_empty.index(past))
            weights = gl.exp2(scores * scale - anchor[:, None])
            operand = as_operand(weights, acc0, q[0].dtype)
            acc0 = acc0 * beside(rescale, acc0)
            if cfg.V1 > 0:
                acc1 = acc1 * beside(rescale, acc1)
            sums = sums * beside(rescale, sums) + partial_sums(weights)
            top = new_top
        else:
            acc0, acc1 = wait_values((acc0, acc1), cfg)
            mbarrier.arrive(v_empty.index(past))
            weights = scores
            operand = as_operand(weights, acc0, q[0].dtype)
        c += 1
    return (acc0, acc1), operand, top, sums, c, turn


@gluon.jit
def query_slot(q_smem, slot, WIDTH: gl.constexpr, WG: gl.constexpr):
    """One piece of the warpgroup's rows of q in shared memory."""
    return q_smem.index(slot * 2 + WG).reshape([ROWS, WIDTH])


@gluon.jit
def query_slots(q_smem, slot, cfg: gl.constexpr, WG: gl.constexpr):
    """Both pieces; the first again where there is one."""
    q0 = query_slot(q_smem[0], slot, cfg.K0, WG)
    if cfg.K1 > 0:
        return q0, query_slot(q_smem[1], slot, cfg.K1, WG)
    else:  # noqa: RET505
        return q0, q0


@gluon.jit
def finish_values(operand, stages, c, acc, bars, cfg: gl.constexpr):
    """The products of an item's last tile, the one before the CTA's c-th; all that is in flight is complete then."""
    v_full, v_empty = bars[4], bars[5]
    past = (c - 1) % cfg.STAGES
    mbarrier.wait(v_full.index(past), ((c - 1) // cfg.STAGES) & 1)
    see_gathered(cfg)
    acc = issue_values(operand, stages, past, acc, cfg)
    acc = wait_values(acc, cfg)
    mbarrier.arrive(v_empty.index(past))
    return acc


@gluon.jit
def next_item(number, bufs, bars, cfg: gl.constexpr):
    """Whether the CTA has a number-th item; if so its rows of q are there, unless consumers copy them."""
    mbarrier.wait(bars[0].index(number % cfg.Q_STAGES), (number // cfg.Q_STAGES) & 1)
    return item_is_there(bufs[3], number % ITEMS, 4)


@gluon.jit
def first_scores(number, c, q_tensor, bufs, bars, cfg: gl.constexpr, WG: gl.constexpr):
    """Start the scores of an item's first tile, the CTA's c-th: (scores, its tag)."""
    q = query_slots(bufs[0], number % cfg.Q_STAGES, cfg, WG)
    if not cfg.Q_TMA:
        item, _limit = item_fields(bufs[3], number % ITEMS, 4)
        load_queries(q, q_tensor, item, WG * ROWS, cfg)
    st = c % cfg.K_STAGES
    mbarrier.wait(bars[2].index(st), (c // cfg.K_STAGES) & 1)
    see_gathered(cfg)
    return issue_scores(q, bufs[1], st, cfg), published(bufs[4].index(st), 4)


@gluon.jit
def finish_item(
    acc, row, number, bufs, bars, tensors, inputs, SINK: gl.constexpr, OUTPUT: gl.constexpr, cfg: gl.constexpr,
    WG: gl.constexpr,
):  # fmt: skip
    """Write an item; this warpgroup has made its last product with q: the output passes through its place."""
    item, _limit = item_fields(bufs[3], number % ITEMS, 4)
    q = query_slots(bufs[0], number % cfg.Q_STAGES, cfg, WG)
    acc0, acc1, lse = close_rows(acc, row[0], row[1], cfg)
    write_item((acc0, acc1), lse, item, tensors, q, inputs[0], inputs[2], WG * ROWS, SINK, OUTPUT, cfg)
    fence_async_shared()
    mbarrier.arrive(bars[1].index(number % cfg.Q_STAGES))
    mbarrier.arrive(bars[7].index(number % ITEMS))


@gluon.jit
def consume(
    bufs,
    bars,
    q_tensor,
    tensors,
    inputs,
    LOGITS: gl.constexpr,
    MASK: gl.constexpr,
    SINK: gl.constexpr,
    OUTPUT: gl.constexpr,
    cfg: gl.constexpr,
    WG: gl.constexpr,
):
    """Every item of this CTA. bufs: (q pieces, k pieces, v pieces, items, tags, seen); c counts its tiles."""
    OVERLAP: gl.constexpr = cfg.Q_STAGES > 1
    k_empty = bars[3]
    scale = softmax_scale(inputs[3], cfg)
    c = 0
    number = 0
    turn = 0
    more = next_item(number, bufs, bars, cfg)
    weights = empty_scores(cfg.TILE_KV)
    top, sums = no_rows(weights)
    tag = LAST + 0 * c
    if more:
        scores, tag = first_scores(number, c, q_tensor, bufs, bars, cfg, WG)
        scores = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(k_empty.index(c % cfg.K_STAGES))
        scores, turn = functor_scores(scores, tag, c, turn, number, bufs, bars, inputs, LOGITS, MASK, cfg, WG)
        weights, top, sums = first_weights(scores, scale, cfg)
        c += 1
    while more:
        acc, operand, top, sums, c, turn = other_tiles(
            empty_values(cfg), weights, (top, sums), tag, c, turn, number, bufs, bars, inputs, LOGITS, MASK, cfg, WG
        )
        if OVERLAP:
            more = next_item(number + 1, bufs, bars, cfg)
            if more:
                # the last product of this item runs beside the first scores of the next, these beside its end
                scores, tag = first_scores(number + 1, c, q_tensor, bufs, bars, cfg, WG)
                acc = finish_values(operand, bufs[2], c, acc, bars, cfg)
                scores = warpgroup_mma_wait(0, deps=[scores])
                mbarrier.arrive(k_empty.index(c % cfg.K_STAGES))
                finish_item(acc, (top, sums), number, bufs, bars, tensors, inputs, SINK, OUTPUT, cfg, WG)
                scores, turn = functor_scores(
                    scores, tag, c, turn, number + 1, bufs, bars, inputs, LOGITS, MASK, cfg, WG
                )
                weights, top, sums = first_weights(scores, scale, cfg)
                c += 1
            else:
                acc = finish_values(operand, bufs[2], c, acc, bars, cfg)
                finish_item(acc, (top, sums), number, bufs, bars, tensors, inputs, SINK, OUTPUT, cfg, WG)
        else:
            acc = finish_values(operand, bufs[2], c, acc, bars, cfg)
            finish_item(acc, (top, sums), number, bufs, bars, tensors, inputs, SINK, OUTPUT, cfg, WG)
            more = next_item(number + 1, bufs, bars, cfg)
            if more:
                scores, tag = first_scores(number + 1, c, q_tensor, bufs, bars, cfg, WG)
                scores = warpgroup_mma_wait(0, deps=[scores])
                mbarrier.arrive(k_empty.index(c % cfg.K_STAGES))
                scores, turn = functor_scores(
                    scores, tag, c, turn, number + 1, bufs, bars, inputs, LOGITS, MASK, cfg, WG
                )
                weights, top, sums = first_weights(scores, scale, cfg)
                c += 1
        number += 1
