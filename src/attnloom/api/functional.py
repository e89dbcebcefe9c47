"""One-call attention, and the operator that merges states."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attnloom.api.batch import BatchAttention
from attnloom.api.operands import OperandTable
from attnloom.api.options import check_variant, resolve_device
from attnloom.errors import (
    DeviceMismatch,
    DtypeMismatch,
    GradientRequired,
    InvalidArgument,
    ShapeMismatch,
    StateError,
)
from attnloom.formats import PagedKV, RaggedKV
from attnloom.impl import dispatch, states
from attnloom.spec import FP8_DTYPES, finite
from attnloom.target import Target
from attnloom.variant import Variant

_FULL = Variant()


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    variant: Variant | None = None,
    qo_indptr: Any = None,
    kv_indptr: Any = None,
    sm_scale: float | None = None,
    k_scale: Any = None,
    v_scale: Any = None,
    return_lse: bool = False,
    implementation: str | None = None,
) -> Any:
    """Attention in one call: plan and run.

    q, k, v: ``[total, H, D]`` with qo_indptr and kv_indptr ``[batch + 1]`` (both None: one request), or
    ``[B, S, H, D]`` without them; k and v in q's dtype or, beside fp16 and bf16, of an fp8 format with the scales
    k_scale and v_scale of `BatchAttention.run`. variant None is full attention (not causal). Returns out shaped as q
    (with v's head dim), and with return_lse (out, lse), lse fp32 without the last dimension.
    """
    batched = _check_shapes(q, k, v, qo_indptr, kv_indptr)
    heads_axis = q.ndim - 2
    engine = _engine(
        variant or _FULL,
        (q.shape[heads_axis], k.shape[heads_axis], q.shape[-1], v.shape[-1]),
        (q.dtype, k.dtype if k.dtype in FP8_DTYPES else None),
        (str(q.device), None if sm_scale is None else finite("sm_scale", sm_scale), implementation),
        threading.get_ident(),
    )
    if batched:
        batch, q_len, kv_len = q.shape[0], q.shape[1], k.shape[1]
        pages_each = int(kv_len > 0)
        kv: Any = PagedKV(
            [i * pages_each for i in range(batch + 1)],
            list(range(batch * pages_each)),
            [kv_len] * batch,
            max(kv_len, 1),
        )
        engine.plan([i * q_len for i in range(batch + 1)], kv)
        rows = q.reshape(batch * q_len, q.shape[2], q.shape[3])
        if not kv_len:  # a pool of empty pages
            k, v = k.new_empty((0, 1, *k.shape[2:])), v.new_empty((0, 1, *v.shape[2:]))
        result = engine.run(rows, k, v, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse)
        out, lse = result if return_lse else (result, None)
        out = out.view(batch, q_len, *out.shape[1:])
        return (out, lse.view(out.shape[:3])) if lse is not None else out
    engine.plan(
        [0, q.shape[0]] if qo_indptr is None else qo_indptr,
        RaggedKV([0, k.shape[0]] if kv_indptr is None else kv_indptr),
    )
    return engine.run(q, k, v, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse)


def merge_state(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state of the union of two disjoint key sets: out ``[..., D]`` with lse ``[...]``, natural log.

    Identity is (0, −inf); what lies under lse = −inf is never read. Raises StateError without an lse (sigmoid
    states add: ``out_a + out_b``).
    """
    _check_states((out_a, out_b), (lse_a, lse_b))
    return states.merge_state(out_a, lse_a, out_b, lse_b)


def merge_states(outs: Any, lses: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`merge_state` over n states: sequences of tensors (n >= 1), or stacked ``[n, ..., D]`` and ``[n, ...]``.

    No state at all (stacked, n = 0) merges to the identity: zeros and −inf.
    """
    stacked = isinstance(outs, torch.Tensor) and isinstance(lses, torch.Tensor) and outs.ndim > 0
    if stacked and not outs.shape[0] and outs.shape[:-1] == lses.shape:
        return outs.new_zeros(outs.shape[1:]), outs.new_full(lses.shape[1:], -torch.inf, dtype=torch.float32)
    outs, lses = (list(x) if _is_several(x) else [x] for x in (outs, lses))
    _check_states(outs, lses)
    return states.merge_states(outs, lses)


def finish_state(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    variant: Variant | None = None,
    params: Mapping[str, Any] | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Complete a raw state ``out [rows, H, D]``, ``lse [rows, H]``: sink, then output_transform.

    The functors may not ask for q_pos or batch here: a state does not know its request.
    """
    program = check_variant(variant).program
    _check_states((out,), (lse,) if program.use_softmax else None)
    if out.ndim < 2:
        raise ShapeMismatch(name="out", given=tuple(out.shape), expected="[rows, H, D]", fix="")
    table = OperandTable(program, out.device, (out.shape[-2], 1))
    return states.finish_state(out, lse, program, table.at_run(table.defaults, params, None))


def implementations(device: torch.device | str | int | None = None) -> list[dispatch.Availability]:
    """What can run on `device` (None: torch's default), and why the others cannot."""
    return dispatch.implementations(Target.of(resolve_device(device)))


@functools.lru_cache(maxsize=32)
def _engine(
    variant: Variant,
    shape: tuple[int, int, int, int],
    dtypes: tuple[torch.dtype, torch.dtype | None],
    where: tuple[str, float | None, str | None],
    thread: int,
) -> BatchAttention:
    del thread  # engines hold a plan: one a thread
    device, sm_scale, implementation = where
    return BatchAttention(
        num_qo_heads=shape[0],
        num_kv_heads=shape[1],
        head_dim=shape[2],
        head_dim_vo=shape[3],
        dtype=dtypes[0],
        kv_dtype=dtypes[1],
        variant=variant,
        sm_scale=sm_scale,
        device=device,
        implementation=implementation,
    )


def _check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qo_indptr: Any, kv_indptr: Any) -> bool:
    """Whether the tensors are batched [B, S, H, D]; raises for shapes that do not belong together."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor) or tensor.ndim not in (3, 4) or tensor.ndim != q.ndim:
            given = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ShapeMismatch(
                name=name, given=given, expected="[total, H, D] or [B, S, H, D], the same for q, k and v", fix=""
            )
    batched = q.ndim == 4
    if (qo_indptr is None) != (kv_indptr is None) or (batched and qo_indptr is not None):
        raise InvalidArgument(
            name="qo_indptr and kv_indptr",
            given=(qo_indptr, kv_indptr),
            supported="both or neither, and neither with [B, S, H, D]",
            fix="Pack rows as [total, H, D] to give index pointers.",
        )
    same = k.shape[:-1] == v.shape[:-1] and (not batched or q.shape[0] == k.shape[0])
    if not same:
        raise ShapeMismatch(
            name="k and v",
            given=f"{tuple(k.shape)} and {tuple(v.shape)} beside q {tuple(q.shape)}",
            expected="equal but for the head dim, and q's batch",
            fix="",
        )
    return batched


def _is_several(states: Any) -> bool:
    return isinstance(states, Sequence) or (isinstance(states, torch.Tensor) and states.ndim > 0)


def _check_states(outs: Any, lses: Any) -> None:
    """States that belong together; lses None: those of a variant without softmax."""
    if lses is None:
        for out in outs:
            _check_tensor("out", out, outs[0])
        return
    if not outs or len(outs) != len(lses):
        raise StateError(
            reason=f"{len(outs)} outs and {len(lses)} lses", fix="Give one lse per out, at least one state"
        )
    for out, lse in zip(outs, lses, strict=True):
        if lse is None:
            raise StateError(
                reason="a state without lse cannot be merged", fix="States of a sigmoid variant add: out_a + out_b"
            )
        _check_tensor("out", out, outs[0])
        _check_tensor("lse", lse, outs[0])
        if tuple(out.shape[:-1]) != tuple(lse.shape) or out.shape != outs[0].shape:
            raise ShapeMismatch(
                name="state",
                given=f"out {tuple(out.shape)}, lse {tuple(lse.shape)}",
                expected=f"out {tuple(outs[0].shape)} and lse without the last dimension",
                fix="",
            )


def _check_tensor(name: str, tensor: Any, first: torch.Tensor) -> None:
    """A tensor of floats on the device of the first, which needs no gradient."""
    if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
        given = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise DtypeMismatch(
            name=name, given=given, expected="a tensor of floats", fix="Pass states as run(return_state=True) gives."
        )
    if tensor.device != first.device:
        raise DeviceMismatch(name=name, given=tensor.device, expected=first.device)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise GradientRequired(name=name)
