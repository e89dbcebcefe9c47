"""Options that the object and the one-call function have in common."""

from __future__ import annotations

import torch

from attnloom.errors import InvalidArgument
from attnloom.variant import Variant


def resolve_device(device: torch.device | str | int | None) -> torch.device:
    """`device` with its index, torch's default device for None."""
    try:
        resolved = torch.get_default_device() if device is None else torch.device(device)
        known = resolved.type != "cuda" or (resolved.index or 0) < torch.cuda.device_count()
    except (RuntimeError, TypeError):
        known = False
    if not known:
        raise InvalidArgument(
            name="device",
            given=device,
            supported=f"'cpu' or one of the {torch.cuda.device_count()} CUDA devices of this machine",
            fix="Leave it out for torch's default device.",
        )
    if resolved.type == "cuda" and resolved.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return resolved


def check_variant(variant: Variant | None) -> Variant:
    """`variant`, or full attention for None; raises for anything that is no Variant."""
    if variant is None:
        return Variant()
    if not isinstance(variant, Variant):
        raise InvalidArgument(
            name="variant",
            given=variant,
            supported="an attnloom.Variant",
            fix="Call the built-in (al.variants.causal()), or wrap functions in al.Variant(...).",
        )
    return variant
