"""Limits of known cards, as measured, to say how long a plan must take at least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from attnloom.errors import InvalidArgument


@dataclass(frozen=True)
class Card:
    """What a device reached at best: a plain read in bytes/s, and matrix products in flop/s per input dtype.

    A dtype without an entry has no measured peak: the limit then counts memory only.
    """

    name: str
    read_bytes_per_second: float
    flops_per_second: Mapping[torch.dtype, float] = field(default_factory=lambda: MappingProxyType({}))

    def limit(self, num_bytes: float, flops: float, dtype: torch.dtype) -> Limit:
        """The shortest time in which the card can read the bytes and do the products, overlapped perfectly."""
        memory = num_bytes / self.read_bytes_per_second
        peak = self.flops_per_second.get(dtype)
        if peak is None:
            return Limit(memory, f"memory; no peak of {str(dtype).removeprefix('torch.')} known")
        compute = flops / peak
        return Limit(compute, "compute") if compute > memory else Limit(memory, "memory")


@dataclass(frozen=True)
class Limit:
    """A time in seconds and what sets it."""

    seconds: float
    bound: str


# Measured on one card with torch 2.11: a sum over memory, and an 8192^3 bf16 product (716-790 TFLOP/s over the
# day; the lower end, rounded down, stands here). fp16 runs at bf16's rate by the data sheet.
_H200 = Card(
    "H200",
    read_bytes_per_second=4.38e12,
    flops_per_second=MappingProxyType({torch.bfloat16: 700e12, torch.float16: 700e12}),
)

CARDS: Mapping[str, Card] = MappingProxyType({"h200": _H200})


def card(name: str) -> Card:
    """The card of that name, or InvalidArgument listing those known."""
    if name not in CARDS:
        raise InvalidArgument(
            name="target_name",
            given=name,
            supported=", ".join(CARDS),
            fix="For another device pass its measured limits as an attnloom.explain.Card.",
        )
    return CARDS[name]
