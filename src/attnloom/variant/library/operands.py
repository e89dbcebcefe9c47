"""Declarations that the library's variants share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnloom.variant.params import LengthsFn, Param, bind, check_value, param


def operand(name: str, value: object, dtype: torch.dtype, ndim: int = 1, *, shape: LengthsFn | None = None) -> Param:
    """The declaration of operand `name`: by `value` where there is one, else to be given at plan or run.

    A value of the same kind but another width (bf16 sinks, int64 ids) declares its own width; bits are exact.

    Raises:
        ParamError: a value of another kind or number of dimensions.
    """
    declared = Param(name, dtype, ndim, None, None, shape)
    if value is None:
        return declared
    given = bind(name, value)
    same_kind = given.value_dtype is declared.value_dtype or (given.value_dtype.is_int and declared.value_dtype.is_int)
    if ndim and same_kind and dtype is not torch.uint8:
        declared = Param(name, given.dtype, ndim, None, None, shape)
    return param(declared.dtype, ndim, check_value(declared, given.default), shape=shape)


def starts(counts: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where each request's part of a concatenated operand begins: exclusive cumulative sum, int64 ``[batch]``."""
    counts = np.asarray(counts, dtype=np.int64)
    begin: np.ndarray[Any, np.dtype[np.int64]] = np.cumsum(counts)
    begin -= counts
    return begin


def total(counts: Any) -> tuple[int]:
    """Shape of the concatenation of `counts` elements a request."""
    return (int(np.asarray(counts, dtype=np.int64).sum()),)
