"""How long a tensor operand must be so that indexing it by head or request stays inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from attnloom.errors import ParamError
from attnloom.variant.expr import Index, Symbol, postorder
from attnloom.variant.program import Program

COUNTED = {"qo_head": "num_qo_heads", "head": "num_qo_heads", "kv_head": "num_kv_heads", "batch": "batch"}
"""Symbols that run over a whole count, and the count's name."""


class Extent(NamedTuple):
    """Dimension `dim` of parameter `name` is indexed with 0 .. n - 1, n the COUNTED value `counted_by`."""

    name: str
    dim: int
    counted_by: str


def extents(program: Program) -> tuple[Extent, ...]:
    """What the functors of `program` index by a head or request symbol; found once, kept on the program."""
    found: tuple[Extent, ...] | None = program.__dict__.get("_extents")
    if found is None:
        roots = [expr for expr in program.expressions().values() if expr is not None]
        indices = {node for node in postorder(*roots) if isinstance(node, Index)}
        wanted = {
            Extent(node.param, dim, COUNTED[one.name])
            for node in indices
            for dim, one in enumerate(node.indices)
            if isinstance(one, Symbol) and one.name in COUNTED
        }
        found = program.__dict__["_extents"] = tuple(sorted(wanted))
    return found


def check_extents(program: Program, values: Mapping[str, object], counts: Mapping[str, int]) -> None:
    """Compare tensors with what is read of them.

    Args:
        program: whose functors read them.
        values: operands by name; one that is missing is not checked.
        counts: ``num_qo_heads``, ``num_kv_heads`` and ``batch``.

    Raises:
        ParamError: a tensor is shorter than its functor reads, or has elements for other heads.
    """
    for name, dim, counted_by in extents(program):
        value = values.get(name)
        if not isinstance(value, torch.Tensor):
            continue
        extent, wanted = value.shape[dim], counts[counted_by]
        # a table of requests may be a buffer for more of them; one of heads belongs to exactly these heads
        if extent < wanted or (extent > wanted and counted_by != "batch"):
            raise ParamError(
                name=name,
                given=f"shape {tuple(value.shape)}",
                expected=f"Dimension {dim} is indexed with {wanted} values ({counted_by}).",
                fix="Give one element for each; of a larger table, the part that belongs to these heads.",
            )
