"""A prefix that sees itself whole, then causal."""

from __future__ import annotations

import torch

from attnloom.variant.params import param
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
            params={"prefix_len": param(torch.int32, 0, prefix_len)},
            name="prefix_lm",
        )
    return Variant(
        logits_mask=lambda q_pos, kv_pos, batch, prefix_len: (kv_pos <= q_pos) | (kv_pos < prefix_len[batch]),
        params={"prefix_len": param(torch.int32, 1, prefix_len)},
        name="prefix_lm",
    )
