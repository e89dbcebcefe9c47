"""An object with declared maxima: its buffers from the first plan on, and what a capture asks of `run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from attnloom.api.fixed import FixedBuffers
from attnloom.api.maxima import Form, Maxima, check_captured_run, operand_shapes
from attnloom.api.operands import Operands
from attnloom.api.placing import Placed
from attnloom.api.planning import PlanInputs
from attnloom.errors import ParamError
from attnloom.schedule.capacity import Limits, most_sections
from attnloom.schedule.result import Schedule
from attnloom.schedule.work import TileClass
from attnloom.spec import AttentionSpec
from attnloom.variant import Program
from attnloom.variant.bounds import compile_bounds

_LONGEST_KV = 2**31 - 1


class Declared:
    """The maxima of one object, and its buffers."""

    def __init__(self, maxima: Maxima, spec: AttentionSpec, program: Program, device: torch.device) -> None:
        self.maxima = maxima
        self.buffers: FixedBuffers | None = None
        self._spec, self._program, self._device = spec, program, device

    def another(self) -> Declared:
        """The same maxima for an object of its own."""
        return Declared(self.maxima, self._spec, self._program, self._device)

    def place(self, inputs: PlanInputs, classes: tuple[TileClass, ...], operands: Operands, made: Schedule) -> Placed:
        """The Plan in the object's buffers, which the first one allocates.

        Raises PlanFormChanged and MaximumExceeded, with nothing written.
        """
        form = Form.of(inputs, classes, operands)
        if self.buffers is not None:
            form.check(self.buffers.form)
            return self.buffers.place(inputs, made, operands)
        made_buffers = self._allocate(form, operands)
        placed = made_buffers.place(inputs, made, operands)
        self.buffers = made_buffers
        return placed

    def rows(self, q: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], ragged: bool) -> range:
        """Rows of out that a captured launch writes for sure, and (its end) that out must have.

        Raises PlanMismatch for tensors that a later plan within the maxima could leave.
        """
        check_captured_run(self.maxima, q, caches, ragged)
        return range(self.maxima.total_q, self.maxima.total_q)

    def refuse(self, name: str) -> ParamError:
        """The error for an operand of `run` that would need other tiles than the plan's."""
        return ParamError(
            name=name,
            given="a value at run that the plan did not have",
            expected="Under declared maxima an operand that decides which tiles are read comes with plan.",
            fix="Give it to plan(params=...).",
        )

    def _allocate(self, form: Form, operands: Operands) -> FixedBuffers:
        spec, maxima = self._spec, self.maxima
        may, not_must = compile_bounds(self._program).most_bands(
            not (form.q_pos or form.kv_pos), compile_bounds(self._program).structural_params - form.operands
        )
        limits = Limits(
            batch=maxima.batch,
            total_q=maxima.total_q,
            longest_kv=min(maxima.pages * form.page_size, _LONGEST_KV),
            group_size=spec.group_size,
            num_kv_heads=spec.num_kv_heads,
            runs=None if form.kv_pos else may + 2 * not_must,
        )
        params: Mapping[str, Any] = self._program.params
        shapes = operand_shapes(self._program, operands, maxima)
        rooms = {name: (params[name].dtype, shape) for name, shape in shapes.items()}
        return FixedBuffers(form, maxima, most_sections(limits, form.classes), rooms, spec=spec, device=self._device)
