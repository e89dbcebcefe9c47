"""Attention with linear biases (ALiBi)."""

from __future__ import annotations

import torch

from attnloom.errors import InvalidArgument
from attnloom.variant.library.operands import operand
from attnloom.variant.variant import Variant


def alibi(slopes: torch.Tensor | None = None) -> Variant:
    """``logits + slopes[qo_head] * (kv_pos - q_pos)``.

    Args:
        slopes: float ``[num_qo_heads]``, usually `alibi_slopes`; None: to be given as params={"slopes": ...}.
    """
    return Variant(
        logits_transform=lambda logits, q_pos, kv_pos, qo_head, slopes: logits + slopes[qo_head] * (kv_pos - q_pos),
        params={"slopes": operand("slopes", slopes, torch.float32)},
        name="alibi",
    )


def alibi_slopes(num_qo_heads: int) -> torch.Tensor:
    """The ALiBi paper's slopes, float32 ``[num_qo_heads]``, for any number of heads.

    For ``n`` a power of two they are ``2**(-8 * (h + 1) / n)``. Otherwise those of the largest power of two
    below come first, then every other one of twice that.

    Raises:
        InvalidArgument: fewer than one head.
    """
    if num_qo_heads < 1:
        raise InvalidArgument(name="num_qo_heads", given=num_qo_heads, supported="an integer >= 1", fix="")
    power = 1 << (num_qo_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-4.0 * (2 * head + 1) / power) for head in range(num_qo_heads - power)]
    return torch.tensor(slopes + between, dtype=torch.float32)
