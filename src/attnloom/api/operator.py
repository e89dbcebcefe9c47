"""`run` as one operator for torch.compile: an integer handle stands for the engine object and its plan.

Eager calls never come here (an operator call costs tens of microseconds of dispatch).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from attnloom.errors import ParamError


class Engine(Protocol):
    """What a handle stands for: a `BatchAttention`, as far as the operator knows it."""

    def compute(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor | None,
        *,
        params: Mapping[str, Any] | None,
        with_lse: bool,
        raw: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `BatchAttention.compute`."""


_LIBRARY = torch.library.Library("attnloom", "DEF")
_LIBRARY.define(
    "run(SymInt handle, Tensor q, Tensor k_cache, Tensor? v_cache, *, "
    "str[] names, Tensor[] values, bool with_lse, bool raw) -> (Tensor, Tensor)"
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
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    *,
    params: Mapping[str, Any] | None,
    with_lse: bool,
    raw: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The call that dynamo records in place of `run`."""
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
    # An engine is often an attribute of a module, whose integers dynamo takes for constants: one graph a layer.
    with torch._dynamo.patch_dynamo_config(allow_unspec_int_on_nn_module=True):
        out, lse = torch.ops.attnloom.run(
            handle, q, k_cache, v_cache, names=names, values=values, with_lse=with_lse, raw=raw
        )
    return out, lse


def _run(
    handle: int,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    *,
    names: list[str],
    values: list[torch.Tensor],
    with_lse: bool,
    raw: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    engine = _objects[handle]
    params = dict(zip(names, values, strict=True)) or None
    out, lse = engine.compute(q, k_cache, v_cache, params=params, with_lse=with_lse, raw=raw)
    return out, q.new_empty(0, dtype=torch.float32) if lse is None else lse


def _fake(
    handle: int,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    *,
    names: list[str],
    values: list[torch.Tensor],
    with_lse: bool,
    raw: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    # From the tensors alone: looking the object up would make its handle a constant of the graph.
    rows, heads = q.shape[0], q.shape[1]
    head_dim_vo = (k_cache if v_cache is None else v_cache).shape[-1]
    out = q.new_empty((rows, heads, head_dim_vo), dtype=torch.float32 if raw else q.dtype)
    lse = q.new_empty((rows, heads) if with_lse else (0,), dtype=torch.float32)
    return out, lse


_LIBRARY.impl("run", _run, "CompositeExplicitAutograd")
torch.library.register_fake("attnloom::run", _fake)
