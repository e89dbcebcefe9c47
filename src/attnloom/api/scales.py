"""Scales of fp8 caches: numbers, or tensors on the device that kernels read when they run."""

from __future__ import annotations

import numbers
from typing import Any

import torch

from attnloom.errors import DeviceMismatch, DtypeMismatch, GradientRequired, InvalidArgument, ShapeMismatch

Scale = torch.Tensor | float

_LARGEST = torch.finfo(torch.float32).max


def check_scale(name: str, given: Any, fp8: str, *, heads: int, device: torch.device, divides: bool = False) -> Scale:
    """The scale `name` of a cache of the format `fp8` ("" is none), 1.0 for None.

    A number, or an fp32 tensor on `device` with one element or ``[heads]``; values are looked at where the host can
    see them: none may be negative, nor 0 where it divides. Raises for anything else, and for any scale where the
    cache is not quantised.
    """
    least = torch.finfo(torch.float32).tiny if divides else 0.0
    words = "> 0" if divides else ">= 0"
    if given is None:
        return 1.0
    if not fp8:
        raise InvalidArgument(
            name=name,
            given=_words(given),
            supported="None beside a cache that is not quantised (nor quantised here, where rows are copied)",
            fix="Leave it out, or use a cache of torch.float8_e4m3fn or torch.float8_e5m2 (kv_dtype).",
        )
    if isinstance(given, torch.Tensor):
        return _check_tensor(name, given, heads, device, (least, words))
    real: Any = given if isinstance(given, numbers.Real) and not isinstance(given, bool) else None
    if real is None or not least <= real <= _LARGEST:
        raise InvalidArgument(
            name=name,
            given=_words(given),
            supported=f"a finite number {words}, or an fp32 tensor on {device}, 0-d or [{heads}]",
            fix="An element of the cache stands for itself times its scale.",
        )
    return float(real)


def _check_tensor(
    name: str, scale: torch.Tensor, heads: int, device: torch.device, least: tuple[float, str]
) -> torch.Tensor:
    if scale.dtype != torch.float32:
        raise DtypeMismatch(name=name, given=scale.dtype, expected=torch.float32, fix="Convert it with .float().")
    if scale.device != device:
        raise DeviceMismatch(name=name, given=scale.device, expected=device)
    if scale.requires_grad and torch.is_grad_enabled():
        raise GradientRequired(name=name)
    if scale.numel() != 1 and tuple(scale.shape) != (heads,):
        raise ShapeMismatch(
            name=name,
            given=tuple(scale.shape),
            expected=f"() for all kv heads or [{heads}], one each",
            fix="Scales per token or per channel are not supported.",
        )
    scale = scale.detach()
    # where the host cannot look, a negative one makes its results NaN
    if device.type == "cpu" and not bool(((scale >= least[0]) & (scale <= _LARGEST)).all()):
        raise InvalidArgument(name=name, given=_words(scale), supported=f"finite numbers {least[1]}", fix="")
    return scale.reshape(()) if scale.numel() == 1 else scale


def _words(given: Any) -> Any:
    """What a message says: a tensor's shape and dtype, not its elements."""
    return f"tensor {tuple(given.shape)} of {given.dtype}" if isinstance(given, torch.Tensor) else given
