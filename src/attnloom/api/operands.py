"""A variant's operands: declared by the variant, given at construction, plan or run; the latest wins."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch

from attnloom.errors import DeviceMismatch, GradientRequired, ParamError
from attnloom.formats.index import IntArray
from attnloom.variant import Param, Program

Operand = torch.Tensor | int | float | bool
Operands = dict[str, Operand]


class OperandTable:
    """Resolves operands of one program on one device."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self.params = program.params
        self.device = device
        self.defaults: Operands = {
            name: self._checked(param, param.default)
            for name, param in self.params.items()
            if param.default is not None
        }

    def at_plan(self, values: Mapping[str, Any] | None, qo_len: IntArray, kv_len: IntArray) -> Operands:
        """Operands known at plan: defaults, those computed from the lengths, the plan's own (copied)."""
        if not self.params:
            self._refuse_undeclared(values)
            return {}
        known = dict(self.defaults)
        for name, param in self.params.items():
            if param.from_lengths is not None:
                known[name] = self._checked(param, _as_tensor(param.from_lengths(qo_len, kv_len), self.device))
        for name, value in self._declared(values).items():
            checked = self._checked(self.params[name], value)
            known[name] = checked.clone() if isinstance(checked, torch.Tensor) else checked
        return known

    def at_run(self, planned: Operands, values: Mapping[str, Any] | None) -> Operands:
        """All operands of a launch. Raises ParamError for one that nobody gave."""
        if not self.params:
            self._refuse_undeclared(values)
            return planned
        resolved = planned
        if values:
            resolved = dict(planned)
            for name, value in self._declared(values).items():
                resolved[name] = self._checked(self.params[name], value)
        for name in self.params:
            if name not in resolved:
                raise ParamError(
                    name=name,
                    given="no value",
                    expected=f"Declared as {describe(self.params[name])}.",
                    fix="Give it to the variant, to plan(params=...) or to run(params=...).",
                )
        return resolved

    def _declared(self, values: Mapping[str, Any] | None) -> Mapping[str, Any]:
        self._refuse_undeclared(values)
        return values or {}

    def _refuse_undeclared(self, values: Mapping[str, Any] | None) -> None:
        for name in values or ():
            if name not in self.params:
                close = get_close_matches(name, self.params, n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                declared = ", ".join(sorted(self.params)) or "none"
                raise ParamError(
                    name=name,
                    given="not declared by the variant",
                    expected=f"Declared: {declared}.{hint}",
                    fix="Declare it with Variant(params={...}).",
                )

    def _checked(self, param: Param, value: Any) -> Operand:
        if isinstance(value, torch.Tensor):
            return self._checked_tensor(param, value)
        if isinstance(value, (np.ndarray, np.generic)):
            return self._checked_tensor(param, torch.as_tensor(value, device=self.device))
        if isinstance(value, (bool, int, float)) and param.ndim == 0:
            return value
        raise ParamError(
            name=param.name,
            given=f"{type(value).__name__} {value!r}",
            expected=f"Declared as {describe(param)}.",
            fix="",
        )

    def _checked_tensor(self, param: Param, value: torch.Tensor) -> torch.Tensor:
        if value.requires_grad and torch.is_grad_enabled():
            raise GradientRequired(name=f"variant parameter {param.name!r}")
        if value.ndim != param.ndim or _kind(value.dtype) != _kind(param.dtype):
            raise ParamError(
                name=param.name,
                given=f"{value.ndim}-D {value.dtype} of shape {tuple(value.shape)}",
                expected=f"Declared as {describe(param)}.",
                fix="Reshape or convert it, or declare it otherwise.",
            )
        value = value.detach()
        if value.device != self.device:
            if value.ndim or value.device.type != "cpu":
                raise DeviceMismatch(name=f"variant parameter {param.name!r}", given=value.device, expected=self.device)
            value = value.to(self.device)
        return value.to(param.dtype)


def describe(param: Param) -> str:
    """A parameter's declaration for people."""
    return f"{param.dtype} scalar" if param.ndim == 0 else f"{param.dtype} tensor with {param.ndim} dimension(s)"


def host_values(operands: Operands, names: frozenset[str]) -> dict[str, Any]:
    """The named operands on the host (numpy arrays and numbers), for the bounds; a missing one is left out."""
    return {name: _host(operands[name]) for name in names if name in operands}


def same_values(left: Operand, right: Operand) -> bool:
    """Whether two operands hold the same numbers."""
    if left is right:
        return True
    return bool(np.array_equal(_host(left), _host(right)))


def _host(value: Operand) -> Any:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value


def _as_tensor(value: Any, device: torch.device) -> Any:
    return torch.as_tensor(value, device=device) if not isinstance(value, torch.Tensor) else value.to(device)


def _kind(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point else "int"
