"""Sums over chunks of keys that make up a tile's state.

Logits come in base 2 (times log2 e): torch computes exp2 in half the time of exp.
"""

from __future__ import annotations

import math

import torch

from attnloom.impl.cpu.scratch import PADDING

LOG2_E = math.log2(math.e)
_HEADROOM = 64.0  # weights may grow to 2**64: far from fp32's limit, also when summed and multiplied by values
_SERIAL = 1 << 14  # elements that torch does not divide among threads

State = tuple[torch.Tensor, torch.Tensor | None]
Shape = tuple[int, int, int]
"""heads, rows, dim_vo"""


class SoftmaxSums:
    """Σ 2^(logit − anchor) and Σ 2^(logit − anchor) · value, by row.

    anchor is the greatest logit of the first chunk, and stays while no later one of its row is greater by more
    than the headroom: then its sums need not be scaled again. −inf where a row has seen nothing. What becomes of
    a row does not depend on the others.
    """

    def __init__(self) -> None:
        self._out: torch.Tensor | None = None
        self._anchor = self._total = torch.empty(0, device="cpu")
        self._blind = False

    def add(self, logits: torch.Tensor, values: torch.Tensor, blind: bool) -> None:
        """Add a chunk: logits [heads, rows, keys] in scratch memory, overwritten; values [heads, keys, dim].

        blind: a row may have no logit but −inf.
        """
        top = logits.amax(-1, keepdim=True)
        self._blind |= blind
        if self._out is None:
            self._anchor = top
        else:
            beyond = top > self._anchor + _HEADROOM
            if beyond.any():
                self._raise_anchor(self._out, torch.where(beyond, top, self._anchor))
        anchor = self._anchor
        if self._blind:
            anchor = anchor.masked_fill(anchor == -torch.inf, 0.0)
        weights = logits.sub_(anchor)
        _exp2(weights)
        total = weights.sum(-1, keepdim=True)
        if self._out is None:
            self._out, self._total = torch.bmm(weights, values), total
        else:
            self._out.baddbmm_(weights, values)
            self._total.add_(total)

    def _raise_anchor(self, out: torch.Tensor, anchor: torch.Tensor) -> None:
        """Scale the sums so far to a new anchor, which is no less than the old one."""
        scale = torch.exp2(self._anchor - anchor).masked_fill_(anchor == self._anchor, 1.0)
        out.mul_(scale)
        self._total.mul_(scale)
        self._anchor = anchor

    def state(self, shape: Shape, need_lse: bool) -> State:
        """(out, lse in natural log or None)."""
        if self._out is None:
            return torch.zeros(shape, device="cpu"), torch.full(shape[:2], -torch.inf, device="cpu")
        out = self._out.div_(self._total)
        if self._blind:
            out.masked_fill_(self._total == 0, 0.0)
        lse = (self._anchor + torch.log2(self._total)).div_(LOG2_E)[..., 0] if need_lse else None
        return out, lse


def _exp2(x: torch.Tensor) -> None:
    """In place, for a whole tensor of scratch memory; each element's bits do not depend on where it stands.

    torch computes the last elements of a piece one by one, with other bits than those in vectors: so pieces are
    multiples of a vector, and short enough where torch would divide a longer one among threads.
    """
    size = -(-x.numel() // PADDING) * PADDING
    flat = x.as_strided((size,), (1,), x.storage_offset())
    for piece in flat.split(_SERIAL) if size > _SERIAL and torch.get_num_threads() > 1 else (flat,):
        piece.exp2_()


class PlainSums:
    """Σ weight · value by row, for variants without softmax."""

    def __init__(self) -> None:
        self._out: torch.Tensor | None = None

    def add(self, logits: torch.Tensor, values: torch.Tensor, blind: bool) -> None:
        """Add a chunk: weights [heads, rows, keys], 0 where masked; values [heads, keys, dim]."""
        if self._out is None:
            self._out = torch.bmm(logits, values)
        else:
            self._out.baddbmm_(logits, values)

    def state(self, shape: Shape, need_lse: bool) -> State:
        """(out, None)."""
        return torch.zeros(shape, device="cpu") if self._out is None else self._out, None
