"""A mask as a boolean formula over comparisons of positions with thresholds.

Every comparison that is linear in the positions becomes ``v < cut`` on one of three lines: v is kv_pos, q_pos, or
d = kv_pos - q_pos; a cut is one number a request. What is not understood is an unknown, true or false at will.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from attnloom.variant import build
from attnloom.variant.expr import Cast, Const, Dtype, Expr, Op, const
from attnloom.variant.linear import KV_POS, Q_POS, Linear, linear
from attnloom.variant.simplify import simplify
from attnloom.variant.uniform import is_uniform, parameters

KV, Q, D = range(3)
MAX_SPLITS = 16
"""Most cases that the abs, minimum, maximum and where inside one comparison may be taken apart into."""


@dataclass(frozen=True)
class Threshold:
    """Where ``form + scale * v <= 0`` (``< 0`` if strict) changes, seen along v; form does not depend on v.

    is_float: float arithmetic; the change may then be off by the rounding of the device.
    """

    form: Linear
    scale: Fraction
    strict: bool
    is_float: bool

    def reads(self) -> tuple[Expr, ...]:
        """Expressions whose values it needs."""
        return (*self.form.factors, *(self.form.weights if self.is_float else ()))

    def key(self) -> tuple[object, ...]:
        """Equal keys have equal values."""
        terms = frozenset(self.form.factors.items())
        weights = frozenset(self.form.weights.items()) if self.is_float else None
        return terms, self.form.const, self.scale, self.strict, self.is_float, weights


@dataclass(frozen=True, eq=False)
class Formula:
    """A node: kind is one of const, unknown, below, bit, not, and, or, xor.

    value  const: 0 or 1; below: number of the cut on `axis`; bit: number of the uniform condition
    """

    kind: str
    value: int = 0
    axis: int = 0
    args: tuple[Formula, ...] = ()


_LOGIC = ("and", "or", "xor", "not", "where")
UNKNOWN = Formula("unknown")
CONSTS = (Formula("const", 0), Formula("const", 1))


@dataclass
class Analysis:
    """A mask taken apart: the formula, its cuts by axis, and its conditions that hold for a whole request or not."""

    formula: Formula
    cuts: tuple[list[Threshold], ...]
    bits: list[Threshold | Expr]
    params: frozenset[str] = field(default_factory=frozenset)

    @property
    def is_constant(self) -> bool:
        """Whether no threshold depends on the batch."""
        cuts = [cut for axis in self.cuts for cut in axis]
        return not self.bits and not any(cut.form.factors for cut in cuts)


def analyse(mask: Expr, default_positions: bool, unknown: frozenset[str]) -> Analysis:
    """Take `mask` apart; parameters in `unknown` have no value yet."""
    return _Analyser(default_positions, unknown).run(mask)


class _Analyser:
    def __init__(self, default_positions: bool, unknown: frozenset[str]) -> None:
        self._default_positions, self._unknown = default_positions, unknown
        self._cuts: tuple[list[Threshold], ...] = ([], [], [])
        self._bits: list[Threshold | Expr] = []
        self._number: dict[object, int] = {}
        self._done: dict[Expr, Formula] = {}

    def run(self, mask: Expr) -> Analysis:
        formula = self._boolean(mask)
        params: set[str] = set()
        for threshold in [*self._bits, *(cut for axis in self._cuts for cut in axis)]:
            for expr in threshold.reads() if isinstance(threshold, Threshold) else (threshold,):
                params |= parameters(expr)
        return Analysis(formula, self._cuts, self._bits, frozenset(params))

    def _boolean(self, root: Expr) -> Formula:
        """The formula of a boolean expression; a loop, for masks may unite hundreds of parts."""
        stack = [root]
        while stack:
            expr = stack[-1]
            parts = expr.args if isinstance(expr, Op) and expr.name in _LOGIC else ()
            waiting = [one for one in parts if one not in self._done]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            if expr not in self._done:
                self._done[expr] = self._boolean_once(expr)
        return self._done[root]

    def _boolean_once(self, expr: Expr) -> Formula:
        if isinstance(expr, Const):
            return CONSTS[bool(expr.value)]
        if isinstance(expr, Op) and expr.name in _LOGIC:
            parts = tuple(self._done[one] for one in expr.operands)
            return _choose(*parts) if expr.name == "where" else Formula(expr.name, args=parts)
        if isinstance(expr, Op) and expr.name in ("lt", "le", "eq", "ne"):
            a, b = expr.operands
            is_float = Dtype.FLOAT in (a.dtype, b.dtype)
            difference = self._linear(a).minus(self._linear(b))
            return self._compare(expr.name, difference, is_float, MAX_SPLITS)
        if is_uniform(expr, self._unknown):
            return self._bit(expr, expr)
        return UNKNOWN

    def _linear(self, expr: Expr) -> Linear:
        return linear(expr, self._default_positions)

    def _compare(self, name: str, form: Linear, is_float: bool, splits: int) -> Formula:
        """The comparison of `form` with 0."""
        if name in ("eq", "ne"):
            above = self._compare("le", form.times(Fraction(-1)), is_float, splits // 2)
            both = Formula("and", args=(self._compare("le", form, is_float, splits // 2), above))
            return both if name == "eq" else Formula("not", args=(both,))
        for atom in (*form.factors, *(form.weights if is_float else ())):
            if atom is not KV_POS and atom is not Q_POS and not is_uniform(atom, self._unknown):
                return self._take_apart(name, form, is_float, splits, atom) if atom in form.factors else UNKNOWN
        if is_float and not form.is_ordinary():
            return UNKNOWN
        kv, q = form.factors.get(KV_POS, Fraction(0)), form.factors.get(Q_POS, Fraction(0))
        rest = form.without(KV_POS, Q_POS)
        if not kv and not q:
            threshold = Threshold(rest, Fraction(0), name == "lt", is_float)
            return self._bit(threshold, threshold.key())
        if kv and q and kv != -q:
            return UNKNOWN
        axis = D if kv and q else (KV if kv else Q)
        return self._below(axis, Threshold(rest, kv or q, name == "lt", is_float))

    def _take_apart(self, name: str, form: Linear, is_float: bool, splits: int, node: Expr) -> Formula:
        """Cases of abs, minimum, maximum and where; a quotient by a constant; anything else is unknown."""
        if isinstance(node, Op) and node.name == "floordiv":
            return self._quotient(name, form, node)
        taken = _cases(node) if splits >= 2 else None
        if taken is None:
            return UNKNOWN
        condition, a, b = taken
        factor, rest = form.factors[node], form.forgetting(node)
        cases = [self._compare(name, rest.plus(self._linear(one), factor), is_float, splits // 2) for one in (a, b)]
        return _choose(self._boolean(condition), cases[0], cases[1])

    def _quotient(self, name: str, form: Linear, node: Op) -> Formula:
        """``n * (x // c) + r <= 0`` for a constant c > 0: a bound on the quotient is a bound on x."""
        x, c = node.operands
        factor, rest = form.factors[node], form.without(node)
        whole = all(value.denominator == 1 for value in (factor, rest.const, *rest.factors.values()))
        if not (whole and node.dtype.is_int and isinstance(c, Const) and c.value > 0):
            return UNKNOWN
        if not all(is_uniform(one, self._unknown) and one.dtype.is_int for one in rest.factors):
            return UNKNOWN
        if name == "lt":
            rest = rest.plus(Linear(const=Fraction(1)))
        bound = _as_expr(rest.times(Fraction(-1) if factor > 0 else Fraction(1)))
        size = const(int(abs(factor)))
        if factor > 0:  # x // c <= bound // n, so x < c * (bound // n + 1)
            limit = build.arithmetic("add", build.arithmetic("floordiv", bound, size), const(1))
            edge = simplify(build.arithmetic("mul", limit, c))
            return self._compare("lt", self._linear(x).minus(self._linear(edge)), False, 2)
        # x // c >= ceil(bound / n), so c * ceil(bound / n) <= x
        limit = build.negate(build.arithmetic("floordiv", build.negate(bound), size))
        edge = simplify(build.arithmetic("mul", limit, c))
        return self._compare("le", self._linear(edge).minus(self._linear(x)), False, 2)

    def _below(self, axis: int, threshold: Threshold) -> Formula:
        number = self._numbered(self._cuts[axis], threshold, (axis, threshold.key()))
        below = Formula("below", number, axis)
        return below if threshold.scale > 0 else Formula("not", args=(below,))

    def _bit(self, condition: Threshold | Expr, key: object) -> Formula:
        return Formula("bit", self._numbered(self._bits, condition, ("bit", key)))

    def _numbered(self, items: list[Any], item: Any, key: object) -> int:
        found = self._number.get(key)
        if found is None:
            found = self._number[key] = len(items)
            items.append(item)
        return found


def _cases(node: Expr) -> tuple[Expr, Expr, Expr] | None:
    """(condition, a, b) such that `node` is a where the condition holds and b elsewhere."""
    if isinstance(node, Cast) and node.arg.dtype is Dtype.BOOL:
        return node.arg, const(1), const(0)
    if not isinstance(node, Op):
        return None
    if node.name == "where":
        condition, a, b = node.operands
        return condition, a, b
    if node.name == "abs":
        (a,) = node.operands
        return build.compare("le", const(0), a), a, build.negate(a)
    if node.name in ("minimum", "maximum"):
        a, b = node.operands
        return build.compare("le" if node.name == "minimum" else "ge", a, b), a, b
    return None


def _choose(condition: Formula, a: Formula, b: Formula) -> Formula:
    otherwise = Formula("and", args=(Formula("not", args=(condition,)), b))
    return Formula("or", args=(Formula("and", args=(condition, a)), otherwise))


def _as_expr(form: Linear) -> Expr:
    total: Expr = const(int(form.const))
    for one, factor in form.factors.items():
        total = build.arithmetic("add", total, build.arithmetic("mul", const(int(factor)), one))
    return total
