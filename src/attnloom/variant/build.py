"""Typed construction of operations: promotion rules, and errors that say how to write it."""

from __future__ import annotations

from attnloom.variant.expr import Const, Dtype, Expr, cast_to, const, op, promote
from attnloom.variant.location import language_error
from attnloom.variant.ops import OPS

_WORDS = {Dtype.BOOL: "a boolean", Dtype.INT32: "an integer", Dtype.INT64: "an integer", Dtype.FLOAT: "a float"}
_SWAPPED = {"gt": "lt", "ge": "le"}


def arithmetic(name: str, a: Expr, b: Expr) -> Expr:
    """``+ - * // %`` and minimum, maximum: the wider type of both."""
    if a.dtype is Dtype.BOOL and b.dtype is Dtype.BOOL:
        raise language_error(
            f"{_sign(name)} on two booleans",
            "Combine masks with &, |, ^ and ~; choose numbers with torch.where(mask, a, b)",
        )
    dtype = promote(a.dtype, b.dtype)
    return op(name, (_number(a, dtype), _number(b, dtype)), dtype)


def divide(a: Expr, b: Expr) -> Expr:
    """``/``: always a float."""
    return op("div", (_number(a, Dtype.FLOAT), _number(b, Dtype.FLOAT)), Dtype.FLOAT)


def power(a: Expr, b: Expr) -> Expr:
    """``**``; small constant powers become products."""
    if isinstance(b, Const) and b.value in (1, 2, 3, 4) and a.dtype is not Dtype.BOOL:
        if isinstance(b.value, float):
            a = cast_to(a, Dtype.FLOAT)
        square = arithmetic("mul", a, a) if b.value > 1 else a
        return square if b.value <= 2 else arithmetic("mul", square, a if b.value == 3 else square)
    if isinstance(b, Const) and b.value == 0.5:
        return elementwise("sqrt", a)
    if a.dtype is not Dtype.FLOAT and b.dtype is not Dtype.FLOAT:
        raise language_error(
            f"{_WORDS[a.dtype]} to the power of {_WORDS[b.dtype]}",
            "Convert one to float, x.float() ** y, or write 1 << y for a power of two",
        )
    return op("pow", (_number(a, Dtype.FLOAT), _number(b, Dtype.FLOAT)), Dtype.FLOAT)


def compare(name: str, a: Expr, b: Expr) -> Expr:
    """``< <= > >= == !=``; the last two also between booleans."""
    if name in _SWAPPED:
        name, a, b = _SWAPPED[name], b, a
    if a.dtype is Dtype.BOOL and b.dtype is Dtype.BOOL:
        if name in ("eq", "ne"):
            different = op("xor", (a, b), Dtype.BOOL)
            return different if name == "ne" else invert(different)
        raise language_error("an order between two booleans", "Combine them with &, | and ~")
    dtype = promote(a.dtype, b.dtype)
    return op(name, (_number(a, dtype), _number(b, dtype)), Dtype.BOOL)


def bitwise(name: str, a: Expr, b: Expr) -> Expr:
    """``& | ^``: logic on booleans, bits on integers."""
    if Dtype.FLOAT in (a.dtype, b.dtype):
        raise language_error(
            f"{_sign(name)} on {_WORDS[a.dtype]} and {_WORDS[b.dtype]}",
            "Masks combine with & | ^ only as booleans: compare first, (x != 0) & mask; put comparisons in parentheses",
        )
    dtype = promote(a.dtype, b.dtype)
    return op(name if dtype is Dtype.BOOL else f"bit{name}", (_number(a, dtype), _number(b, dtype)), dtype)


def shift(name: str, a: Expr, b: Expr) -> Expr:
    """``<< >>`` on integers; ``>>`` keeps the sign."""
    if not (a.dtype.is_int and b.dtype.is_int):
        raise language_error(
            f"{_sign(name)} on {_WORDS[a.dtype]} and {_WORDS[b.dtype]}", "Shifts take integers: x.to(torch.int32) << n"
        )
    return op(name, (a, b), promote(a.dtype, b.dtype))


def logical(name: str, a: Expr, b: Expr) -> Expr:
    """torch.logical_and, _or, _xor: operands compared with 0 first."""
    return op(name, (truth(a), truth(b)), Dtype.BOOL)


def truth(a: Expr) -> Expr:
    """Whether `a` is not 0."""
    return a if a.dtype is Dtype.BOOL else compare("ne", a, const(0))


def invert(a: Expr) -> Expr:
    """``~``: not on booleans, bits on integers."""
    if a.dtype is Dtype.FLOAT:
        raise language_error("~ on a float", "~ inverts a boolean mask: ~(x > 0)")
    return op("not" if a.dtype is Dtype.BOOL else "bitnot", (a,), a.dtype)


def negate(a: Expr) -> Expr:
    """``-``."""
    if a.dtype is Dtype.BOOL:
        raise language_error("- on a boolean", "Write ~mask for its opposite, or torch.where(mask, -1, 0)")
    return op("neg", (a,), a.dtype)


def elementwise(name: str, a: Expr) -> Expr:
    """A function of one number that gives a float: exp, tanh, ..."""
    return op(name, (cast_to(a, Dtype.FLOAT),), Dtype.FLOAT)


def rounding(name: str, a: Expr) -> Expr:
    """floor, ceil, trunc, round: floats stay floats, integers are left alone."""
    return op(name, (a,), Dtype.FLOAT) if a.dtype is Dtype.FLOAT else cast_to(a, promote(a.dtype, Dtype.INT32))


def keeping(name: str, a: Expr) -> Expr:
    """abs and sign: the type of the operand."""
    a = cast_to(a, promote(a.dtype, Dtype.INT32))
    return op(name, (a,), a.dtype)


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    """torch.where(condition, a, b)."""
    if condition.dtype is not Dtype.BOOL:
        raise language_error(
            f"torch.where with {_WORDS[condition.dtype]} as condition", "Give a boolean: torch.where(x != 0, a, b)"
        )
    dtype = promote(a.dtype, b.dtype)
    return op("where", (condition, _number(a, dtype), _number(b, dtype)), dtype)


def _number(a: Expr, beside: Dtype) -> Expr:
    """A boolean beside a number counts as 0 or 1; integers and floats mix as they are."""
    return cast_to(a, beside) if a.dtype is Dtype.BOOL else a


def _sign(name: str) -> str:
    return OPS[name].infix or f"torch.{name}"


def is_nan(a: Expr) -> Expr:
    """torch.isnan: False on integers."""
    return op("isnan", (a,), Dtype.BOOL) if a.dtype is Dtype.FLOAT else const(False)
