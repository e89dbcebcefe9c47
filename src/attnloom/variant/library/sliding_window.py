"""A bound to the left of each token."""

from __future__ import annotations

from attnloom.errors import InvalidArgument
from attnloom.variant.variant import Variant


def sliding_window(left: int | None) -> Variant:
    """Visible iff ``kv_pos >= q_pos - left``; no right bound unless composed with `causal`.

    Args:
        left: keys visible to the left besides the token itself; 0 is self only, None unlimited. A model's
            "window of N" is ``left = N - 1``.

    Raises:
        InvalidArgument: a negative or non-integer `left`.
    """
    if left is None:
        return Variant(name="sliding_window(None)")
    if isinstance(left, bool) or not isinstance(left, int) or left < 0:
        raise InvalidArgument(
            name="left", given=left, supported="an integer >= 0, or None", fix="None is unlimited, 0 is self only."
        )
    return Variant(logits_mask=lambda q_pos, kv_pos: kv_pos >= q_pos - left, name=f"sliding_window({left})")
