"""What torch functions and tensor methods mean on symbols, by their torch name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any

from attnloom.variant import build
from attnloom.variant.expr import Dtype, Expr, cast_to, const
from attnloom.variant.location import language_error
from attnloom.variant.ops import FLOAT_FUNCTIONS, ROUNDINGS

Builder = Callable[..., Expr]


def _unary(make: Callable[[str, Expr], Expr], name: str) -> Builder:
    return lambda input: make(name, input)


def _binary(make: Callable[[str, Expr, Expr], Expr], name: str) -> Builder:
    return lambda input, other: make(name, input, other)


def _scaled(name: str) -> Builder:
    def add_or_sub(input: Expr, other: Expr, *, alpha: Expr | None = None) -> Expr:
        scaled = other if alpha is None else build.arithmetic("mul", other, alpha)
        return build.arithmetic(name, input, scaled)

    return add_or_sub


def _div(input: Expr, other: Expr, *, rounding_mode: str | None = None) -> Expr:
    if rounding_mode is None:
        return build.divide(input, other)
    if rounding_mode == "floor":
        return build.arithmetic("floordiv", input, other)
    raise language_error(
        f"torch.div with rounding_mode={rounding_mode!r}", "Use // (rounds down) or torch.trunc(a / b)"
    )


def _clamp(input: Expr, min: Expr | None = None, max: Expr | None = None) -> Expr:
    result = input
    if min is not None:
        result = build.arithmetic("maximum", result, min)
    if max is not None:
        result = build.arithmetic("minimum", result, max)
    return result


def _extreme(name: str) -> Builder:
    def choose(input: Expr, other: Expr | None = None) -> Expr:
        if other is None:
            raise language_error(
                f"torch.{name[:3]} over a dimension",
                f"A symbol is one number; torch.{name}(a, b) takes the {name} of two",
            )
        return build.arithmetic(name, input, other)

    return choose


def _like(value: float | None) -> Builder:
    def full_like(input: Expr, fill_value: Expr | None = None) -> Expr:
        filled = const(value) if value is not None else fill_value
        if filled is None:
            raise language_error("torch.full_like without a value", "Write the number itself")
        return cast_to(filled, input.dtype)

    return full_like


def _log_sigmoid(input: Expr) -> Expr:
    negative = build.arithmetic("minimum", input, const(0.0))
    return build.arithmetic("sub", negative, build.elementwise("log1p", _exp_of_minus_abs(input)))


def _softplus(input: Expr) -> Expr:
    positive = build.arithmetic("maximum", input, const(0.0))
    return build.arithmetic("add", positive, build.elementwise("log1p", _exp_of_minus_abs(input)))


def _exp_of_minus_abs(input: Expr) -> Expr:
    return build.elementwise("exp", build.negate(build.keeping("abs", input)))


def _silu(input: Expr) -> Expr:
    return build.arithmetic("mul", input, build.elementwise("sigmoid", input))


def _gelu(input: Expr) -> Expr:
    erf = build.elementwise("erf", build.arithmetic("mul", input, const(math.sqrt(0.5))))
    half = build.arithmetic("mul", const(0.5), input)
    return build.arithmetic("mul", half, build.arithmetic("add", const(1.0), erf))


def _pow(input: Expr, exponent: Expr) -> Expr:
    return build.power(input, exponent)


def _where(condition: Expr, input: Expr, other: Expr) -> Expr:
    return build.where(condition, input, other)


def _clamp_min(input: Expr, min: Expr) -> Expr:
    return _clamp(input, min)


def _isnan(input: Expr) -> Expr:
    return build.is_nan(input)


def _isinf(input: Expr) -> Expr:
    return build.compare("eq", build.keeping("abs", cast_to(input, Dtype.FLOAT)), const(math.inf))


def _isfinite(input: Expr) -> Expr:
    return build.compare("lt", build.keeping("abs", cast_to(input, Dtype.FLOAT)), const(math.inf))


def _reversed(make: Builder) -> Builder:
    return lambda input, other: make(other, input)


_COMPARISONS = {
    "lt": ("lt", "less"),
    "le": ("le", "less_equal"),
    "gt": ("gt", "greater"),
    "ge": ("ge", "greater_equal"),
    "eq": ("eq",),
    "ne": ("ne", "not_equal"),
}
_ALIASES = {
    "abs": ("absolute",),
    "neg": ("negative",),
    "sub": ("subtract",),
    "mul": ("multiply",),
    "div": ("divide", "true_divide"),
    "clamp": ("clip",),
    "sigmoid": ("special_expit",),
    "trunc": ("fix",),
    "log_sigmoid": ("logsigmoid",),
    "bitwise_not": ("invert",),
}


def _table() -> dict[str, Builder]:
    table: dict[str, Builder] = {name: _unary(build.elementwise, name) for name in FLOAT_FUNCTIONS}
    table |= {name: _unary(build.rounding, name) for name in ROUNDINGS}
    table |= {name: _unary(build.keeping, name) for name in ("abs", "sign")}
    table |= {name: _scaled(name) for name in ("add", "sub")}
    table |= {name: _binary(build.arithmetic, name) for name in ("mul", "minimum", "maximum")}
    table |= {f"logical_{name}": _binary(build.logical, name) for name in ("and", "or", "xor")}
    table |= {f"bitwise_{name}": _binary(build.bitwise, name) for name in ("and", "or", "xor")}
    for name, spellings in _COMPARISONS.items():
        table |= dict.fromkeys(spellings, _binary(build.compare, name))
    table |= {
        "rsub": _reversed(table["sub"]),
        "floor_divide": _binary(build.arithmetic, "floordiv"),
        "remainder": _binary(build.arithmetic, "mod"),
        "bitwise_left_shift": _binary(build.shift, "shl"),
        "bitwise_right_shift": _binary(build.shift, "shr"),
        "logical_not": lambda input: build.invert(build.truth(input)),
        "bitwise_not": build.invert,
        "neg": build.negate,
        "positive": lambda input: input,
        "div": _div,
        "pow": _pow,
        "square": lambda input: build.power(input, const(2)),
        "reciprocal": lambda input: build.divide(const(1.0), input),
        "where": _where,
        "clamp": _clamp,
        "clamp_min": _clamp_min,
        "clamp_max": lambda input, max: _clamp(input, None, max),
        "max": _extreme("maximum"),
        "min": _extreme("minimum"),
        "isnan": _isnan,
        "isinf": _isinf,
        "isfinite": _isfinite,
        "zeros_like": _like(0),
        "ones_like": _like(1),
        "full_like": _like(None),
        "relu": lambda input: _clamp(input, const(0)),
        "silu": _silu,
        "gelu": _gelu,
        "softplus": _softplus,
        "log_sigmoid": _log_sigmoid,
    }
    for name, others in _ALIASES.items():
        table |= dict.fromkeys(others, table[name])
    return table


FUNCTIONS = _table()

_ADVICE = {
    "fmod": "Use % or torch.remainder (Python's sign)",
    "softmax": "The engine applies the softmax; return logits",
    "item": "A symbol has no value while the function is traced; compute with it as with a tensor",
    "tolist": "A symbol has no value while the function is traced; compute with it as with a tensor",
    "shape": "A symbol is one number; lengths are the symbols qo_len and kv_len",
    "size": "A symbol is one number; lengths are the symbols qo_len and kv_len",
    "sum": "A symbol is one number: there is nothing to reduce over",
    "mean": "A symbol is one number: there is nothing to reduce over",
    "any": "A symbol is one number: there is nothing to reduce over; combine conditions with |",
    "all": "A symbol is one number: there is nothing to reduce over; combine conditions with &",
    "masked_fill": "Use torch.where(mask, value, x)",
    "half": "Functors compute in fp32: drop the conversion",
    "bfloat16": "Functors compute in fp32: drop the conversion",
    "unsqueeze": "A symbol is one number and has no dimensions: drop the call",
    "view": "A symbol is one number and has no dimensions: drop the call",
    "reshape": "A symbol is one number and has no dimensions: drop the call",
}


def call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Expr:
    """The expression of torch function or method `name` on expressions and Python numbers made constants.

    Raises:
        VariantError: a function outside the language, or arguments that it does not take here.
    """
    builder = FUNCTIONS.get(name)
    if builder is None:
        raise unsupported(name)
    try:
        return builder(*args, **kwargs)
    except TypeError as error:
        raise language_error(
            f"torch.{name} with these arguments ({error})",
            "Only the elementwise form of the function is in the language",
        ) from None


def unsupported(name: str) -> Exception:
    """The error for a torch function or method that the language does not have."""
    advice = _ADVICE.get(name)
    if advice is None:
        close = difflib.get_close_matches(name, FUNCTIONS, 3)
        advice = f"Did you mean {' or '.join(close)}? " if close else ""
        advice += f"Elementwise functions of the language: {', '.join(sorted(FUNCTIONS))}"
    return language_error(f"{name} is not in the variant language", advice)
