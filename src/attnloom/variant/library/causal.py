"""Each token sees itself and what came before."""

from __future__ import annotations

from attnloom.variant.variant import Variant


def causal() -> Variant:
    """Visible iff ``kv_pos <= q_pos`` (bottom-right alignment: the last query row sees every key)."""
    return Variant(logits_mask=lambda q_pos, kv_pos: kv_pos <= q_pos, name="causal")
