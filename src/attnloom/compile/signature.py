"""Types of a kernel's arguments, and which integers and pointers 16 divides: chosen here, not by Triton's binder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

Path = tuple[int, ...]

_INT32 = range(-(2**31), 2**31)
_TYPES = {
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}


def signature_of(
    names: Collection[str], arguments: Mapping[str, Any], *, facts: Collection[str], types: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[Path]]:
    """(type per parameter, paths of what 16 divides) for a kernel with parameters `names`.

    arguments: a tensor, a number or a tuple of these per parameter; a parameter without one is a constant.
    facts: parameters whose integers and pointers are looked at for divisibility by 16; types: parameters whose types
    do not follow from their values, so that no value asks for another kernel.
    """
    signature: dict[str, Any] = {}
    divisible: set[Path] = set()
    for place, name in enumerate(names):
        if name not in arguments:
            signature[name] = "constexpr"
            continue
        signature[name] = types[name] if name in types else type_of(arguments[name])
        if name in facts:
            divisible |= _divisible(arguments[name], (place,))
    return signature, frozenset(divisible)


def type_of(value: Any) -> Any:
    """Triton's name for the type of a tensor (a pointer to its elements), a number, or a tuple of these."""
    if isinstance(value, tuple):
        return tuple(map(type_of, value))
    if isinstance(value, torch.Tensor):
        return f"*{_TYPES[value.dtype]}"
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, int):
        return "i32" if value in _INT32 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"a kernel takes tensors, numbers and tuples of them, not {type(value).__name__}")


def _divisible(value: Any, path: Path) -> set[Path]:
    if isinstance(value, tuple):
        return set().union(*(_divisible(one, (*path, i)) for i, one in enumerate(value)))
    number = value.data_ptr() if isinstance(value, torch.Tensor) else value
    return {path} if isinstance(number, int) and number % 16 == 0 else set()
