"""flash-attn's options, checked, and the AttnLoom variant that they mean."""

from __future__ import annotations

import functools
import math
import numbers
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import attnloom as al
from attnloom.errors import DtypeMismatch, InvalidArgument, NotYetSupported, ShapeMismatch

_UNLIMITED = 1 << 30  # a wider window sees every key, and positions added to it stay inside int32
_MOST_SPLITS = 128


@dataclass(frozen=True)
class Options:
    """What one call computes. Slopes and paddings are operands: other values never make another variant.

    left, right: keys visible on each side of a row besides its own position; None is unlimited.
    softcap: bound of the scaled logits, 0 for none.
    slope_dims: 0 without ALiBi, 1 for slopes [H], 2 for [B, H].
    leftpad: whether leading keys of each request are hidden.
    """

    left: int | None
    right: int | None
    softcap: float
    slope_dims: int = 0
    leftpad: bool = False

    @property
    def local(self) -> bool:
        """Whether the mask depends on the row."""
        return self.left is not None or self.right is not None


def read_options(
    *,
    causal: Any,
    window_size: Any,
    softcap: Any,
    alibi_slopes: torch.Tensor | None,
    batch: int,
    heads: int,
    leftpad: bool = False,
) -> Options:
    """Check the options that shape the variant. Raises from attnloom.errors for what has no meaning in flash-attn."""
    left, right = _window(window_size)
    if flag("causal", causal):
        right = 0
    slope_dims = 0 if alibi_slopes is None else _check_slopes(alibi_slopes, batch, heads)
    return Options(left, right, max(finite("softcap", softcap), 0.0), slope_dims, leftpad)


def refuse_training(dropout_p: Any, deterministic: Any) -> None:
    """dropout_p must be 0; deterministic is a flag of the backward pass, which is not there."""
    if not isinstance(dropout_p, (int, float)) or dropout_p != 0:
        raise NotYetSupported(feature=f"dropout_p={dropout_p!r}", fix="Pass 0.0: AttnLoom is for inference.")
    flag("deterministic", deterministic)


def check_splits(num_splits: Any) -> None:
    """num_splits is a hint to flash-attn's scheduler, 0 to 128; AttnLoom's own decides."""
    if isinstance(num_splits, bool) or not isinstance(num_splits, int) or not 0 <= num_splits <= _MOST_SPLITS:
        raise InvalidArgument(
            name="num_splits", given=num_splits, supported=f"0 to {_MOST_SPLITS}", fix="0 leaves it to the scheduler."
        )


def flag(name: str, value: Any) -> bool:
    """A bool, also one of numpy or torch."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number not in (0, 1):
        raise InvalidArgument(name=name, given=value, supported="True or False", fix="")
    return bool(number)


def whole(name: str, value: Any) -> int:
    """An integer, also one of numpy or a tensor without dimensions."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(name=name, given=value, supported="an integer", fix="") from None


def finite(name: str, value: Any) -> float:
    """A finite number, also one of numpy."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise InvalidArgument(name=name, given=value, supported="a finite number", fix="Leave it out for the default.")
    return float(value)


@functools.lru_cache(maxsize=128)
def build_variant(options: Options) -> al.Variant | None:
    """The variant of `options`, None for full attention. Operands: slopes [H] or [B, H]; leftpad [B]."""
    left, right = options.left, options.right
    parts: list[al.Variant] = []
    if right is not None:
        parts.append(al.Variant(logits_mask=lambda q_pos, kv_pos: kv_pos <= q_pos + right, name=f"right {right}"))
    if left is not None:
        parts.append(al.variants.sliding_window(left))
    if options.leftpad:
        parts.append(
            al.Variant(
                logits_mask=lambda kv_pos, batch, leftpad: kv_pos >= leftpad[batch],
                params={"leftpad": al.param(torch.int32, 1)},
                name="leftpad",
            )
        )
    if options.softcap:
        parts.append(al.variants.soft_cap(options.softcap))
    if options.slope_dims:
        parts.append(_distance_bias(options.slope_dims))
    return functools.reduce(operator.and_, parts) if parts else None


def _distance_bias(slope_dims: int) -> al.Variant:
    """ALiBi as flash-attn means it: farther keys weigh less on both sides."""
    if slope_dims == 1:
        return al.Variant(
            logits_transform=lambda logits, q_pos, kv_pos, qo_head, slopes: (
                logits - slopes[qo_head] * abs(q_pos - kv_pos)
            ),
            params={"slopes": al.param(torch.float32, 1)},
            name="alibi",
        )
    return al.Variant(
        logits_transform=lambda *, logits, q_pos, kv_pos, qo_head, batch, slopes: (
            logits - slopes[batch, qo_head] * abs(q_pos - kv_pos)
        ),
        params={"slopes": al.param(torch.float32, 2)},
        name="alibi per request",
    )


def _window(window_size: Any) -> tuple[int | None, int | None]:
    if not isinstance(window_size, Sequence) or isinstance(window_size, str) or len(window_size) != 2:
        raise InvalidArgument(
            name="window_size", given=window_size, supported="(left, right)", fix="-1 is unlimited on its side."
        )
    sides = [whole("window_size", side) for side in window_size]
    left, right = (side if 0 <= side < _UNLIMITED else None for side in sides)
    return left, right


def _check_slopes(slopes: Any, batch: int, heads: int) -> int:
    if not isinstance(slopes, torch.Tensor) or slopes.dtype != torch.float32:
        given = slopes.dtype if isinstance(slopes, torch.Tensor) else type(slopes).__name__
        raise DtypeMismatch(name="alibi_slopes", given=given, expected="a torch.float32 tensor", fix="Use .float().")
    if tuple(slopes.shape) not in ((heads,), (batch, heads)):
        raise ShapeMismatch(
            name="alibi_slopes",
            given=tuple(slopes.shape),
            expected=f"[{heads}] or [{batch}, {heads}]",
            fix="One slope a query head, or one a request and query head.",
        )
    return slopes.ndim
