"""Sigmoid attention: weights without a softmax."""

from __future__ import annotations

import torch

from attnloom.variant.params import param
from attnloom.variant.variant import Variant


def sigmoid(bias: float = 0.0) -> Variant:
    """The weight of a key is ``sigmoid(logits + bias)``; parts of the keys add, there is no lse.

    Args:
        bias: the scalar operand "bias"; another value at `plan` or `run` needs no new kernel.
    """
    return Variant(
        logits_transform=lambda logits, bias: torch.sigmoid(logits + bias),
        params={"bias": param(torch.float32, 0, bias)},
        use_softmax=False,
        name="sigmoid",
    )
