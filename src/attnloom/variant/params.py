"""Operands of a variant: their declaration, and the check of a value given for one."""

from __future__ import annotations

import difflib
import keyword
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attnloom.errors import ParamError
from attnloom.variant.expr import Dtype

LOGITS_NAMES = ("logits", "q_pos", "kv_pos", "q_idx", "qo_head", "kv_head", "batch", "qo_len", "kv_len")
OUTPUT_NAMES = ("x", "pos", "head", "batch", "lse")
RESERVED = frozenset(LOGITS_NAMES + OUTPUT_NAMES)

UNNAMED = "al.param(...)"

LengthsFn = Callable[[Any, Any], Any]

_DTYPES: dict[torch.dtype, Dtype] = {
    torch.bool: Dtype.BOOL,
    torch.uint8: Dtype.INT32,
    torch.int8: Dtype.INT32,
    torch.int16: Dtype.INT32,
    torch.int32: Dtype.INT32,
    torch.int64: Dtype.INT64,
    torch.float16: Dtype.FLOAT,
    torch.bfloat16: Dtype.FLOAT,
    torch.float32: Dtype.FLOAT,
    torch.float64: Dtype.FLOAT,
}


@dataclass(frozen=True)
class Param:
    """A declared operand of a variant.

    name          how functors ask for it; empty until a Variant binds it
    dtype         torch dtype of the values
    ndim          dimensions; 0 is a scalar: a number or a 0-d tensor
    default       value used when none is given at `plan` or `run`; None: one must be given
    from_lengths  ``f(qo_len, kv_len)``, int64 numpy ``[batch]`` each, gives the value at every `plan`
    shape         ``f(qo_len, kv_len) -> tuple``: the shape that a value must have, checked at `plan`;
                  -1 in it is any extent
    """

    name: str
    dtype: torch.dtype
    ndim: int
    default: torch.Tensor | int | float | bool | None = None
    from_lengths: LengthsFn | None = None
    shape: LengthsFn | None = None

    @property
    def value_dtype(self) -> Dtype:
        """Type of an element in expressions."""
        return _DTYPES[self.dtype]

    def describe(self) -> str:
        """``1-D torch.float32 tensor`` or ``torch.float32 scalar``."""
        return f"{self.ndim}-D {self.dtype} tensor" if self.ndim else f"{self.dtype} scalar"

    def declares_the_same(self, other: Param) -> bool:
        """Whether `other` is this operand: the same declaration and the same default object (or number)."""
        same_default = self.default is other.default or (
            not isinstance(self.default, torch.Tensor)
            and not isinstance(other.default, torch.Tensor)
            and type(self.default) is type(other.default)
            and repr(self.default) == repr(other.default)
        )
        mine = (self.name, self.dtype, self.ndim, self.from_lengths, self.shape)
        return same_default and mine == (other.name, other.dtype, other.ndim, other.from_lengths, other.shape)


def param(
    dtype: torch.dtype = torch.float32,
    ndim: int = 1,
    default: torch.Tensor | int | float | bool | None = None,
    *,
    from_lengths: LengthsFn | None = None,
    shape: LengthsFn | None = None,
) -> Param:
    """Declare an operand of a variant whose value comes later, or is computed from the lengths.

    Args:
        dtype: torch dtype of the values: bool, uint8, int8..int64, float16, bfloat16, float32, float64.
        ndim: dimensions of the tensor, 0 for a scalar.
        default: value used when neither `plan` nor `run` gives one.
        from_lengths: ``f(qo_len, kv_len) -> array``, called at every `plan` with int64 numpy ``[batch]``.
        shape: ``f(qo_len, kv_len) -> tuple`` that a value must have at `plan`; -1 leaves an extent open.

    Raises:
        ParamError: an unsupported dtype or ndim, or a default that does not fit them.
    """
    declared = Param("", dtype, ndim, None, from_lengths, shape)
    _check_declaration(declared)
    if default is None:
        return declared
    if from_lengths is not None:
        raise ParamError(
            name=UNNAMED, given="both default and from_lengths", expected="Give one of them:", fix="drop the default."
        )
    return replace(declared, default=check_value(declared, default))


