"""The peer: torch's scaled_dot_product_attention, request by request, on K and V gathered beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from attnloom.testing.inputs import Batch

# How q, k and v [1, heads, tokens, D] lie in memory; the faster one counts.
LAYOUTS = ("tokens first", "heads first")


@dataclass(frozen=True)
class Peer:
    """Everything that one call needs, made beforehand: per request q, k, v and the way causality is said."""

    layout: str
    requests: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]], ...]

    def __call__(self) -> list[torch.Tensor]:
        """Outputs per request, ``[1, heads, tokens, D]``."""
        return [scaled_dot_product_attention(q, k, v, enable_gqa=True, **how) for q, k, v, how in self.requests]


def make_peer(batch: Batch, layout: str) -> Peer:
    """The batch's requests with rows and keys, K and V read out of the pool."""
    requests = []
    for i, rows in enumerate(map(batch.rows, range(len(batch.sequences.q)))):
        k, v = batch.keys(i)
        q = batch.q[rows]
        if q.shape[0] and k.shape[0]:
            how = _causality(q.shape[0], k.shape[0], q.device)
            requests.append((_arrange(q, layout), _arrange(k, layout), _arrange(v, layout), how))
    return Peer(layout, tuple(requests))


def _arrange(x: torch.Tensor, layout: str) -> torch.Tensor:
    x = x.transpose(0, 1)[None]
    return x.contiguous() if layout == "heads first" else x


def _causality(qo: int, kv: int, device: torch.device) -> dict[str, Any]:
    """Arguments for bottom-right causality: none for one row, is_causal where it means the same, else a mask."""
    if qo == 1:
        return {}
    if qo == kv:
        return {"is_causal": True}
    rows = torch.arange(qo, device=device)[:, None] + kv - qo
    return {"attn_mask": torch.arange(kv, device=device)[None] <= rows}
