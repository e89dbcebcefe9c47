"""Linear forms: an expression as a sum of atoms with constant factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from attnloom.variant.expr import Cast, Const, Dtype, Expr, Op, postorder, symbol

KV_POS = symbol("kv_pos", Dtype.INT32)
Q_POS = symbol("q_pos", Dtype.INT32)
Q_IDX = symbol("q_idx", Dtype.INT32)
QO_LEN = symbol("qo_len", Dtype.INT32)
KV_LEN = symbol("kv_len", Dtype.INT32)
SMALLEST, LARGEST = Fraction(1, 2**60), Fraction(2**60)


@dataclass(frozen=True)
class Linear:
    """``const + sum(factor * atom)``.

    weights  like factors, but summed by magnitude: they bound what was added up before terms cancelled, and so
             the rounding of a float evaluation; `const_weight` likewise
    """

    factors: Mapping[Expr, Fraction] = field(default_factory=dict)
    const: Fraction = Fraction(0)
    weights: Mapping[Expr, Fraction] = field(default_factory=dict)
    const_weight: Fraction = Fraction(0)

    def plus(self, other: Linear, factor: Fraction = Fraction(1)) -> Linear:
        """``self + factor * other``."""
        factors, weights = dict(self.factors), dict(self.weights)
        for atom, value in other.factors.items():
            factors[atom] = factors.get(atom, Fraction(0)) + factor * value
        for atom, value in other.weights.items():
            weights[atom] = weights.get(atom, Fraction(0)) + abs(factor) * value
        return Linear(
            {atom: value for atom, value in factors.items() if value},
            self.const + factor * other.const,
            weights,
            self.const_weight + abs(factor) * other.const_weight,
        )

    def minus(self, other: Linear) -> Linear:
        """``self - other``."""
        return self.plus(other, Fraction(-1))

    def times(self, factor: Fraction) -> Linear:
        """``factor * self``."""
        return Linear().plus(self, factor)

    def is_ordinary(self) -> bool:
        """Whether every constant is of a size that fp32 can add and multiply without overflow or underflow."""
        sizes = (*self.weights.values(), *map(abs, self.factors.values()), self.const_weight, abs(self.const))
        return all(size == 0 or SMALLEST <= size <= LARGEST for size in sizes)

    def without(self, *atoms: Expr) -> Linear:
        """The sum without these atoms, which still weigh as much."""
        factors = {atom: value for atom, value in self.factors.items() if atom not in atoms}
        return Linear(factors, self.const, self.weights, self.const_weight)

    def forgetting(self, gone: Expr) -> Linear:
        """The sum as if `gone` had never been in it."""
        weights = {atom: value for atom, value in self.weights.items() if atom is not gone}
        return Linear(self.without(gone).factors, self.const, weights, self.const_weight)


def atom(expr: Expr) -> Linear:
    """The form that is `expr` itself."""
    return Linear({expr: Fraction(1)}, Fraction(0), {expr: Fraction(1)})


def linear(expr: Expr, default_positions: bool) -> Linear:
    """`expr` as a linear form; what is not linear stands as an atom.

    With default positions ``q_idx`` is ``q_pos - kv_len + qo_len``.
    """
    forms: dict[Expr, Linear] = {}
    for node in postorder(expr):
        if isinstance(node, Const) and math.isfinite(node.value):
            value = Fraction(node.value)
            forms[node] = Linear(const=value, const_weight=abs(value))
        elif node is Q_IDX and default_positions:
            forms[node] = atom(Q_POS).minus(atom(KV_LEN)).plus(atom(QO_LEN))
        elif isinstance(node, Cast) and node.arg.dtype.is_int and (node.dtype.is_int or node.dtype is Dtype.FLOAT):
            forms[node] = forms[node.arg]
        elif isinstance(node, Op) and node.name in ("add", "sub", "neg", "mul", "div"):
            forms[node] = _operation(node, [forms[one] for one in node.operands])
        else:
            forms[node] = atom(node)
    return forms[expr]


def _operation(expr: Op, parts: list[Linear]) -> Linear:
    if expr.name == "neg":
        return parts[0].times(Fraction(-1))
    left, right = parts
    if expr.name == "add":
        return left.plus(right)
    if expr.name == "sub":
        return left.minus(right)
    if expr.name == "mul" and not left.factors:
        left, right = right, left
    if right.factors or (expr.name == "div" and not right.const):
        return atom(expr)
    return left.times(right.const if expr.name == "mul" else 1 / right.const)
