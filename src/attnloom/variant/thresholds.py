"""The numbers of a batch at which a mask's comparisons change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from attnloom.variant.expr import Expr
from attnloom.variant.formula import Threshold
from attnloom.variant.linear import KV_POS, Q_POS, Linear
from attnloom.variant.regions import FALSE, TRUE, UNKNOWN
from attnloom.variant.uniform import Batch, Getter, getter, varies

Ints = np.ndarray[Any, np.dtype[np.int64]]

INF = 2**40
ROUNDING = 2.0**-20
"""Bound of a float expression's relative error on a device: some operations in fp32, 2**-24 each."""
EXACT_BELOW = 2.0**23
"""Whole numbers whose fp32 sums and differences are exact; multiples of a power of two likewise, scaled."""
FINE = 64.0
"""Parameters that are multiples of 1 / FINE count as exact."""
LARGEST_SUM = 2.0**100
"""Finite numbers above this may overflow in fp32 on the way."""
LARGEST_GIVEN_POSITION = 2.0**24
"""Bound assumed of positions that a caller gives, in float comparisons."""

NO_COLUMNS: Ints = np.zeros((1, 0), dtype=np.int64)


class Columns:
    """Thresholds compiled into the columns of a table ``[rows, width]``, rows 1 or the batch.

    A cut on integers is one column: the comparison holds iff ``v < cut``. A cut in floats is two: below the first it
    holds, from the second on it fails, between them a device's rounding decides. `places` are the columns (first,
    last) of each threshold. A condition on the whole request is one column of FALSE, TRUE or UNKNOWN.
    """

    def __init__(self, thresholds: Sequence[Threshold | Expr]) -> None:
        self._parts: list[Callable[[Batch], tuple[Any, ...]]] = []
        self.places: list[tuple[int, int]] = []
        self.varies = False
        self.width = 0
        for threshold in thresholds:
            exprs = (threshold,) if isinstance(threshold, Expr) else threshold.reads()
            self.varies |= any(varies(expr) for expr in exprs)
            two = isinstance(threshold, Threshold) and threshold.is_float and threshold.scale != 0
            # the size of a rounding depends on the lengths
            self.varies |= isinstance(threshold, Threshold) and threshold.is_float and not _is_always_exact(threshold)
            self.places.append((self.width, self.width + two))
            self.width += 1 + two
            self._parts.append(_compiled(threshold))

    def __call__(self, batch: Batch, rows: int) -> Ints:
        """The table of a batch; `NO_COLUMNS` where there is no threshold."""
        if not self.width:
            return NO_COLUMNS
        table = np.empty((rows, self.width), dtype=np.int64)
        column = 0
        for part in self._parts:
            for values in part(batch):
                table[:, column] = values
                column += 1
        return table


def _is_always_exact(threshold: Threshold) -> bool:
    """Whether no rounding can matter at any length: only infinities are left to compare with."""
    return not threshold.form.factors and threshold.form.const_weight == 0 and threshold.scale == 0


def _compiled(threshold: Threshold | Expr) -> Callable[[Batch], tuple[Any, ...]]:
    if isinstance(threshold, Expr):
        value = getter(threshold)
        return lambda batch: (np.where(value(batch), TRUE, FALSE),)
    if threshold.scale == 0:
        return _float_bit(threshold) if threshold.is_float else _integer_bit(threshold)
    return _float_cut(threshold) if threshold.is_float else _integer_cut(threshold)


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _sum(form: Linear) -> Getter:
    """The value of a form without positions: whole numbers stay whole."""
    const = _number(form.const)
    terms = [(_number(factor), getter(atom)) for atom, factor in form.factors.items()]

    def total(batch: Batch) -> Any:
        result: Any = const
        for factor, value in terms:
            result = result + factor * value(batch)
        return result

    return total


def _integer_bit(bit: Threshold) -> Callable[[Batch], tuple[Any, ...]]:
    total, limit = _sum(bit.form), -1 if bit.strict else 0
    return lambda batch: (np.where(total(batch) <= limit, TRUE, FALSE),)


def _integer_cut(cut: Threshold) -> Callable[[Batch], tuple[Any, ...]]:
    total, size, strict = _sum(cut.form), int(abs(cut.scale)), int(cut.strict)
    if cut.scale > 0:
        return lambda batch: (_clamped(-(total(batch) + strict) // size + 1),)
    return lambda batch: (_clamped(-(-(total(batch) + strict) // size)),)


def _clamped(value: Any) -> Any:
    if isinstance(value, int):
        return min(max(value, -INF), INF + 1)
    return np.minimum(np.maximum(value, -INF), INF + 1)


def _float_bit(bit: Threshold) -> Callable[[Batch], tuple[Any, ...]]:
    total, error = _sum(bit.form), _error(bit.form)

    def values(batch: Batch) -> tuple[Any, ...]:
        with np.errstate(invalid="ignore"):
            value, off = total(batch), error(batch)
            holds = value < 0 if bit.strict else value <= 0
            known = (off == 0) | (np.abs(value) > off) | np.isinf(value)
        return (np.where(known & ~np.isnan(value), np.where(holds, TRUE, FALSE), UNKNOWN),)

    return values


def _float_cut(cut: Threshold) -> Callable[[Batch], tuple[Any, ...]]:
    total, error, scale = _sum(cut.form), _error(cut.form), float(cut.scale)
    # `<=` with a positive factor, and `<` with a negative one, include the threshold itself
    inclusive = cut.strict is (scale < 0)

    def values(batch: Batch) -> tuple[Any, ...]:
        with np.errstate(invalid="ignore"):
            at = -np.asarray(total(batch), dtype=np.float64) / scale
            off = np.where(np.isinf(at), 0.0, error(batch) / abs(scale))
            low, high = at - off, at + off
            ends = (np.floor(low) + 1, np.floor(high) + 1) if inclusive else (np.ceil(low), np.ceil(high))
            unknown = np.isnan(at) | np.isnan(off)
        low, high = np.where(unknown, -math.inf, ends[0]), np.where(unknown, math.inf, ends[1])
        return _clamped(low).astype(np.int64), _clamped(high).astype(np.int64)

    return values


def _error(form: Linear) -> Getter:
    """Bound of a device's rounding of the whole comparison; 0 where fp32 adds exactly."""
    unit = math.lcm(form.const.denominator, *(weight.denominator for weight in form.weights.values()))
    dyadic = unit & (unit - 1) == 0 and unit < EXACT_BELOW
    unit = unit if dyadic else 1
    const = float(form.const_weight)
    positions = sum(float(weight) for atom, weight in form.weights.items() if atom is KV_POS or atom is Q_POS)
    terms = [
        (float(weight), getter(atom))
        for atom, weight in form.weights.items()
        if atom is not KV_POS and atom is not Q_POS
    ]

    def error(batch: Batch) -> Any:
        longest = batch.qo_len + batch.kv_len if batch.default_positions else LARGEST_GIVEN_POSITION
        total: Any = const + positions * longest
        exact: Any = dyadic
        finest: Any = unit
        for weight, value in terms:
            size = np.abs(np.asarray(value(batch), dtype=np.float64))
            total = total + weight * size
            exact = exact & (np.floor(size * FINE) == size * FINE)
            finest = np.where(np.floor(size) == size, finest, unit * FINE)
        rounding = np.where(exact & (total * finest < EXACT_BELOW), 0.0, total * ROUNDING)
        return np.where(np.isfinite(total) & (total > LARGEST_SUM), math.nan, rounding)

    return error
