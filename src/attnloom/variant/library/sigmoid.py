"""Sigmoid attention: weights without a softmax."""

from __future__ import annotations

import torch

from attnloom.variant.library.operands import operand
from attnloom.variant.variant import Variant


def sigmoid(bias: float = 0.0) -> Variant:
    """The weight of a key is ``sigmoid(logits + bias)``; parts of the keys add, there is no lse.

    Args:
        bias: the scalar operand "bias"; another value at `plan` or `run` needs no new kernel.
    """
    return Variant(
        logits_transform=lambda logits, bias: torch.sigmoid(logits + bias),
        params={"bias": operand("bias", bias, torch.float32, 0)},
        use_softmax=False,
        name="sigmoid",
    )
