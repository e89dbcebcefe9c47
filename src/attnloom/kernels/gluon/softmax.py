"""Online softmax on a warpgroup's scores [rows, keys], statistics in base 2."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnloom.kernels.triton.softmax import NEG_INF


@gluon.jit
def row_max(scores):
    """Greatest score of each row. A thread holds 2 of any 8 neighbouring columns, in chains without shuffles first."""
    rows: gl.constexpr = gl.SliceLayout(1, scores.type.layout)
    chains = gl.max(scores.reshape([scores.shape[0], scores.shape[1] // 8, 8]), axis=1)
    return gl.convert_layout(gl.max(chains, axis=1), rows)


@gluon.jit
def partial_sums(weights):
    """Row sums per thread, [rows, 8]; `whole_sums` adds threads, once an item."""
    return gl.sum(weights.reshape([weights.shape[0], weights.shape[1] // 8, 8]), axis=1)


@gluon.jit
def whole_sums(sums, layout: gl.constexpr):
    """Row sums of `partial_sums`, in a row layout."""
    return gl.convert_layout(gl.sum(sums, axis=1), layout)


@gluon.jit
def anchor_of(top):
    """What is subtracted in the exponent: a row that has seen no key yet has the maximum -inf and the anchor 0."""
    return gl.where(top == NEG_INF, 0.0, top)


@gluon.jit
def no_rows(like):
    """(maximum, partial sums) before any key; like: scores."""
    ROWS: gl.constexpr = like.shape[0]
    top = gl.full([ROWS], NEG_INF, gl.float32, gl.SliceLayout(1, like.type.layout))
    return top, partial_sums(gl.zeros_like(like))
