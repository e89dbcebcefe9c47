"""Online softmax in base 2, with a row that has seen no key kept apart from one with very negative logits."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NEG_INF = tl.constexpr(float("-inf"))


@triton.jit
def dot(a, b, acc, UPCAST: tl.constexpr):
    """``acc + a @ b`` in fp32, `a` rounded to the type of `b`; UPCAST: operands to fp32 instead.

    Triton's interpreter multiplies bf16 wrongly and truncates where a GPU rounds to it: its products are in fp32.

    One row of `a` is multiplied and summed in fp32 without tensor cores, which have no tile of one row.
    """
    if a.shape[0] == 1:
        return acc + tl.sum(tl.trans(a.to(tl.float32)) * b.to(tl.float32), 0)[None, :]
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(a.to(b.dtype), b, acc, input_precision="ieee")


@triton.jit
def online_softmax(scores, scale, row_max, row_sum, GUARD: tl.constexpr):
    """Weights of one tile and the rescaled statistics.

    scores * scale is in base 2 and scale > 0 (the max is taken before it: one FMA a score, not two operations).
    GUARD: a row may have no visible key yet; its max stays -inf, its weights 0.
    Returns (weights, rescale of what was accumulated, row_max, row_sum).
    """
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
    anchor = tl.where(new_max == NEG_INF, 0.0, new_max) if GUARD else new_max
    weights = tl.exp2(scores * scale - anchor[:, None])
    rescale = tl.exp2(row_max - anchor)
    return weights, rescale, new_max, row_sum * rescale + tl.sum(weights, 1)


@triton.jit
def close_softmax(row_max, row_sum):
    """(factor on the accumulated output, natural-log lse); (0, -inf) for a row without a visible key.

    The sum of such a row is exactly 0; that of a row whose logits are all NaN is NaN, and so is its output.
    """
    empty = row_sum == 0.0
    factor = tl.where(empty, 0.0, 1.0 / tl.where(empty, 1.0, row_sum))
    lse = tl.where(empty, NEG_INF, (row_max + tl.log2(tl.where(empty, 1.0, row_sum))) * LN2)
    return factor, lse


@triton.jit
def add_sink(lse, sink):
    """(factor on the output, lse) once a sink logit has joined the denominator."""
    top = tl.maximum(lse, sink)
    anchor = tl.where(top == NEG_INF, 0.0, top)
    total = tl.exp2((lse - anchor) * LOG2E) + tl.exp2((sink - anchor) * LOG2E)
    joined = tl.where(top == NEG_INF, NEG_INF, anchor + tl.log2(tl.where(top == NEG_INF, 1.0, total)) * LN2)
    factor = tl.where(lse == NEG_INF, 0.0, tl.exp2((lse - anchor) * LOG2E) / tl.where(top == NEG_INF, 1.0, total))
    return factor, joined
