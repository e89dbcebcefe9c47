"""The operations of the language: how each is written, and how Python computes it on numbers.

`evaluate` has their torch functions, `uniform` numpy ones; device code will be in `emit`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OpInfo:
    """One operation.

    arity       number of operands
    fold        the operation on Python numbers; may raise ArithmeticError or ValueError: then it is not folded
    infix       how it is written between (or before) its operands, None for a call
    precedence  Python's, for parentheses
    commutes    whether the operands may change places without changing any bit of the result
    """

    arity: int
    fold: Callable[..., Any]
    infix: str | None = None
    precedence: int = 0
    commutes: bool = False


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def _sign(x: Any) -> Any:
    return x if math.isnan(x) else (x > 0) - (x < 0)


def _shift_left(a: int, b: int) -> int:
    if not 0 <= b < 64:
        raise ValueError("shift outside 0..63")
    return a << b


def _shift_right(a: int, b: int) -> int:
    if not 0 <= b < 64:
        raise ValueError("shift outside 0..63")
    return a >> b


def _no_nan(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def fold(a: Any, b: Any) -> Any:
        if math.isnan(a) or math.isnan(b):  # torch propagates NaN, Python's min and max do not
            return math.nan
        return choose(a, b)

    return fold


ATOM = 100
"""Precedence of what never needs parentheses."""

COMPARISON = 3
"""Precedence of comparisons, which never chain here."""

FLOAT_FUNCTIONS = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log1p",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "sin",
    "cos",
    "erf",
)
ROUNDINGS = ("floor", "ceil", "trunc", "round")

_CALLS: dict[str, tuple[int, Callable[..., Any]]] = {
    "abs": (1, abs),
    "exp": (1, math.exp),
    "exp2": (1, math.exp2),
    "expm1": (1, math.expm1),
    "log": (1, math.log),
    "log2": (1, math.log2),
    "log1p": (1, math.log1p),
    "sqrt": (1, math.sqrt),
    "rsqrt": (1, lambda x: 1.0 / math.sqrt(x)),
    "tanh": (1, math.tanh),
    "tanh_approx": (1, math.tanh),
    "sigmoid": (1, _sigmoid),
    "sin": (1, math.sin),
    "cos": (1, math.cos),
    "erf": (1, math.erf),
    "floor": (1, lambda x: float(math.floor(x))),
    "ceil": (1, lambda x: float(math.ceil(x))),
    "trunc": (1, lambda x: float(math.trunc(x))),
    "round": (1, lambda x: float(round(x))),
    "sign": (1, _sign),
    "isnan": (1, math.isnan),
    "minimum": (2, _no_nan(min)),
    "maximum": (2, _no_nan(max)),
    "where": (3, lambda c, a, b: a if c else b),
}

_INFIX: dict[str, tuple[int, Callable[..., Any], str, int, bool]] = {
    "or": (2, lambda a, b: a or b, "|", 4, True),
    "xor": (2, operator.ne, "^", 5, True),
    "and": (2, lambda a, b: a and b, "&", 6, True),
    "not": (1, operator.not_, "~", 10, False),
    "bitor": (2, operator.or_, "|", 4, True),
    "bitxor": (2, operator.xor, "^", 5, True),
    "bitand": (2, operator.and_, "&", 6, True),
    "bitnot": (1, operator.invert, "~", 10, False),
    "lt": (2, operator.lt, "<", 3, False),
    "le": (2, operator.le, "<=", 3, False),
    "eq": (2, operator.eq, "==", 3, True),
    "ne": (2, operator.ne, "!=", 3, True),
    "shl": (2, _shift_left, "<<", 7, False),
    "shr": (2, _shift_right, ">>", 7, False),
    "add": (2, operator.add, "+", 8, True),
    "sub": (2, operator.sub, "-", 8, False),
    "mul": (2, operator.mul, "*", 9, True),
    "div": (2, operator.truediv, "/", 9, False),
    "floordiv": (2, operator.floordiv, "//", 9, False),
    "mod": (2, operator.mod, "%", 9, False),
    "neg": (1, operator.neg, "-", 10, False),
    "pow": (2, math.pow, "**", 11, False),
}

OPS: dict[str, OpInfo] = {
    **{name: OpInfo(arity, fold, commutes=name in ("minimum", "maximum")) for name, (arity, fold) in _CALLS.items()},
    **{name: OpInfo(*row) for name, row in _INFIX.items()},
}