def bind(name: str, declared: object) -> Param:
    """The Param that the entry ``name: declared`` of ``params={...}`` stands for.

    Raises:
        ParamError: the name cannot be asked for by a functor, or the value declares no operand.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ParamError(
            name=name, given="not a name that a function's parameter can have", expected="", fix="Rename it."
        )
    if name in RESERVED:
        raise ParamError(
            name=name,
            given="the engine supplies a value of this name",
            expected=f"Reserved: {', '.join(sorted(RESERVED))}.",
            fix="Rename it.",
        )
    if isinstance(declared, Param):
        return replace(declared, name=name)
    if isinstance(declared, np.generic):
        declared = declared.item()
    if isinstance(declared, np.ndarray):
        declared = torch.from_numpy(declared)
    if isinstance(declared, torch.Tensor):
        result = Param(name, declared.dtype, declared.ndim, declared)
    elif isinstance(declared, bool):
        result = Param(name, torch.bool, 0, declared)
    elif isinstance(declared, int):
        result = Param(name, torch.int32 if -(2**31) <= declared < 2**31 else torch.int64, 0, declared)
    elif isinstance(declared, float):
        result = Param(name, torch.float32, 0, declared)
    else:
        raise ParamError(
            name=name,
            given=f"{type(declared).__name__} {declared!r}",
            expected="A tensor, a number or al.param(dtype=..., ndim=...) declares an operand.",
            fix="Wrap lists with torch.tensor(...).",
        )
    _check_declaration(result)
    return result


def _check_declaration(declared: Param) -> None:
    if declared.dtype not in _DTYPES:
        raise ParamError(
            name=declared.name or UNNAMED,
            given=f"dtype {declared.dtype}",
            expected=f"Supported: {', '.join(str(dtype) for dtype in _DTYPES)}.",
            fix="Convert it first.",
        )
    if not isinstance(declared.ndim, int) or declared.ndim < 0:
        raise ParamError(
            name=declared.name or UNNAMED,
            given=f"ndim {declared.ndim!r}",
            expected="0 (a scalar) or more.",
            fix="Give an integer.",
        )


def check_value(declared: Param, value: object) -> torch.Tensor | int | float | bool:
    """`value` as the operand `declared`, converted where nothing is lost (bf16 to fp32, int32 to int64).

    Raises:
        ParamError: other dimensions, another kind of number, or a dtype that would lose values.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        return _check_tensor(declared, value)
    if isinstance(value, (bool, int, float)) and declared.ndim == 0 and _number_fits(declared.dtype, value):
        return float(value) if declared.dtype.is_floating_point else value
    raise _misfit(declared, f"{type(value).__name__} {value!r}")


def _check_tensor(declared: Param, value: torch.Tensor) -> torch.Tensor:
    if value.ndim != declared.ndim:
        raise _misfit(declared, f"a tensor of shape {tuple(value.shape)}")
    widens = torch.promote_types(value.dtype, declared.dtype) == declared.dtype
    if not widens or _kind(value.dtype) != _kind(declared.dtype):
        raise _misfit(declared, f"a tensor of dtype {value.dtype}")
    return value.to(declared.dtype)


def _kind(dtype: torch.dtype) -> str:
    if dtype not in _DTYPES:
        return "unsupported"
    return "integer" if _DTYPES[dtype].is_int else _DTYPES[dtype].value


def _number_fits(dtype: torch.dtype, value: float) -> bool:
    """Whether a scalar of `dtype` can be this Python number: booleans only as booleans, integers in range."""
    if dtype == torch.bool or isinstance(value, bool):
        return dtype == torch.bool and isinstance(value, bool)
    if dtype.is_floating_point:
        return True
    return isinstance(value, int) and torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max


def check_shape(declared: Param, value: object, qo_len: Any, kv_len: Any) -> None:
    """Compare a value's shape with what the lengths of this plan ask for.

    Raises:
        ParamError: another shape than the declaration's `shape` gives.
    """
    if declared.shape is None or not isinstance(value, torch.Tensor):
        return
    expected = tuple(int(extent) for extent in declared.shape(qo_len, kv_len))
    given = tuple(value.shape)
    if len(expected) != len(given) or any(want not in (-1, got) for want, got in zip(expected, given, strict=True)):
        raise ParamError(
            name=declared.name,
            given=f"shape {given}",
            expected=f"The lengths of this plan ask for {expected}.",
            fix="Give a value that fits the planned qo_len and kv_len.",
        )


def unknown(name: str, declared: Iterable[str]) -> ParamError:
    """The error for a value given under a name that the variant does not declare."""
    names = sorted(declared)
    close = difflib.get_close_matches(name, names, 1)
    return ParamError(
        name=name,
        given="the variant declares no such parameter",
        expected=f"Declared: {', '.join(names) or 'none'}.",
        fix=f"Did you mean {close[0]!r}?" if close else "Add it to params= of the Variant that uses it.",
    )


def merge(left: Mapping[str, Param], right: Mapping[str, Param]) -> dict[str, Param]:
    """The operands of two composed variants.

    Raises:
        ParamError: one name stands for two different operands.
    """
    merged = dict(left)
    for name, other in right.items():
        mine = merged.setdefault(name, other)
        if not mine.declares_the_same(other):
            raise ParamError(
                name=name,
                given=f"declared twice: as {mine.describe()} and as {other.describe()}, with different values",
                expected="In a composition one name is one operand.",
                fix=f"Give one of them another name: variant.rename({name}='{name}_2').",
            )
    return merged


def _misfit(declared: Param, given: str) -> ParamError:
    return ParamError(
        name=declared.name or UNNAMED,
        given=given,
        expected=f"Declared: {declared.describe()}.",
        fix="Convert the value, or declare the parameter with al.param(dtype=..., ndim=...).",
    )
