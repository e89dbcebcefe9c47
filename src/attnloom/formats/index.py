"""Index arrays as a caller gives them (int32 or int64, any device, any stride) → host int64 copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from attnloom.errors import InvalidMetadata

IntArray = npt.NDArray[np.int64]
INDEX_DTYPES = (torch.int32, torch.int64)


def host_ints(name: str, value: Any, ndim: int = 1) -> IntArray:
    """A fresh int64 copy on the host of an integer index array with `ndim` dimensions.

    Takes a torch tensor (int32 or int64, any device and stride), a numpy integer array or a list.
    Raises InvalidMetadata naming the array, its dtype or shape, and what was expected.
    """
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or not value.is_cpu:
            check_has_values(name, value)
        if value.dtype not in INDEX_DTYPES:
            raise _wrong_dtype(name, value.dtype)
        array = value.numpy() if value.is_cpu else value.cpu().numpy()
    else:
        array = _as_array(name, value)
        if array.size == 0 and array.dtype.kind == "f":
            array = array.astype(np.int64)
        if array.dtype not in (np.int32, np.int64):
            raise _wrong_dtype(name, array.dtype)
    if array.ndim != ndim:
        raise InvalidMetadata(
            name=name,
            given=f"{array.ndim}-D array of shape {tuple(array.shape)}",
            expected=f"{ndim}-D",
            fix="Flatten it or pass the array that this argument describes.",
        )
    return array.astype(np.int64)


def check_has_values(name: str, value: torch.Tensor) -> None:
    """Raise for a tensor without values to read one by one: on the meta device, or sparse."""
    if value.device.type == "meta" or value.layout != torch.strided:
        raise InvalidMetadata(
            name=name,
            given=f"a {value.layout} tensor on {value.device}",
            expected="a dense tensor with values",
            fix="Give the numbers themselves.",
        )


def host_lengths(name: str, value: Any) -> tuple[IntArray, IntArray]:
    """An index pointer [batch + 1] on the host, which starts at 0 and never decreases, and its lengths [batch]."""
    indptr = host_ints(name, value)
    if indptr.shape[0] < 1:
        raise InvalidMetadata(name=name, given="no elements", expected="batch + 1 elements, the first 0", fix="")
    if indptr[0] != 0:
        raise InvalidMetadata(
            name=name,
            given=f"starts at {indptr[0]}",
            expected="a first element of 0",
            fix="Subtract the first element.",
        )
    lengths = indptr[1:] - indptr[:-1]
    if lengths.shape[0] and np.minimum.reduce(lengths | indptr[1:]) < 0:  # the sign of one is the sign of all
        where = int(np.argmax(indptr[1:] < indptr[:-1]))
        raise InvalidMetadata(
            name=name,
            given=f"decreases from {indptr[where]} to {indptr[where + 1]} at element {where + 1}",
            expected="a non-decreasing array",
            fix="Build it as a cumulative sum of lengths.",
        )
    return indptr, lengths


def exclusive_cumsum(lengths: IntArray) -> IntArray:
    """[batch] lengths → [batch + 1] index pointer.

    >>> exclusive_cumsum(np.array([2, 3])).tolist()
    [0, 2, 5]
    """
    out = np.empty(lengths.shape[0] + 1, dtype=np.int64)
    out[0] = 0
    np.add.accumulate(lengths, out=out[1:])
    return out


def expect_length(name: str, array: IntArray, expected: int, why: str) -> None:
    """Raise unless `array` has `expected` elements; `why` says where that number comes from."""
    if array.shape[0] != expected:
        raise InvalidMetadata(
            name=name, given=f"{array.shape[0]} elements", expected=f"{expected} ({why})", fix="Check the batch size."
        )


def _as_array(name: str, value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as reason:
        raise InvalidMetadata(
            name=name, given=f"{type(value).__name__} ({reason})", expected="int32 or int64 numbers", fix="Flatten it."
        ) from None


def _wrong_dtype(name: str, dtype: object) -> InvalidMetadata:
    return InvalidMetadata(
        name=name, given=f"dtype {dtype}", expected="int32 or int64", fix="Convert it with .to(torch.int32)."
    )
