"""What one attention layer computes, and the AttnLoom variant that computes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch

import attnloom as al
from attnloom.errors import InvalidArgument


@dataclass(frozen=True)
class Features:
    """The options of a layer. Sinks' values and padding are operands: they never make another variant.

    Attributes:
        causal: bottom-right aligned causal mask.
        window_left: keys visible to the left besides the token itself; None is unlimited.
        soft_cap: cap of the scaled logits, None for none.
        sinks: whether a sink logit per query head comes with `run`.
        padding: "left" (a number of leading keys per request is hidden), "mask" (any keys are) or None.
    """

    causal: bool
    window_left: int | None
    soft_cap: float | None
    sinks: bool
    padding: Literal["left", "mask"] | None


def layer_features(
    *,
    causal: bool,
    sliding_window: int | None,
    softcap: float | None,
    sinks: bool,
    padding: Literal["left", "mask"] | None,
) -> Features:
    """Features from the keywords that transformers passes to an attention function.

    `sliding_window` N counts the token itself: N − 1 keys to its left are visible.
    """
    if sliding_window is not None and not causal:
        raise InvalidArgument(
            name="sliding_window", given=sliding_window, supported="a window on causal layers",
            fix="A window that looks both ways is not supported: use attn_implementation='sdpa' for this model.",
        )  # fmt: skip
    return Features(
        causal=causal,
        window_left=None if sliding_window is None else int(sliding_window) - 1,
        soft_cap=None if softcap is None else float(softcap),
        sinks=sinks,
        padding=padding,
    )


@lru_cache(maxsize=64)
def build_variant(features: Features) -> Any:
    """The variant of `features`, or None for full attention. Operands: `sinks` [H_qo], `pad` [B] or `keep` [B, S]."""
    parts: list[Any] = []
    if features.causal:
        parts.append(al.variants.causal())
    if features.window_left is not None:
        parts.append(al.variants.sliding_window(features.window_left))
    if features.padding == "left":
        parts.append(
            al.Variant(
                logits_mask=lambda kv_pos, batch, pad: kv_pos >= pad[batch],
                params={"pad": al.param(torch.int32, 1, shape=lambda qo_len, kv_len: (len(kv_len),))},
            )
        )
    if features.padding == "mask":
        parts.append(
            al.Variant(
                logits_mask=lambda kv_pos, batch, keep: keep[batch, kv_pos],
                params={"keep": al.param(torch.bool, 2, shape=lambda qo_len, kv_len: (len(kv_len), max(kv_len)))},
            )
        )
    if features.soft_cap is not None:
        parts.append(al.variants.soft_cap(features.soft_cap))
    if features.sinks:
        parts.append(al.variants.sinks())
    variant = None
    for part in parts:
        variant = part if variant is None else variant & part
    return variant
