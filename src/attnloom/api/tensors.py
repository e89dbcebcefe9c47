"""The tensors of `run`: checked against the constructor and the plan, caches brought to one view."""

from __future__ import annotations

import torch

from attnloom.errors import (
    DeviceMismatch,
    DtypeMismatch,
    GradientRequired,
    PlanMismatch,
    ShapeMismatch,
    StrideUnsupported,
)
from attnloom.spec import AttentionSpec


def check_common(name: str, tensor: torch.Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Type, dtype, device, gradient and last stride of a data tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise DtypeMismatch(name=name, given=type(tensor).__name__, expected="a torch.Tensor", fix="")
    if tensor.dtype != dtype:
        raise DtypeMismatch(
            name=name, given=tensor.dtype, expected=dtype, fix="Convert it, or build the object with that dtype."
        )
    if tensor.device != device:
        raise DeviceMismatch(name=name, given=tensor.device, expected=device)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise GradientRequired(name=name)
    if tensor.ndim and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise StrideUnsupported(
            name=name,
            given=tuple(tensor.stride()),
            expected="a last dimension of stride 1",
            fix="Call .contiguous() on it, or lay it out with the head dimension last.",
        )


def check_q(q: torch.Tensor, spec: AttentionSpec, device: torch.device, total_q: int) -> None:
    """The queries are [rows >= total_q, num_qo_heads, head_dim_qk]."""
    check_common("q", q, spec.dtype, device)
    if q.ndim != 3 or tuple(q.shape[1:]) != (spec.num_qo_heads, spec.head_dim_qk):
        raise PlanMismatch(
            name="q",
            given=f"shape {tuple(q.shape)}",
            source="constructor",
            expected=f"[rows, num_qo_heads={spec.num_qo_heads}, head_dim={spec.head_dim_qk}]",
            fix="Rows of all requests are packed one after another.",
        )
    if q.shape[0] < total_q:
        raise PlanMismatch(
            name="q",
            given=f"{q.shape[0]} rows",
            source="plan",
            expected=f"at least qo_indptr[-1] = {total_q} rows",
            fix="Plan for the lengths that you run.",
        )


def split_packed(kv_cache: torch.Tensor, v_cache: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(k_cache, v_cache), taken from one packed tensor [num_pages, 2, ...] where no v_cache came."""
    if v_cache is not None:
        return kv_cache, v_cache
    if not isinstance(kv_cache, torch.Tensor) or kv_cache.ndim != 5 or kv_cache.shape[1] != 2:
        given = tuple(kv_cache.shape) if isinstance(kv_cache, torch.Tensor) else type(kv_cache).__name__
        raise ShapeMismatch(
            name="kv_cache",
            given=given,
            expected="[num_pages, 2, page_size, H_kv, D] (NHD) or [num_pages, 2, H_kv, page_size, D] (HND)",
            fix="Pass k_cache and v_cache as two tensors otherwise.",
        )
    return kv_cache[:, 0], kv_cache[:, 1]


def cache_view(name: str, cache: torch.Tensor, *, kv_layout: str, ragged: bool, page_size: int) -> torch.Tensor:
    """A cache of any layout as a strided view [num_pages, page_size, num_kv_heads, head_dim]; ragged: page_size 1."""
    wanted = 3 if ragged else 4
    if not ragged and page_size == 1 and cache.ndim == 3:  # [slots, H, D]: pages of one token
        ragged, wanted = True, 3
    if cache.ndim != wanted:
        what = "ragged KV, 3-D" if ragged else f"paged KV of page_size {page_size}, 4-D"
        raise PlanMismatch(
            name=name,
            given=f"shape {tuple(cache.shape)}",
            source="plan",
            expected=what,
            fix="RaggedKV takes [total_kv, H_kv, D], PagedKV takes a pool [num_pages, page_size, H_kv, D].",
        )
    if ragged:
        return (cache if kv_layout == "NHD" else cache.transpose(0, 1)).unsqueeze(1)
    return cache if kv_layout == "NHD" else cache.transpose(1, 2)


def check_view(name: str, view: torch.Tensor, *, page_size: int, heads: int, head_dim: int) -> None:
    """The canonical view has the plan's page size and the constructor's heads and dims."""
    if tuple(view.shape[1:]) != (page_size, heads, head_dim):
        raise PlanMismatch(
            name=name,
            given=f"page_size {view.shape[1]}, {view.shape[2]} kv heads, head_dim {view.shape[3]}",
            source="plan",
            expected=f"page_size {page_size}, {heads} kv heads, head_dim {head_dim}",
            fix="Check kv_layout and the order of the dimensions.",
        )


def output_tensor(
    out: torch.Tensor | None, q: torch.Tensor, spec: AttentionSpec, dtype: torch.dtype, rows: range
) -> torch.Tensor:
    """The caller's `out`, checked to have `rows.stop` rows, or a new one that is zero but for `rows`."""
    shape = (q.shape[0], spec.num_qo_heads, spec.head_dim_vo)
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=q.device)
        if shape[0] > len(rows):
            out[len(rows) :].zero_()
        return out
    check_common("out", out, dtype, q.device)
    _check_rows("out", out, shape, rows.stop)
    return out


def lse_tensor(lse: torch.Tensor | None, q: torch.Tensor, spec: AttentionSpec, rows: range) -> torch.Tensor:
    """The caller's `lse`, checked to have `rows.stop` rows, or a new one that is −inf but for `rows`."""
    shape = (q.shape[0], spec.num_qo_heads)
    if lse is None:
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
        if shape[0] > len(rows):
            lse[len(rows) :].fill_(-torch.inf)
        return lse
    check_common("lse", lse, torch.float32, q.device)
    _check_rows("lse", lse, shape, rows.stop)
    return lse


def _check_rows(name: str, tensor: torch.Tensor, shape: tuple[int, ...], total_q: int) -> None:
    if tensor.ndim != len(shape) or tuple(tensor.shape[1:]) != shape[1:] or tensor.shape[0] < total_q:
        raise ShapeMismatch(
            name=name,
            given=tuple(tensor.shape),
            expected=f"{shape}, at least {total_q} rows",
            fix="It has q's rows and heads.",
        )
    if any(stride == 0 and extent > 1 for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)):
        raise StrideUnsupported(
            name=name,
            given=tuple(tensor.stride()),
            expected="elements with memory of their own",
            fix="An expanded view cannot be written to: allocate it.",
        )
