"""Declared maxima, and what they hold fast: a graph captured with one plan does the work of every later plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from attnloom.api.operands import Operands
from attnloom.api.planning import PlanInputs
from attnloom.errors import CaptureRefused, InvalidArgument, MaximumExceeded, PlanFormChanged, PlanMismatch
from attnloom.schedule.work import TileClass
from attnloom.spec import positive_int
from attnloom.variant import Program
from attnloom.variant.extents import extents


@dataclass(frozen=True)
class Maxima:
    """Requests, query rows and page-table entries that no plan exceeds."""

    batch: int
    total_q: int
    pages: int

    @staticmethod
    def declared(max_batch_size: Any, max_total_q: Any, max_pages: Any) -> Maxima | None:
        """All three, or None where none is given. Raises InvalidArgument for one or two alone."""
        given = {"max_batch_size": max_batch_size, "max_total_q": max_total_q, "max_pages": max_pages}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == len(given):
            return None
        if missing:
            raise InvalidArgument(
                name=missing[0],
                given=None,
                supported=f"an integer >= 1 beside {', '.join(name for name in given if name not in missing)}",
                fix="Declare all three maxima or none.",
            )
        return Maxima(*(positive_int(name, value) for name, value in given.items()))

    def check(self, inputs: PlanInputs) -> None:
        """Raise MaximumExceeded for a batch beyond them."""
        kv = inputs.kv
        what = "kv_indptr[-1] rows of ragged KV" if kv.pages is None else "page-table entries"
        if kv.row_stride:
            what = f"{what} (batch x pages of the longest request)"
        for name, declared, given, unit in (
            ("max_batch_size", self.batch, inputs.qo_len.shape[0], "requests"),
            ("max_total_q", self.total_q, inputs.total_q, "query rows"),
            ("max_pages", self.pages, kv.num_entries, what),
        ):
            if given > declared:
                raise MaximumExceeded(
                    name=name,
                    declared=declared,
                    given=f"{given} {unit}",
                    fix="Build the object with larger maxima, or divide the batch.",
                )


@dataclass(frozen=True)
class Form:
    """What every plan of one object has in common: it decides how kernels are launched, not what they read."""

    kv: str
    page_size: int
    classes: tuple[TileClass, ...]
    q_pos: bool
    kv_pos: bool
    operands: frozenset[str]

    @staticmethod
    def of(inputs: PlanInputs, classes: tuple[TileClass, ...], operands: Operands) -> Form:
        """The form of one plan."""
        return Form(
            "ragged" if inputs.kv.pages is None else "paged",
            inputs.kv.page_size,
            classes,
            inputs.q_pos is not None,
            inputs.kv_pos is not None,
            frozenset(operands),
        )

    def check(self, first: Form) -> None:
        """Raise PlanFormChanged where this plan's form is another than the first's."""
        if self == first:
            return
        for field in fields(self):
            given, expected = getattr(self, field.name), getattr(first, field.name)
            if given != expected:
                name, words = _WORDS[field.name]
                raise PlanFormChanged(name=name, given=words(given), expected=words(expected))


_WORDS: Mapping[str, tuple[str, Any]] = {
    "kv": ("kv", str),
    "page_size": ("kv.page_size", str),
    "classes": ("num_ctas", lambda classes: f"{[tile.num_ctas for tile in classes]} CTAs a tile class"),
    "q_pos": ("q_pos", lambda given: "given" if given else "not given"),
    "kv_pos": ("kv_pos", lambda given: "given" if given else "not given"),
    "operands": ("params", lambda names: f"values at plan for {sorted(names) or 'none'}"),
}


def operand_shapes(program: Program, operands: Operands, maxima: Maxima) -> dict[str, tuple[int, ...]]:
    """Room for each operand: the first plan's shape, and one element a request where requests index it."""
    shapes = {}
    for name, value in operands.items():
        shapes[name] = list(value.shape) if isinstance(value, torch.Tensor) else []
    for name, dim, counted_by in extents(program):
        if counted_by == "batch" and name in shapes:
            shapes[name][dim] = max(shapes[name][dim], maxima.batch)
    return {name: tuple(shape) for name, shape in shapes.items()}


def check_operand(name: str, value: torch.Tensor, room: tuple[int, ...]) -> None:
    """Raise MaximumExceeded for a value that is larger than its buffer."""
    if any(given > have for given, have in zip(value.shape, room, strict=True)):
        raise MaximumExceeded(
            name=f"variant parameter {name!r}",
            declared=f"room for shape {room}",
            given=f"shape {tuple(value.shape)}",
            fix="Its room is that of the first plan's value: make the first plan with the largest one.",
        )


def check_captured_run(maxima: Maxima, q: torch.Tensor, views: tuple[torch.Tensor, ...], ragged: bool) -> None:
    """Under capture the tensors of `run` serve every later plan, so that they have the declared rows."""
    needed = {"q": (q, maxima.total_q, "max_total_q")}
    if ragged:
        needed |= {"k_cache": (views[0], maxima.pages, "max_pages"), "v_cache": (views[1], maxima.pages, "max_pages")}
    for name, (tensor, rows, declared) in needed.items():
        if tensor.shape[0] < rows:
            raise PlanMismatch(
                name=name,
                given=f"{tensor.shape[0]} rows while a CUDA graph is being captured",
                source="constructor",
                expected=f"at least {declared} = {rows} rows",
                fix="Later plans of the graph may use them all.",
            )


def check_captured_params(params: Mapping[str, Any] | None, device: torch.device) -> None:
    """Under capture an operand given to `run` must lie on the device: a graph reads its memory at every replay."""
    for name, value in (params or {}).items():
        if isinstance(value, torch.Tensor) and value.device == device:
            continue
        raise CaptureRefused(
            what=f"run got variant parameter {name!r} from the host",
            reason="the graph would keep this one value",
            fix="Give it to plan, or as a tensor on the device that you write to between replays.",
        )
