"""Attention without a mask."""

from __future__ import annotations

from attnloom.variant.variant import Variant


def full() -> Variant:
    """Every key is visible; the neutral element of ``&``."""
    return Variant(name="full")
