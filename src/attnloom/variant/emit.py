"""From expressions to device functions: text of `triton.jit` functions, the same for Triton and Gluon kernels.

A functor becomes one function that is free of layouts: it has no arange, reshape or reduction, its arguments
broadcast against each other, and every operation that Triton means otherwise than Python (``//``, ``%``,
``tanh``, loads of bools, indices out of range) is a call into ``attnloom.kernels.vocabulary``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from attnloom.variant.expr import Cast, Const, Dtype, Expr, Index, Op, ParamRef, Symbol, postorder
from attnloom.variant.ops import OPS
from attnloom.variant.params import Param
from attnloom.variant.program import Program

FUNCTIONS = {"logits": "logits_transform", "mask": "logits_mask", "sink": "sink", "output": "output_transform"}
POSITIONS = ("q_pos", "kv_pos", "q_idx", "qo_head", "kv_head", "batch", "qo_len", "kv_len")
SIGNATURES = {
    "logits": ("logits", *POSITIONS),
    "mask": POSITIONS,
    "sink": ("qo_head", "kv_head", "batch"),
    "output": ("x", "pos", "head", "batch", "lse"),
}
_TYPES = {Dtype.BOOL: "tl.int1", Dtype.INT32: "tl.int32", Dtype.INT64: "tl.int64", Dtype.FLOAT: "tl.float32"}
_PLAIN_INFIX = frozenset(
    ["or", "xor", "and", "bitor", "bitxor", "bitand", "lt", "le", "eq", "ne", "shl", "shr", "add", "sub", "mul"]
)
_CALLS = {name: f"voc.{name}" for name in OPS if OPS[name].infix is None} | {
    "exp": "tl.exp",
    "exp2": "tl.exp2",
    "log": "tl.log",
    "log2": "tl.log2",
    "sqrt": "tl.sqrt",
    "sin": "tl.sin",
    "cos": "tl.cos",
    "abs": "tl.abs",
    "floor": "tl.floor",
    "ceil": "tl.ceil",
    "where": "tl.where",
    "pow": "voc.power",
}
_HEADER = '''"""Device functions of one variant; emitted by attnloom.variant.emit, do not edit."""

import triton
import triton.language as tl

from attnloom.kernels import vocabulary as voc
'''


@dataclass(frozen=True)
class OperandSlots:
    """Where each parameter's fields stand in the kernel's flat `operands` tuple.

    A scalar takes one field (its value, or a pointer to it); a tensor one for its pointer and, per dimension,
    extent and stride.
    """

    first: Mapping[str, int]
    count: int

    @staticmethod
    def of(params: Mapping[str, Param]) -> OperandSlots:
        """Slots in the order of the parameters' names."""
        first, at = {}, 0
        for name in sorted(params):
            first[name] = at
            at += 1 + 2 * params[name].ndim
        return OperandSlots(first, at)


def emit(program: Program) -> str:
    """The module text of a program's functors; empty functors are left out."""
    slots = OperandSlots.of(program.params)
    parts = [_HEADER]
    for slot, expr in program.expressions().items():
        if expr is not None:
            parts.append(_function(slot, expr, program.params, slots))
    return "\n\n".join(parts)


def _function(slot: str, expr: Expr, params: Mapping[str, Param], slots: OperandSlots) -> str:
    lines = [
        "@triton.jit",
        f"def {FUNCTIONS[slot]}({', '.join(SIGNATURES[slot])}, operands):",
    ]
    names: dict[Expr, str] = {}
    for node in postorder(expr):
        text = _leaf(node, slots)
        if text is None:
            text, inline = _compound(node, names, params, slots), False
        else:
            inline = True
        if inline:
            names[node] = text
            continue
        names[node] = f"t{len(lines) - 2}"
        lines.append(f"    {names[node]} = {text}")
    lines.append(f"    return {names[expr]}\n")
    return "\n".join(lines)


def _leaf(node: Expr, slots: OperandSlots) -> str | None:
    if isinstance(node, Const):
        return _number(node)
    if isinstance(node, Symbol):
        return node.name
    if isinstance(node, ParamRef):
        return f"voc.scalar(operands[{slots.first[node.name]}], {_TYPES[node.dtype]})"
    return None


def _number(node: Const) -> str:
    if node.dtype is Dtype.FLOAT:
        value = float(node.value)
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    return repr(node.value)


def _compound(node: Expr, names: Mapping[Expr, str], params: Mapping[str, Param], slots: OperandSlots) -> str:
    args = [names[arg] for arg in node.args]
    if isinstance(node, Index):
        return _load(node, args, params[node.param], slots.first[node.param])
    if isinstance(node, Cast):
        return f"voc.cast({args[0]}, {_TYPES[node.dtype]})"
    if not isinstance(node, Op):
        raise TypeError(f"unknown node {type(node).__name__}")
    floats = any(arg.dtype is Dtype.FLOAT for arg in node.args)
    if node.name in _PLAIN_INFIX:
        return f"{args[0]} {OPS[node.name].infix} {args[1]}"
    if node.name == "div":
        return f"voc.divide({args[0]}, {args[1]})"
    if node.name in ("floordiv", "mod"):
        kind = "float" if floats else "int"
        return f"voc.{node.name}_{kind}({args[0]}, {args[1]})"
    if node.name == "neg":
        return f"-{args[0]}"
    if node.name in ("not", "bitnot"):
        return f"~{args[0]}"
    return f"{_CALLS[node.name]}({', '.join(args)})"


def _load(node: Index, args: list[str], param: Param, first: int) -> str:
    offset = " + ".join(
        f"voc.clamp_index({arg}, operands[{first + 1 + 2 * axis}]) * operands[{first + 2 + 2 * axis}]"
        for axis, arg in enumerate(args)
    )
    return f"voc.element(operands[{first}] + ({offset}), {_TYPES[node.dtype]})"
