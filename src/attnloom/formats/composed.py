"""Composed KV: several levels (a shared prefix, then suffixes) over one cache."""

from __future__ import annotations

from typing import Any

from attnloom.errors import NotYetSupported

_FIX = "Plan prefix and suffix on their own, run both with return_state=True, and merge with al.merge_state."


class Level:
    """Placeholder of one level of a composed format; not in this version."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotYetSupported(feature="ComposedKV's Level", fix=_FIX)


class ComposedKV:
    """Placeholder of the composed format of the design; not in this version."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotYetSupported(feature="ComposedKV", fix=_FIX)
