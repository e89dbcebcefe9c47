"""What a Variant computes, traced and checked: the form that every other part reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from attnloom.errors import ParamError, VariantError
from attnloom.variant import identity as _identity
from attnloom.variant import params as _params
from attnloom.variant.expr import (
    TRUE,
    Dtype,
    Expr,
    Index,
    ParamRef,
    Symbol,
    index,
    op,
    param_ref,
    postorder,
    rewrite,
    substitute,
    symbol,
)
from attnloom.variant.params import Param
from attnloom.variant.simplify import simplify
from attnloom.variant.trace import SYMBOLS, defined_at, trace
from attnloom.variant.verify import verify_expr, verify_result

SLOTS = {"logits": "logits_transform", "mask": "logits_mask", "output": "output_transform", "sink": "sink"}
_LOGITS = symbol("logits", Dtype.FLOAT)
_X = symbol("x", Dtype.FLOAT)
_LSE = symbol("lse", Dtype.FLOAT)


@dataclass(frozen=True, eq=False)
class Program:
    """The expressions of a variant; None where it leaves the standard meaning.

    logits       transformed logit (or weight, without softmax) of (q row, key, head)
    mask         whether the key is visible
    output       transformed output element
    sink         raw natural-log logit per query head, added to the softmax's denominator once
    use_softmax  False: `logits` gives weights, parts add, there is no lse
    params       declared operands by name
    identity     hex digest of all this, without the operands' values
    places       ``file:line: text`` of the functions that each slot was traced from, for messages; no part of identity
    """

    logits: Expr | None
    mask: Expr | None
    output: Expr | None
    sink: Expr | None
    use_softmax: bool
    params: Mapping[str, Param]
    identity: str
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_mask_only(self) -> bool:
        """Whether nothing but the mask differs from full attention."""
        return self.use_softmax and self.logits is None and self.output is None and self.sink is None

    def expressions(self) -> dict[str, Expr | None]:
        """The four expressions by slot name."""
        return {"logits": self.logits, "mask": self.mask, "output": self.output, "sink": self.sink}


def build(
    exprs: Mapping[str, Expr | None],
    params: Mapping[str, Param],
    use_softmax: bool,
    places: Mapping[str, tuple[str, ...]],
) -> Program:
    """A Program of checked and simplified expressions.

    Raises:
        VariantError: a sink, or a use of lse, where there is no softmax.
    """
    done: dict[str, Expr | None] = {}
    for slot, functor_name in SLOTS.items():
        expr = exprs.get(slot)
        if expr is not None:
            expr = simplify(verify_result(functor_name, expr))
            verify_expr(functor_name, expr, SYMBOLS[functor_name], params)
        done[slot] = expr
    if done["mask"] is TRUE:
        done["mask"] = None
    for slot, neutral in (("logits", _LOGITS), ("output", _X)):
        if done[slot] is neutral:
            done[slot] = None
    _check_without_softmax(done, use_softmax)
    digest = _identity.identity(done, params, use_softmax)
    return Program(
        **done, use_softmax=use_softmax, params=MappingProxyType(dict(params)), identity=digest, places=dict(places)
    )


def _check_without_softmax(exprs: Mapping[str, Expr | None], use_softmax: bool) -> None:
    if use_softmax:
        return
    if exprs["sink"] is not None:
        raise VariantError(
            where="sink",
            reason="the variant does not use softmax (sigmoid), and a sink is a term of the softmax's denominator",
            fix="Drop the sink, or use softmax",
        )
    output = exprs["output"]
    if output is not None and _LSE in set(postorder(output)):
        raise VariantError(
            where="output_transform",
            reason="it asks for lse, and without softmax there is none",
            fix="Drop lse from the function's parameters",
        )


def from_functors(
    functors: Mapping[str, Callable[..., object] | None], declared: Mapping[str, object], use_softmax: bool
) -> Program:
    """Trace the functors of a Variant, keyed as `SLOTS`."""
    params = {name: _params.bind(name, value) for name, value in declared.items()}
    exprs = {
        slot: None if functor is None else trace(SLOTS[slot], functor, params) for slot, functor in functors.items()
    }
    places = {slot: (defined_at(functor),) for slot, functor in functors.items() if functor is not None}
    return build(exprs, params, use_softmax, places)


def both(left: Program, right: Program) -> Program:
    """``left & right``: transforms one after the other, masks intersected.

    Raises:
        VariantError: two sinks, or a sink without softmax.
        ParamError: one name stands for two operands.
    """
    if left.sink is not None and right.sink is not None:
        raise VariantError(
            where="variant & variant",
            reason="both have a sink, and a row has one",
            fix="Compose one sink only; a functor of your own may add them: torch.log(torch.exp(a) + torch.exp(b))",
        )
    exprs: dict[str, Expr | None] = {
        "logits": _chain(left.logits, right.logits, _LOGITS),
        "mask": _join("and", left.mask, right.mask),
        "output": _chain(left.output, right.output, _X),
        "sink": left.sink if left.sink is not None else right.sink,
    }
    return build(
        exprs,
        _params.merge(left.params, right.params),
        left.use_softmax and right.use_softmax,
        _both_places(left, right),
    )


def either(left: Program, right: Program) -> Program:
    """``left | right`` of pure masks."""
    _require_masks("|", left, right)
    mask = None if left.mask is None or right.mask is None else _join("or", left.mask, right.mask)
    return build({"mask": mask}, _params.merge(left.params, right.params), True, _both_places(left, right))


def complement(program: Program) -> Program:
    """``~program`` of a pure mask."""
    _require_masks("~", program)
    return build({"mask": op("not", (program.mask or TRUE,), Dtype.BOOL)}, program.params, True, program.places)


def rename(program: Program, names: Mapping[str, str]) -> Program:
    """`program` with its parameters under other names.

    Raises:
        ParamError: a parameter that is not declared, or a name already taken.
    """
    for old in names:
        if old not in program.params:
            raise _params.unknown(old, program.params)
    params: dict[str, Param] = {}
    for old, declared in program.params.items():
        new = names.get(old, old)
        if new in params:
            raise ParamError(
                name=new, given="two parameters would have this name", expected="", fix="Choose another name."
            )
        params[new] = _params.bind(new, declared)

    def change(node: Expr) -> Expr:
        if isinstance(node, ParamRef):
            return param_ref(names.get(node.name, node.name), node.dtype)
        if isinstance(node, Index):
            return index(names.get(node.param, node.param), node.indices, node.dtype)
        return node

    exprs = {slot: None if expr is None else rewrite(expr, change) for slot, expr in program.expressions().items()}
    return build(exprs, params, program.use_softmax, program.places)


def _both_places(left: Program, right: Program) -> dict[str, tuple[str, ...]]:
    found = {slot: left.places.get(slot, ()) + right.places.get(slot, ()) for slot in SLOTS}
    return {slot: tuple(dict.fromkeys(places)) for slot, places in found.items() if places}


def _chain(first: Expr | None, second: Expr | None, value: Symbol) -> Expr | None:
    if first is None or second is None:
        return first if second is None else second
    return substitute(second, {value: first})


def _join(name: str, left: Expr | None, right: Expr | None) -> Expr | None:
    if left is None or right is None:
        return left if right is None else right
    return op(name, (left, right), Dtype.BOOL)


def _require_masks(sign: str, *programs: Program) -> None:
    for program in programs:
        if program.is_mask_only:
            continue
        has = [SLOTS[slot] for slot, expr in program.expressions().items() if expr is not None and slot != "mask"]
        if not program.use_softmax:
            has.append("use_softmax=False")
        raise VariantError(
            where=f"variant {sign}",
            reason=f"{sign} is defined for masks only, and an operand has {', '.join(has)}",
            fix=f"Apply {sign} to the masks first and add the rest with &: (a {sign} b) & c"
            if sign == "|"
            else "Apply ~ to the mask first and add the rest with &: ~a & c",
        )
