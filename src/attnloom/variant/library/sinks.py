"""Attention sinks: a learned logit per head that takes part of the softmax."""

from __future__ import annotations

import torch

from attnloom.variant.library.operands import operand
from attnloom.variant.variant import Variant


def sinks(values: torch.Tensor | None = None) -> Variant:
    """One more term ``exp(values[qo_head])`` in each row's denominator, applied once after the last merge.

    Args:
        values: float ``[num_qo_heads]``, raw natural-log logits (neither scaled nor transformed); None: to be
            given as params={"sinks": ...}, for example by each layer at `run`.
    """
    return Variant(
        sink=lambda qo_head, sinks: sinks[qo_head],
        params={"sinks": operand("sinks", values, torch.float32)},
        name="sinks",
    )
