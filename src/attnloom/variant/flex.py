"""FlexAttention's functions as variants: not in this version."""

from __future__ import annotations

from typing import Any

from attnloom.errors import NotYetSupported


def from_flex(score_mod: Any = None, mask_mod: Any = None, block_mask: Any = None, q_idx: str = "row") -> Any:
    """Take FlexAttention's `score_mod` and `mask_mod` unchanged; raises NotYetSupported in this version."""
    raise NotYetSupported(
        feature="from_flex",
        fix="Write the functions by attnloom's names: al.Variant(logits_transform=..., logits_mask=...).",
    )
