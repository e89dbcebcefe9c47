"""A variant's operands: declared by the variant, given at construction, plan or run; the latest wins."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import torch

from attnloom.errors import DeviceMismatch, GradientRequired, InvalidArgument, ParamError
from attnloom.formats.index import IntArray
from attnloom.variant import Param, Program
from attnloom.variant.extents import check_extents
from attnloom.variant.params import check_shape, check_value, unknown

Operand = torch.Tensor | int | float | bool
Operands = dict[str, Operand]
Lengths = tuple[IntArray, IntArray]


class OperandTable:
    """Resolves operands of one program on one device."""

    def __init__(self, program: Program, device: torch.device, heads: tuple[int, int]) -> None:
        self.program = program
        self.params = program.params
        self.counts = {"num_qo_heads": heads[0], "num_kv_heads": heads[1]}
        self.device = device
        self.defaults: Operands = {}
        self._host_defaults: dict[str, Any] = {}
        for name, param in self.params.items():
            if param.default is not None:
                value = self.defaults[name] = self._checked(param, param.default)
                given = param.default
                if value is not given and isinstance(given, torch.Tensor) and given.device.type == "cpu":
                    self._host_defaults[name] = _host(given.detach()).copy()

    def at_plan(self, values: Mapping[str, Any] | None, lengths: Lengths) -> Operands:
        """Operands known at plan: defaults, those computed from (qo_len, kv_len), the plan's own.

        They are the caller's own tensors, and lie on the host where they were given there.
        """
        self._refuse_undeclared(values)
        if not self.params:
            return {}
        known = dict(self.defaults)
        for name, param in self.params.items():
            if param.from_lengths is not None:
                known[name] = self._checked(param, self._computed(param, lengths), stay=True)
        for name, value in (values or {}).items():
            known[name] = self._checked(self.params[name], value, stay=True)
        for name, value in known.items():
            check_shape(self.params[name], value, *lengths)
        self._check_extents(known, lengths)
        return known

    def at_run(self, planned: Operands, values: Mapping[str, Any] | None, lengths: Lengths | None) -> Operands:
        """All operands of a launch. Raises ParamError for one that nobody gave."""
        self._refuse_undeclared(values)
        resolved = planned
        if values:
            resolved = dict(planned)
            for name, value in values.items():
                resolved[name] = self._checked(self.params[name], value)
                if lengths is not None:
                    check_shape(self.params[name], resolved[name], *lengths)
            self._check_extents(resolved, lengths)
        for name in self.params:
            if name not in resolved:
                raise ParamError(
                    name=name,
                    given="no value",
                    expected=f"Declared: {self.params[name].describe()}.",
                    fix="Give it to the variant, to plan(params=...) or to run(params=...).",
                )
        return resolved

    def _computed(self, param: Param, lengths: Lengths) -> torch.Tensor:
        value = None if param.from_lengths is None else param.from_lengths(*lengths)
        try:
            computed = value if isinstance(value, torch.Tensor) else torch.as_tensor(value, device="cpu")
            return computed if computed.device.type == "cpu" else computed.to(self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ParamError(
                name=param.name,
                given=f"from_lengths returned {type(value).__name__} ({error})",
                expected=f"Declared: {param.describe()}.",
                fix="Return a tensor or a numpy array.",
            ) from None

    def _check_extents(self, operands: Operands, lengths: Lengths | None) -> None:
        batch = 0 if lengths is None else lengths[0].shape[0]  # a state alone does not know its requests
        check_extents(self.program, operands, {**self.counts, "batch": batch})

    def _refuse_undeclared(self, values: Mapping[str, Any] | None) -> None:
        if values is not None and not isinstance(values, Mapping):
            raise InvalidArgument(
                name="params", given=type(values).__name__, supported="a mapping of names to values", fix=""
            )
        for name in values or ():
            if name not in self.params:
                raise unknown(name, self.params)

    def host_values(self, operands: Operands, names: frozenset[str]) -> dict[str, Any]:
        """The named operands on the host (numpy arrays and numbers), for the bounds; a missing one is left out.

        One that was given on a device is read back, which waits for the device.
        """
        found: dict[str, Any] = {}
        if not operands:
            return found
        for name in names & operands.keys():
            value = operands[name]
            known = name in self._host_defaults and value is self.defaults[name]
            found[name] = self._host_defaults[name] if known else _host(value)
        return found

    def _checked(self, param: Param, value: Any, *, stay: bool = False) -> Operand:
        """The value as declared, on the device; stay: on the host where it lies there."""
        if isinstance(value, torch.Tensor):
            if value.requires_grad and torch.is_grad_enabled():
                raise GradientRequired(name=f"variant parameter {param.name!r}")
            value = value.detach()
        checked = check_value(param, value)
        if isinstance(checked, torch.Tensor) and checked.device != self.device:
            if checked.device.type != "cpu":
                raise DeviceMismatch(
                    name=f"variant parameter {param.name!r}", given=checked.device, expected=self.device
                )
            checked = checked if stay else checked.pin_memory().to(self.device, non_blocking=True)
        return checked


def copies(operands: Operands, names: Set[str], device: torch.device) -> Operands:
    """Copies of the named tensors on the device, so that a caller's later writes do not reach them."""
    named = {name: operands[name] for name in names if name in operands}
    return {name: x.clone() for name, x in named.items() if isinstance(x, torch.Tensor) and x.device == device}


def same_values(left: Operand, right: Operand) -> bool:
    """Whether two operands hold the same numbers."""
    if left is right:
        return True
    return bool(np.array_equal(_host(left), _host(right)))


def _host(value: Operand) -> Any:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value
