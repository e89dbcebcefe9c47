"""The objects that a functor receives while it is traced: numbers that write down what happens to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import torch

from attnloom.variant import build, functions
from attnloom.variant.expr import Const, Dtype, Expr, cast_to, const, index, param_ref
from attnloom.variant.location import language_error
from attnloom.variant.params import Param

_CASTS: dict[torch.dtype, Dtype] = {
    torch.bool: Dtype.BOOL,
    torch.int32: Dtype.INT32,
    torch.int64: Dtype.INT64,
    torch.float32: Dtype.FLOAT,
    torch.float64: Dtype.FLOAT,
}
_TORCH = {
    Dtype.BOOL: torch.bool,
    Dtype.INT32: torch.int32,
    Dtype.INT64: torch.int64,
    Dtype.FLOAT: torch.float32,
}


def as_expr(value: object) -> Expr:
    """The expression of an operand: a symbol's, or the constant of a Python number.

    Raises:
        VariantError: a tensor that is not declared as a parameter, or no number at all.
    """
    if isinstance(value, Sym):
        return value._expression()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return const(value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        raise _captured(tuple(value.shape))
    raise language_error(
        f"a {type(value).__name__} in arithmetic with a symbol", "Operands are symbols, declared parameters and numbers"
    )


def _captured(shape: tuple[int, ...]) -> Exception:
    if shape == ():
        return language_error(
            "a tensor captured from outside meets a symbol; its value would be frozen when the function is traced",
            'Write a plain number, or declare it, params={"name": tensor}, and take it as a parameter of the function',
        )
    return language_error(
        f"a tensor of shape {shape} captured from outside meets a symbol",
        'Declare it, params={"name": tensor}, take it as a parameter of the function, and index it: name[qo_head]',
    )


def _binary(make: Callable[[Expr, Expr], Expr]) -> tuple[Callable[..., Sym], Callable[..., Sym]]:
    def forward(self: Sym, other: object) -> Sym:
        return Sym(make(self._expression(), as_expr(other)))

    def backward(self: Sym, other: object) -> Sym:
        return Sym(make(as_expr(other), self._expression()))

    return forward, backward


def _named(make: Callable[[str, Expr, Expr], Expr], name: str) -> tuple[Callable[..., Sym], Callable[..., Sym]]:
    return _binary(lambda a, b: make(name, a, b))


class Sym:
    """One number inside a functor: computes with ``+ - * / // % ** < <= == & | ^ ~ << >>`` and torch functions."""

    __slots__ = ("_expr",)
    __array_ufunc__ = None  # numpy leaves mixed arithmetic to us
    _expr: Expr

    def __init__(self, expr: Expr) -> None:
        object.__setattr__(self, "_expr", expr)

    def _expression(self) -> Expr:
        return self._expr

    def __repr__(self) -> str:
        return f"<symbol {self._expr}>"

    __add__, __radd__ = _named(build.arithmetic, "add")
    __sub__, __rsub__ = _named(build.arithmetic, "sub")
    __mul__, __rmul__ = _named(build.arithmetic, "mul")
    __floordiv__, __rfloordiv__ = _named(build.arithmetic, "floordiv")
    __mod__, __rmod__ = _named(build.arithmetic, "mod")
    __truediv__, __rtruediv__ = _binary(build.divide)
    __pow__, __rpow__ = _binary(build.power)
    __and__, __rand__ = _named(build.bitwise, "and")
    __or__, __ror__ = _named(build.bitwise, "or")
    __xor__, __rxor__ = _named(build.bitwise, "xor")
    __lshift__, __rlshift__ = _named(build.shift, "shl")
    __rshift__, __rrshift__ = _named(build.shift, "shr")
    __lt__, __gt__ = _named(build.compare, "lt")
    __le__, __ge__ = _named(build.compare, "le")
    __eq__ = _named(build.compare, "eq")[0]  # type: ignore[assignment]
    __ne__ = _named(build.compare, "ne")[0]  # type: ignore[assignment]

    def __neg__(self) -> Sym:
        return Sym(build.negate(self._expression()))

    def __pos__(self) -> Sym:
        return Sym(self._expression())

    def __abs__(self) -> Sym:
        return Sym(build.keeping("abs", self._expression()))

    def __invert__(self) -> Sym:
        return Sym(build.invert(self._expression()))

    @property
    def dtype(self) -> torch.dtype:
        """torch.bool, torch.int32, torch.int64 or torch.float32."""
        return _TORCH[self._expression().dtype]

    def to(self, dtype: object = None, **_: object) -> Sym:
        """Convert; functors know bool, int32, int64 and float (fp32; fp64 in a reference)."""
        if not isinstance(dtype, torch.dtype) or dtype not in _CASTS:
            raise language_error(
                f".to({dtype})",
                "Convert to torch.float32, torch.int32, torch.int64 or torch.bool; functors compute in these",
            )
        return Sym(cast_to(self._expression(), _CASTS[dtype]))

    def type(self, dtype: object = None) -> Sym:
        """The same as `to`."""
        return self.to(dtype)

    def type_as(self, other: Sym) -> Sym:
        """Convert to the type of `other`."""
        return Sym(cast_to(self._expression(), as_expr(other).dtype))

    def float(self) -> Sym:
        """Convert to a float."""
        return self.to(torch.float32)

    def int(self) -> Sym:
        """Convert to int32, towards zero."""
        return self.to(torch.int32)

    def long(self) -> Sym:
        """Convert to int64, towards zero."""
        return self.to(torch.int64)

    def bool(self) -> Sym:
        """Whether it is not 0."""
        return Sym(build.truth(self._expression()))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in functions.FUNCTIONS:
            return lambda *args, **kwargs: _call(name, (self, *args), kwargs)
        raise functions.unsupported(name)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Sym:
        return _call(getattr(func, "__name__", str(func)), args, kwargs or {})

    def __bool__(self) -> NoReturn:
        raise language_error(
            "the truth of a symbol decides Python control flow (if, while, and, or, not, a < b < c, min, max)",
            "A functor is traced once for all elements: write torch.where(condition, a, b) for a choice, "
            "& | ~ for and, or, not, (0 <= x) & (x < n) for a chain, torch.minimum and torch.maximum for min and max",
        )

    def __index__(self) -> NoReturn:
        raise language_error(
            "a symbol where Python needs an integer (range, a list or tensor from outside indexed with it)",
            'Declare the table, params={"table": tensor}, take it as a parameter of the function, '
            "and write table[symbol]; a loop needs a number fixed when the variant is built",
        )

    def __int__(self) -> NoReturn:
        raise language_error("int() of a symbol", "Write x.to(torch.int32), or // for a quotient")

    def __float__(self) -> NoReturn:
        raise language_error(
            "float() of a symbol, or a function of the math module",
            "Write x.float(), and torch.exp instead of math.exp",
        )

    def __round__(self, digits: object = None) -> NoReturn:
        raise language_error("round() of a symbol", "Write torch.round(x)")

    def __iter__(self) -> Iterator[Sym]:
        raise language_error("iteration over a symbol", "A symbol is one number; loop over a number fixed beforehand")

    def __len__(self) -> NoReturn:
        raise language_error("len() of a symbol", "A symbol is one number; lengths are the symbols qo_len and kv_len")

    def __contains__(self, item: object) -> NoReturn:
        raise language_error("`in` on a symbol", "Write the comparisons out: (x == a) | (x == b)")

    def __getitem__(self, key: object) -> Sym:
        raise language_error(
            f"{self._expr} indexed, which is one number", "Only tensors declared in params= are indexed"
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise language_error(f"assignment to .{name} of a symbol", "Symbols are immutable; return a new expression")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise language_error("assignment to an element", "Functors only read; return torch.where(condition, value, x)")

    def __hash__(self) -> NoReturn:
        raise language_error(
            "a symbol as the key of a dict or set", 'Declare a table, params={"table": tensor}, and write table[symbol]'
        )


class TensorSym(Sym):
    """A declared tensor inside a functor: it is indexed with one integer symbol per dimension."""

    __slots__ = ("_indices", "_param")
    _param: Param
    _indices: tuple[Expr, ...]

    def __init__(self, declared: Param, indices: tuple[Expr, ...] = ()) -> None:
        object.__setattr__(self, "_expr", param_ref(declared.name, declared.value_dtype))
        object.__setattr__(self, "_param", declared)
        object.__setattr__(self, "_indices", indices)

    def __repr__(self) -> str:
        return f"<parameter {self._param.name}, {self._param.describe()}>"

    def _expression(self) -> Expr:
        missing = self._param.ndim - len(self._indices)
        places = ", ".join(["qo_head", "q_idx", "kv_pos", "batch"][: self._param.ndim]) or "i"
        raise language_error(
            f"{self._param.name} is a {self._param.describe()} used with {missing} of its dimensions not indexed",
            f"Index every dimension, for example {self._param.name}[{places}]",
        )

    def __getitem__(self, key: object) -> Sym:
        keys = key if isinstance(key, tuple) else (key,)
        indices = self._indices + tuple(_index_of(self._param, one) for one in keys)
        if len(indices) > self._param.ndim:
            raise language_error(
                f"{self._param.name} is a {self._param.describe()} and gets {len(indices)} indices",
                "One index a dimension",
            )
        if len(indices) < self._param.ndim:
            return TensorSym(self._param, indices)
        return Sym(index(self._param.name, indices, self._param.value_dtype))


def _index_of(declared: Param, key: object) -> Expr:
    if isinstance(key, slice) or key is None or key is Ellipsis:
        raise language_error(
            f"a slice of {declared.name}", "Index with one integer a dimension: a functor sees one element"
        )
    expr = as_expr(key)
    if not expr.dtype.is_int:
        raise language_error(
            f"{declared.name} indexed with a {expr.dtype.value}", "Indices are integers: x.to(torch.int32), or a // b"
        )
    if isinstance(expr, Const) and expr.value < 0:
        raise language_error(
            f"{declared.name}[{expr.value}]", "Count from the start: negative indices do not wrap here"
        )
    return expr


def _call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sym:
    # dtype=, device= and the like of the *_like functions say nothing new about one number
    options = {key: value for key, value in kwargs.items() if key not in ("dtype", "device", "out", "inplace")}
    if kwargs.get("out") is not None or kwargs.get("inplace"):
        raise language_error(f"torch.{name} with out= or inplace=True", "Functors only read; use the result")
    wrapped = {key: _argument(value) for key, value in options.items()}
    return Sym(functions.call(name, tuple(_argument(value) for value in args), wrapped))


def _argument(value: object) -> Any:
    return value if value is None or isinstance(value, str) else as_expr(value)
