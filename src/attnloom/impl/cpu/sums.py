"""Sums over chunks of keys that make up a tile's state.

Logits come in base 2 (times log2 e): torch computes exp2 in half the time of exp.
"""

from __future__ import annotations

import math

import torch

LOG2_E = math.log2(math.e)
_HEADROOM = 64.0  # weights may grow to 2**64: far from fp32's limit, also when summed and multiplied by values

State = tuple[torch.Tensor, torch.Tensor | None]
Shape = tuple[int, int, int]
"""heads, rows, dim_vo"""


class SoftmaxSums:
    """Σ 2^(logit − anchor) and Σ 2^(logit − anchor) · value, by row.

    anchor is the greatest logit of the first chunk, and stays while no later one is greater by more than the
    headroom: then no sum has to be scaled again. −inf where a row has seen nothing.
    """

    def __init__(self) -> None:
        self._out: torch.Tensor | None = None
        self._anchor = self._total = torch.empty(0, device="cpu")
        self._blind = False

    def add(self, logits: torch.Tensor, values: torch.Tensor, blind: bool) -> None:
        """Add a chunk: logits [heads, rows, keys], overwritten; values [heads, keys, dim].

        blind: a row may have no logit but −inf.
        """
        top = logits.amax(-1, keepdim=True)
        self._blind |= blind
        if self._out is None:
            self._anchor = top
        elif self._blind or not float((top - self._anchor).max()) <= _HEADROOM:  # a row of NaN must not hide others
            self._raise_anchor(self._out, top)
        anchor = self._anchor
        if self._blind:
            anchor = anchor.masked_fill(anchor == -torch.inf, 0.0)
        weights = logits.sub_(anchor).exp2_()
        total = weights.sum(-1, keepdim=True)
        if self._out is None:
            self._out, self._total = torch.bmm(weights, values), total
        else:
            self._out.baddbmm_(weights, values)
            self._total.add_(total)

    def _raise_anchor(self, out: torch.Tensor, top: torch.Tensor) -> None:
        """Scale the sums so far to the greater of anchor and top."""
        anchor = torch.maximum(self._anchor, top)
        scale = torch.exp2(self._anchor - anchor.masked_fill(anchor == -torch.inf, 0.0))
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
