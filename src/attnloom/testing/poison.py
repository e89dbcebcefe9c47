"""Hostile memory for tests: bytes that must never influence a result, and buffers that notice a stray write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

# What an unowned slot may hold. "nan" fills bytes with 0xFF, which is NaN in every floating type.
POISONS = {"nan": math.nan, "inf": math.inf, "huge": 1e4, "zero": 0.0}

UNUSED_PAGE_IDS = (-1, 2**31 - 1)

GUARD_BYTES = 256
_GUARD = 0xA5


def poison_(tensor: torch.Tensor, kind: str = "nan") -> torch.Tensor:
    """Fill `tensor` (any strides) in place with the poison `kind`, a key of `POISONS`; return it.

    A type whose range it leaves gets its largest number.
    """
    value = POISONS[kind]
    largest = torch.finfo(tensor.dtype).max
    has_inf = tensor.dtype != torch.float8_e4m3fn
    return tensor.fill_(min(value, largest) if value > largest and not (has_inf and math.isinf(value)) else value)


def dirty_bytes_(workspace: torch.Tensor) -> torch.Tensor:
    """Fill a contiguous buffer with 0xFF in place: NaN as a float of any width, -1 as an integer."""
    workspace.view(torch.uint8).fill_(0xFF)
    return workspace


@dataclass(frozen=True)
class Guarded:
    """A contiguous tensor with guard bytes before and after it in one allocation."""

    tensor: torch.Tensor
    parent: torch.Tensor

    def intact(self) -> bool:
        """Whether every guard byte still holds what it was made with."""
        head, tail = self.parent[:GUARD_BYTES], self.parent[-GUARD_BYTES:]
        return bool((head == _GUARD).all()) and bool((tail == _GUARD).all())


def guarded(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Guarded:
    """A tensor of `shape` full of 0xFF bytes (NaN), between guard bytes; `GUARD_BYTES` keeps it aligned."""
    nbytes = math.prod(shape) * dtype.itemsize
    parent = torch.full((nbytes + 2 * GUARD_BYTES,), _GUARD, dtype=torch.uint8, device=device)
    inside = parent[GUARD_BYTES : GUARD_BYTES + nbytes]
    inside.fill_(0xFF)
    return Guarded(inside.view(dtype).view(*shape), parent)
