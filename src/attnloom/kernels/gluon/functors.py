"""A variant's functors on a tile of scores, rows of q along either axis.

ROWS 0: scores [rows, keys]; ROWS 1: scores [keys, rows], as products with the operands swapped give them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnloom.kernels.triton.softmax import LOG2E, NEG_INF


@gluon.jit
def along(x, ROWS: gl.constexpr):
    """A vector over rows of q, broadcastable to the scores."""
    return x[:, None] if ROWS == 0 else x[None, :]


@gluon.jit
def across(x, ROWS: gl.constexpr):
    """A vector over keys, broadcastable to the scores."""
    return x[None, :] if ROWS == 0 else x[:, None]


@gluon.jit
def packed_rows(
    row_start, first: gl.constexpr, row_count, NUM: gl.constexpr, GROUP: gl.constexpr, layout: gl.constexpr
):
    """(inside, q_idx, head in the group) of packed rows row_start + first ..; rows past row_count repeat the last."""
    row = first + gl.arange(0, NUM, layout=layout)
    packed = row_start + gl.minimum(row, row_count - 1)
    return row < row_count, packed // GROUP, packed % GROUP


@gluon.jit
def row_positions(q_pos_ptr, q_begin, q_idx, qo_len, kv_len, cfg: gl.constexpr):
    """q_pos of each row: given, or aligned bottom-right."""
    if cfg.HAS_Q_POS:
        return gl.load(q_pos_ptr + (q_begin + q_idx))
    return q_idx + (kv_len - qo_len)


@gluon.jit
def key_positions(kv_pos_ptr, index, kv_len, cfg: gl.constexpr):
    """kv_pos of each key: given (kv_pos_ptr is the request's first), or its index."""
    if cfg.HAS_KV_POS:
        return gl.load(kv_pos_ptr + gl.maximum(gl.minimum(index, kv_len - 1), 0))
    return index


@gluon.jit
def transformed(scores, kv_pos, rows, kv, operands, LOGITS: gl.constexpr, cfg: gl.constexpr, ROWS: gl.constexpr):
    """Logits functor on raw scores; in base 2 (times the scale that `softmax_scale` gives) for softmax, else weights.

    rows is (q_pos, q_idx, qo_head, kv_head, batch, qo_len), kv is (kv_len, sm_scale).
    """
    q_pos, q_idx, qo_head, kv_head, batch, qo_len = rows
    kv_len, sm_scale = kv
    if not cfg.FOLD:
        scores = scores * sm_scale
    if LOGITS is not None:
        # a functor that leaves logits out may depend on rows, on keys or on nothing
        scores = gl.zeros_like(scores) + LOGITS(
            scores,
            along(q_pos, ROWS),
            across(kv_pos, ROWS),
            along(q_idx, ROWS),
            along(qo_head, ROWS),
            kv_head,
            batch,
            qo_len,
            kv_len,
            operands,
        )
    if cfg.SOFTMAX and not cfg.FOLD:
        scores = scores * LOG2E
    return scores


@gluon.jit
def softmax_scale(sm_scale, cfg: gl.constexpr):
    """What `transformed` scores are multiplied by inside the exponent."""
    return sm_scale * LOG2E if cfg.FOLD else 1.0


@gluon.jit
def hidden(cfg: gl.constexpr):
    """What a hidden key's score becomes."""
    return NEG_INF if cfg.SOFTMAX else 0.0


@gluon.jit
def cut_off(scores, index, limit, cfg: gl.constexpr, ROWS: gl.constexpr):
    """Scores with keys from `limit` on hidden."""
    return gl.where(across(index < limit, ROWS), scores, hidden(cfg))


@gluon.jit
def masked(scores, kv_pos, rows, kv, operands, MASK: gl.constexpr, cfg: gl.constexpr, ROWS: gl.constexpr):
    """Scores with the keys that the mask hides hidden."""
    q_pos, q_idx, qo_head, kv_head, batch, qo_len = rows
    kv_len, _ = kv
    keep = MASK(
        along(q_pos, ROWS),
        across(kv_pos, ROWS),
        along(q_idx, ROWS),
        along(qo_head, ROWS),
        kv_head,
        batch,
        qo_len,
        kv_len,
        operands,
    )
    return gl.where(keep, scores, hidden(cfg))
