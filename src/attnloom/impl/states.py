"""Attention states and the operator that merges them, in torch on any device.

A state is ``(out, lse)`` of one subset of the keys: out ``[..., D]``, lse ``[...]`` fp32, natural log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attnloom.variant import Program
from attnloom.variant.evaluate import compile_expr

State = tuple[torch.Tensor, torch.Tensor]


def merge_states(outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]) -> State:
    """The state of the union of disjoint key sets (FlashInfer, eq. of ⊕), computed in fp32.

    ``lse = log Σ exp(lse_i)``, ``out = Σ exp(lse_i − lse) · out_i``. The identity is (0, −inf), and a
    payload under lse_i = −inf is never read. out keeps the dtype of the first.
    """
    stacked = torch.stack([lse.float() for lse in lses])
    top = stacked.amax(0)
    anchor = torch.where(top == -torch.inf, 0.0, top)
    weights = torch.exp(stacked - anchor)
    total = weights.sum(0)
    merged = torch.zeros(outs[0].shape, dtype=torch.float32, device=outs[0].device)
    for out, weight in zip(outs, weights, strict=True):
        merged += torch.where((weight > 0)[..., None], out.float() * weight[..., None], 0.0)
    some = total > 0
    merged = torch.where(some[..., None], merged / total[..., None], 0.0)
    lse = torch.where(some, anchor + torch.log(total), -torch.inf)
    return merged.to(outs[0].dtype), lse


def merge_state(out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor) -> State:
    """`merge_states` of two."""
    return merge_states((out_a, out_b), (lse_a, lse_b))


def finish(
    out: torch.Tensor, lse: torch.Tensor | None, program: Program, env: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sink, then output_transform, on the state after the last merge.

    out ``[..., D]`` fp32, lse ``[...]``; env holds what the functors ask for, broadcastable to ``[..., 1]``.
    """
    if program.sink is not None and lse is not None:
        sink = compile_expr(program.sink)(env).to(lse.dtype).expand(*lse.shape, 1)[..., 0]
        with_sink = torch.logaddexp(lse, sink)
        share = torch.where(lse == -torch.inf, 0.0, torch.exp(lse - with_sink))
        out, lse = out * share[..., None], with_sink
    if program.output is not None:
        extra = {"x": out} if lse is None else {"x": out, "lse": lse[..., None]}
        out = compile_expr(program.output)({**env, **extra}).expand(out.shape)
    return out, lse


def finish_state(
    out: torch.Tensor, lse: torch.Tensor | None, program: Program, operands: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`finish` on a raw state of whole rows: out ``[rows, H, D]``, lse ``[rows, H]``; heads are known, requests not."""
    heads = torch.arange(out.shape[-2], device=out.device)[:, None]
    done, done_lse = finish(out.float(), lse, program, {**operands, "qo_head": heads, "head": heads})
    return done.to(out.dtype), done_lse
