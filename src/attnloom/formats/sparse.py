"""Block-sparse KV: which blocks of keys a block of query rows reads."""

from __future__ import annotations

from typing import Any

from attnloom.errors import NotYetSupported


class BlockSparse:
    """Placeholder of the block-sparse format of the design; not in this version."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotYetSupported(
            feature="BlockSparse", fix="Express the pattern as a logits_mask (al.variants.custom_mask takes any)."
        )
