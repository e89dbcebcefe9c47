"""A prefix that sees itself whole, then causal."""

from __future__ import annotations

import torch

from attnloom.variant.library.operands import operand
from attnloom.variant.variant import Variant


def prefix_lm(prefix_len: int | torch.Tensor | None = None) -> Variant:
    """Visible iff ``kv_pos <= q_pos`` or ``kv_pos < prefix_len``.

    Args:
        prefix_len: one integer, or int32 ``[batch]``; None declares the tensor, to be given as
            params={"prefix_len": ...} at `plan`.
    """
    if isinstance(prefix_len, int):
        return Variant(
            logits_mask=lambda q_pos, kv_pos, prefix_len: (kv_pos <= q_pos) | (kv_pos < prefix_len),
            params={"prefix_len": operand("prefix_len", prefix_len, torch.int32, 0)},
            name="prefix_lm",
        )
    return Variant(
        logits_mask=lambda q_pos, kv_pos, batch, prefix_len: (kv_pos <= q_pos) | (kv_pos < prefix_len[batch]),
        params={"prefix_len": operand("prefix_len", prefix_len, torch.int32)},
        name="prefix_lm",
    )
