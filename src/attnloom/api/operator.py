"""`run` as one operator for torch.compile: an integer handle stands for the engine object and its plan.

Eager calls never come here (an operator call costs tens of microseconds of dispatch).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from attnloom.errors import GradientRequired, ParamError

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


class Engine(Protocol):
    """What a handle stands for: a `BatchAttention`, as far as the operator knows it."""

    def compute(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor | None,
        *,
        scales: tuple[Any, Any],
        params: Mapping[str, Any] | None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        with_lse: bool,
        raw: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `BatchAttention.compute`."""


_LIBRARY = torch.library.Library("attnloom", "DEF")
_LIBRARY.define(
    "run(SymInt handle, Tensor q, Tensor k_cache, Tensor? v_cache, *, Tensor? k_scale=None, Tensor? v_scale=None, "
    "str[] names, Tensor[] values, bool with_lse, bool raw) -> (Tensor, Tensor)"
)
_LIBRARY.define(
    "run_into(SymInt handle, Tensor q, Tensor k_cache, Tensor? v_cache, *, Tensor? k_scale=None, Tensor? v_scale=None, "
    "str[] names, Tensor[] values, Tensor(a!) into, Tensor(b!)? lse, bool raw) -> ()"
)
_objects: weakref.WeakValueDictionary[int, Engine] = weakref.WeakValueDictionary()
_handles = itertools.count(2)  # torch.compile makes constants of 0 and 1, whatever is said to be dynamic


def register(engine: Engine) -> int:
    """An integer that names `engine` for as long as it lives."""
    handle = next(_handles)
    _objects[handle] = engine
    return handle


def traced_run(
    handle: int,
    inputs: Tensors,
    scales: tuple[Any, Any],
    *,
    params: Mapping[str, Any] | None,
    into: tuple[torch.Tensor | None, torch.Tensor | None],
    with_lse: bool,
    raw: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The call that dynamo records in place of `run`.

    inputs are q and the caches; scales those of k and v, None, numbers or tensors; into the caller's out and lse.
    """
    q, k_cache, v_cache = inputs
    out, lse = into
    names: list[str] = []
    values: list[torch.Tensor] = []
    for name, value in (params or {}).items():
        if not isinstance(value, torch.Tensor):
            raise ParamError(
                name=name,
                given=f"{type(value).__name__} under torch.compile",
                expected="A tensor is expected there.",
                fix="Wrap the number: torch.tensor(value).",
            )
        names.append(name)
        values.append(value)
    common = {
        "k_scale": _as_tensor(scales[0], q.device),
        "v_scale": _as_tensor(scales[1], q.device),
        "names": names,
        "values": values,
        "raw": raw,
    }
    # An engine is often an attribute of a module, whose integers dynamo takes for constants: one graph a layer.
    with torch._dynamo.patch_dynamo_config(allow_unspec_int_on_nn_module=True):
        if out is None and lse is None:
            made, made_lse = torch.ops.attnloom.run(handle, q, k_cache, v_cache, with_lse=with_lse, **common)
            return made, made_lse if with_lse else None
        if out is None:
            out = torch.zeros(_shape(q, k_cache, v_cache), dtype=torch.float32 if raw else q.dtype, device=q.device)
        if lse is None and with_lse:
            lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device)
        lse = lse if with_lse else None
        torch.ops.attnloom.run_into(handle, q, k_cache, v_cache, into=out, lse=lse, **common)
    return out, lse


def _as_tensor(scale: Any, device: torch.device) -> torch.Tensor | None:
    """A scale for the operator, whose numbers would be constants of the graph."""
    if scale is None or isinstance(scale, torch.Tensor):
        return scale
    return torch.full((), scale, dtype=torch.float32, device=device)


def _run(
    handle: int,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    names: list[str],
    values: list[torch.Tensor],
    with_lse: bool,
    raw: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    engine = _objects[handle]
    params = dict(zip(names, values, strict=True)) or None
    out, lse = engine.compute(q, k_cache, v_cache, scales=(k_scale, v_scale), params=params, with_lse=with_lse, raw=raw)
    return out, q.new_empty(0, dtype=torch.float32) if lse is None else lse


def _fake(
    handle: int,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    names: list[str],
    values: list[torch.Tensor],
    with_lse: bool,
    raw: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    # From the tensors alone: looking the object up would make its handle a constant of the graph.
    out = q.new_empty(_shape(q, k_cache, v_cache), dtype=torch.float32 if raw else q.dtype)
    lse = q.new_empty(q.shape[:2] if with_lse else (0,), dtype=torch.float32)
    return out, lse


def _shape(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor | None) -> tuple[int, int, int]:
    """[rows, num_qo_heads, head_dim_vo]."""
    return q.shape[0], q.shape[1], (k_cache if v_cache is None else v_cache).shape[-1]


def _run_into(
    handle: int,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    names: list[str],
    values: list[torch.Tensor],
    into: torch.Tensor,  # dynamo refuses strided tensors under the name `out`
    lse: torch.Tensor | None,
    raw: bool,
) -> None:
    params = dict(zip(names, values, strict=True)) or None
    scales = (k_scale, v_scale)
    _objects[handle].compute(
        q, k_cache, v_cache, scales=scales, params=params, out=into, lse=lse, with_lse=lse is not None, raw=raw
    )


def _fake_into(*args: Any, **kwargs: Any) -> None:
    """It writes to out and lse only."""


def _refusing_gradients(operator: Any) -> Any:
    """The operator for tensors that may require a gradient: as eager calls, it raises for one that does."""

    def forward_only(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            given = dict(zip(("q", "k_cache", "v_cache"), args[1:], strict=False))
            named = zip(kwargs["names"], kwargs["values"], strict=True)
            given |= {name: kwargs.get(name) for name in ("k_scale", "v_scale")}
            given |= {f"variant parameter {name!r}": value for name, value in named}
            for name, tensor in given.items():
                if tensor is not None and tensor.requires_grad:
                    raise GradientRequired(name=name)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args, **kwargs)

    return forward_only


for _name, _real, _shapes in (("run", _run, _fake), ("run_into", _run_into, _fake_into)):
    _LIBRARY.impl(_name, _real, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _refusing_gradients(getattr(torch.ops.attnloom, _name)), "Autograd")
    torch.library.register_fake(f"attnloom::{_name}", _shapes)
