"""Smaller equal expressions. No rule changes a value, NaN and signed infinities included."""

from __future__ import annotations

from collections.abc import Callable

from attnloom.variant import build
from attnloom.variant.expr import (
    FALSE,
    INT32_MAX,
    INT64_MAX,
    TRUE,
    Cast,
    Const,
    Dtype,
    Expr,
    Index,
    Number,
    Op,
    cast_to,
    const,
    index,
    op,
    promote,
    rewrite,
)
from attnloom.variant.ops import OPS

_LARGEST = {Dtype.INT32: INT32_MAX, Dtype.INT64: INT64_MAX}


def simplify(root: Expr) -> Expr:
    """`root` with constants folded, neutral elements and double negations gone."""
    while True:
        simpler = rewrite(root, _change)
        if simpler is root:
            return root
        root = simpler


def _change(node: Expr) -> Expr:
    if isinstance(node, Cast):
        return _fold_cast(node)
    if isinstance(node, Index):
        return index(node.param, tuple(widen_products(one) for one in node.indices), node.dtype)
    if not isinstance(node, Op):
        return node
    folded = _fold(node)
    return folded if folded is not None else _RULES.get(node.name, _arithmetic)(node)


def _in_range(value: Number, dtype: Dtype) -> bool:
    largest = _LARGEST.get(dtype)
    return largest is None or -largest - 1 <= value <= largest


def _fold(node: Op) -> Expr | None:
    """The constant that an operation on constants gives, None where Python cannot say."""
    values: list[Number] = []
    for operand in node.operands:
        if not isinstance(operand, Const):
            return None
        values.append(operand.value)
    try:
        result = OPS[node.name].fold(*values)
        return const(result, node.dtype) if _in_range(result, node.dtype) else None
    except (ArithmeticError, ValueError):
        return None


def _fold_cast(node: Cast) -> Expr:
    arg = node.arg
    if isinstance(arg, Const):
        try:
            folded = const(arg.value, node.dtype)
        except (ArithmeticError, ValueError):  # infinity or NaN to an integer
            return node
        return folded if _in_range(folded.value, node.dtype) else node
    return node


def _logic(node: Op) -> Expr:
    a, b = node.operands
    if isinstance(a, Const):
        a, b = b, a
    if isinstance(b, Const):
        if node.name == "xor":
            return build.invert(a) if b.value else a
        neutral = node.name == "and"
        return a if bool(b.value) is neutral else b
    if a is b:
        return FALSE if node.name == "xor" else a
    if _opposite(a) is b or _opposite(b) is a:
        return FALSE if node.name == "and" else TRUE
    return node


def _opposite(a: Expr) -> Expr | None:
    """The node that `a` negates, or the comparison that is its exact opposite."""
    if isinstance(a, Op) and a.name == "not":
        return a.operands[0]
    return _negate_comparison(a)


def _negate_comparison(a: Expr) -> Expr | None:
    if not isinstance(a, Op):
        return None
    if a.name in ("eq", "ne"):
        return op("ne" if a.name == "eq" else "eq", a.operands, Dtype.BOOL)
    if a.name in ("lt", "le") and all(one.dtype is not Dtype.FLOAT for one in a.operands):  # NaN has no order
        return op("le" if a.name == "lt" else "lt", a.operands[::-1], Dtype.BOOL)
    return None


def _not(node: Op) -> Expr:
    a = node.operands[0]
    if isinstance(a, Op) and a.name == "not":
        return a.operands[0]
    return _negate_comparison(a) or node


def _where(node: Op) -> Expr:
    condition, a, b = node.operands
    if isinstance(condition, Const):
        return cast_to(a if condition.value else b, node.dtype)
    if a is b:
        return cast_to(a, node.dtype)
    if isinstance(condition, Op) and condition.name == "not":
        return op("where", (condition.operands[0], b, a), node.dtype)
    if a is TRUE or b is FALSE:
        return build.bitwise("or", condition, b) if a is TRUE else build.bitwise("and", condition, a)
    if a is FALSE or b is TRUE:
        other = build.invert(condition)
        return build.bitwise("and", other, b) if a is FALSE else build.bitwise("or", other, a)
    return node


def _comparison(node: Op) -> Expr:
    a, b = node.operands
    if a is b and a.dtype is not Dtype.FLOAT:
        return const(node.name in ("le", "eq"))
    return node


def _is(a: Expr, value: Number) -> bool:
    return isinstance(a, Const) and a.value == value


def _arithmetic(node: Op) -> Expr:
    a = node.operands[0]
    if node.name == "neg" and isinstance(a, Op) and a.name == "neg":
        return a.operands[0]
    if OPS[node.name].arity != 2:
        return node
    b = node.operands[1]
    if node.name in ("minimum", "maximum") and a is b:
        return a
    if node.name in ("mul", "div") and _is(b, 1):
        return cast_to(a, node.dtype)
    if node.name == "mul" and _is(a, 1):
        return cast_to(b, node.dtype)
    return _whole(node, a, b) if node.dtype.is_int else node


def _whole(node: Op, a: Expr, b: Expr) -> Expr:
    """Rules that hold for integers only: a float has NaN and infinities."""
    if node.name == "mul" and (_is(a, 0) or _is(b, 0)):
        return const(0, node.dtype)
    if node.name == "mod" and _is(b, 1):
        return const(0, node.dtype)
    if node.name == "floordiv" and _is(b, 1):
        return cast_to(a, node.dtype)
    return node


def _sum(node: Op) -> Expr:
    a, b = node.operands
    if _is(b, 0):
        return cast_to(a, node.dtype)
    if node.name == "add" and _is(a, 0):
        return cast_to(b, node.dtype)
    if isinstance(b, Op) and b.name == "neg":
        return op("sub" if node.name == "add" else "add", (a, b.operands[0]), node.dtype)
    if node.name == "sub" and a is b and node.dtype.is_int:
        return const(0, node.dtype)
    return node


def widen_products(root: Expr) -> Expr:
    """An index whose products are computed in 64 bits: ``q_idx * kv_len`` passes 2**31 in ordinary use."""
    return rewrite(root, _widen)


def _widen(node: Expr) -> Expr:
    if not isinstance(node, Op) or not node.dtype.is_int:
        return node
    values = node.operands[1:] if node.name == "where" else node.operands
    dtype = promote(node.dtype, *(one.dtype for one in values))
    if node.name in ("mul", "shl") and dtype is Dtype.INT32:
        return op(node.name, tuple(cast_to(one, Dtype.INT64) for one in node.operands), Dtype.INT64)
    return op(node.name, node.operands, dtype)


_RULES: dict[str, Callable[[Op], Expr]] = {
    **dict.fromkeys(("and", "or", "xor"), _logic),
    **dict.fromkeys(("lt", "le", "eq", "ne"), _comparison),
    **dict.fromkeys(("add", "sub"), _sum),
    "not": _not,
    "where": _where,
}
