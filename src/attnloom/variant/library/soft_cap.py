"""Logits squeezed into (-cap, cap)."""

from __future__ import annotations

import math

import torch

from attnloom.errors import InvalidArgument
from attnloom.variant.language import fast_tanh
from attnloom.variant.variant import Variant


def soft_cap(cap: float, fast_math: bool = False) -> Variant:
    """``cap * tanh(logits / cap)`` on scaled logits; finite for any finite logit, exact to fp32.

    Args:
        cap: the bound, > 0; 0 switches the cap off.
        fast_math: allow the device's approximate tanh.

    Raises:
        InvalidArgument: a negative, infinite or NaN `cap`.
    """
    if isinstance(cap, bool) or not isinstance(cap, (int, float)) or not 0 <= cap < math.inf:
        raise InvalidArgument(name="cap", given=cap, supported="a finite number >= 0", fix="0 means no cap.")
    name = f"soft_cap({cap}{', fast_math=True' if fast_math else ''})"
    if cap == 0:
        return Variant(name=name)
    if fast_math:
        return Variant(logits_transform=lambda logits: cap * fast_tanh(logits / cap), name=name)
    return Variant(logits_transform=lambda logits: cap * torch.tanh(logits / cap), name=name)
