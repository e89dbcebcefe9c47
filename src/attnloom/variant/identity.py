"""A digest that two variants share exactly when they compute the same thing the same way."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from attnloom.errors import VariantError
from attnloom.variant.expr import Cast, Const, Expr, Index, Op, ParamRef, Symbol, postorder
from attnloom.variant.params import Param

FORMAT = "attnloom-variant-1"


def identity(slots: Mapping[str, Expr | None], params: Mapping[str, Param], use_softmax: bool) -> str:
    """sha256 (hex) over expressions, declarations (not values) and `use_softmax`.

    Raises:
        VariantError: anything that has no canonical text.
    """
    lines = [FORMAT, f"softmax {use_softmax}"]
    for name in sorted(params):
        declared = params[name]
        lines.append(f"param {name} {declared.dtype} {declared.ndim} {declared.from_lengths is not None}")
    for slot, expr in slots.items():
        lines.append(f"slot {slot}")
        lines.extend(canonical_lines(expr) if expr is not None else ["none"])
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def canonical_lines(root: Expr) -> list[str]:
    """One line per node, operands by line number: the same graph always gives the same text."""
    number: dict[Expr, int] = {}
    lines = []
    for node in postorder(root):
        number[node] = len(number)
        lines.append(f"{_word(node)} {node.dtype.value} {' '.join(str(number[arg]) for arg in node.args)}")
    return lines


def _word(node: Expr) -> str:
    if isinstance(node, Const):
        value = node.value
        if type(value) not in (bool, int, float):
            raise _no_fingerprint(value)
        return f"const {value.hex() if isinstance(value, float) else value!r}"
    if isinstance(node, Symbol):
        return f"symbol {node.name}"
    if isinstance(node, ParamRef):
        return f"scalar {node.name}"
    if isinstance(node, Index):
        return f"index {node.param}"
    if isinstance(node, Op):
        return f"op {node.name}"
    if isinstance(node, Cast):
        return "cast"
    raise _no_fingerprint(node)


def _no_fingerprint(thing: object) -> VariantError:
    return VariantError(
        where="identity",
        reason=f"{type(thing).__name__} {thing!r} has no canonical text, so compiled code could be confused",
        fix="Build variants from Python functions, numbers and declared parameters",
    )
