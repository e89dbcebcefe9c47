"""A plain Python function becomes an expression by being called once on symbols."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attnloom.errors import VariantError
from attnloom.variant.expr import Dtype, Expr, param_ref, symbol
from attnloom.variant.location import describe_line, raising_line
from attnloom.variant.params import LOGITS_NAMES, Param
from attnloom.variant.symbolic import Sym, TensorSym, as_expr

Functor = Callable[..., Any]

_POSITIONS = dict.fromkeys(LOGITS_NAMES[1:], Dtype.INT32)
SYMBOLS: dict[str, dict[str, Dtype]] = {
    "logits_transform": {"logits": Dtype.FLOAT, **_POSITIONS},
    "logits_mask": _POSITIONS,
    "sink": dict.fromkeys(("qo_head", "kv_head", "batch"), Dtype.INT32),
    "output_transform": {
        "x": Dtype.FLOAT,
        "pos": Dtype.INT32,
        "head": Dtype.INT32,
        "batch": Dtype.INT32,
        "lse": Dtype.FLOAT,
    },
}
"""What each functor may ask for, besides the declared parameters."""

_WHY_NOT = {
    ("logits_mask", "logits"): "A mask sees positions and parameters only; return torch.where(condition, logits, "
    "-torch.inf) from logits_transform instead",
    ("sink", "kv_pos"): "A sink is one logit per query head",
    ("sink", "logits"): "A sink is one logit per query head, neither scaled nor transformed",
}

_CALLED_ONCE = "A functor is called once, on symbols that stand for one element; use operators and torch functions"
_INDEXED = (
    'A table indexed with a symbol is declared, params={"table": tensor}, and taken as a parameter of the function: '
    "table[symbol]"
)


def trace(slot: str, functor: Functor, params: Mapping[str, Param]) -> Expr:
    """The expression that `functor` computes.

    Args:
        slot: which functor of a Variant it is, a key of `SYMBOLS`.
        functor: a Python function; its parameters say by name what it wants.
        params: the declared operands.

    Raises:
        VariantError: an unknown parameter name, Python control flow on a symbol, or anything else outside the
            language; the message names the user's file and line.
    """
    place = f"{slot} ({defined_at(functor)})"
    positional, keywords = _arguments(slot, functor, params, place)
    try:
        result = functor(*positional, **keywords)
    except VariantError:
        raise
    except Exception as error:
        raise VariantError(
            where=raising_line(error.__traceback__) or place,
            reason=f"tracing the function raised {type(error).__name__}: {error}",
            fix=_INDEXED if isinstance(error, IndexError) else _CALLED_ONCE,
        ) from error
    if result is None:
        raise VariantError(where=place, reason="the function returned None", fix="Return the expression")
    if isinstance(result, (Sym, bool, int, float)):
        return as_expr(result)
    raise VariantError(
        where=place,
        reason=f"the function returned a {type(result).__name__}",
        fix="Return one expression of the symbols, or a number",
    )


def defined_at(functor: Functor) -> str:
    """``file:line: text`` of a functor's definition."""
    inner: Any = inspect.unwrap(functor) if callable(functor) else functor
    while isinstance(inner, functools.partial):
        inner = inner.func
    if callable(inner) and not hasattr(inner, "__code__"):
        inner = type(inner).__call__
    code = getattr(inner, "__code__", None)
    return repr(functor) if code is None else describe_line(code.co_filename, code.co_firstlineno)


def _arguments(
    slot: str, functor: Functor, params: Mapping[str, Param], place: str
) -> tuple[list[object], dict[str, object]]:
    """The symbols for the functor's parameters, in its own order."""
    try:
        signature = inspect.signature(functor)
    except (TypeError, ValueError):
        raise VariantError(
            where=place,
            reason="the parameter names of this object cannot be read",
            fix="Give a Python function: lambda logits: torch.tanh(logits)",
        ) from None
    positional: list[object] = []
    keywords: dict[str, object] = {}
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise VariantError(
                where=place,
                reason=f"the function takes {star}{parameter.name}",
                fix="Name each value that it wants: parameters are supplied by their names",
            )
        value = _supply(slot, parameter, params, place)
        if parameter.kind is parameter.KEYWORD_ONLY:
            keywords[parameter.name] = value
        else:
            positional.append(value)
    return positional, keywords


def _supply(slot: str, parameter: inspect.Parameter, params: Mapping[str, Param], place: str) -> object:
    name = parameter.name
    known = SYMBOLS[slot]
    if name in known:
        return Sym(symbol(name, known[name]))
    if name in params:
        declared = params[name]
        return TensorSym(declared) if declared.ndim else Sym(param_ref(name, declared.value_dtype))
    close = difflib.get_close_matches(name, [*known, *params], 1, 0.8)
    if parameter.default is not parameter.empty and not close:
        return parameter.default
    hint = _WHY_NOT.get((slot, name)) or (f"Did you mean {close[0]!r}" if close else "Declare it in params={...}")
    raise VariantError(
        where=place,
        reason=f"unknown parameter {name!r}; {slot} may ask for {', '.join(known)}"
        f" and the declared parameters ({', '.join(params) or 'none'})",
        fix=hint,
    )
