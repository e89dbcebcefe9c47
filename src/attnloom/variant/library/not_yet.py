"""Names of the library whose functors work on vectors, which come later."""

from __future__ import annotations

from typing import NoReturn

from attnloom.errors import NotYetSupported


def rope(*args: object, **kwargs: object) -> NoReturn:
    """Rotary embedding fused into attention: not yet supported.

    Raises:
        NotYetSupported: always.
    """
    raise NotYetSupported(
        feature="variants.rope", fix="Rotate q and k before the call; the cache then holds rotated keys."
    )


def streaming_llm(*args: object, **kwargs: object) -> NoReturn:
    """First tokens and a window, with positions inside the cache: not yet supported.

    Raises:
        NotYetSupported: always.
    """
    raise NotYetSupported(
        feature="variants.streaming_llm",
        fix="Its mask alone is Variant(logits_mask=lambda q_pos, kv_pos: (kv_pos <= q_pos) & "
        "((kv_pos < first) | (kv_pos >= q_pos - left))).",
    )
