"""Expressions that are the same for every query row and key of a request, on numpy ``[batch]`` vectors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnloom.errors import ParamError
from attnloom.variant.expr import Cast, Const, Dtype, Expr, Index, Op, ParamRef, Symbol, postorder

Lengths = np.ndarray[Any, np.dtype[np.int64]]

PER_REQUEST = frozenset({"qo_len", "kv_len", "batch"})

_CONTINUOUS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "where": np.where,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
}
"""Operations whose float result differs from a device's by rounding only."""

_INTEGER: dict[str, Callable[..., Any]] = {
    **_CONTINUOUS,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "sign": np.sign,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "bitnot": np.invert,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {**_INTEGER, "div": np.true_divide}


def is_uniform(root: Expr, unknown: frozenset[str]) -> bool:
    """Whether `root` can be evaluated here, exactly up to the rounding of its float results.

    A float that is turned into an integer or compared is refused: a device may round it to the other side.
    Parameters in `unknown` have no value yet.
    """
    return all(_is_uniform_node(node, unknown) for node in postorder(root))


def _is_uniform_node(node: Expr, unknown: frozenset[str]) -> bool:
    if isinstance(node, Symbol):
        return node.name in PER_REQUEST
    if isinstance(node, ParamRef):
        return node.name not in unknown
    if isinstance(node, Index):
        return node.param not in unknown
    if isinstance(node, Cast):
        return node.dtype is Dtype.FLOAT or node.arg.dtype is not Dtype.FLOAT
    if isinstance(node, Op):
        has_float = any(arg.dtype is Dtype.FLOAT for arg in node.operands)
        return node.name in (_CONTINUOUS if has_float else _INTEGER) or (
            node.name == "div" and isinstance(node.operands[1], Const)
        )
    return isinstance(node, Const)


def parameters(root: Expr) -> frozenset[str]:
    """Names of the parameters that `root` reads."""
    return frozenset(
        node.name if isinstance(node, ParamRef) else node.param
        for node in postorder(root)
        if isinstance(node, (ParamRef, Index))
    )


@dataclass(frozen=True, eq=False)
class Batch:
    """What thresholds are computed from.

    qo_len, kv_len     int64 ``[batch]``
    params             values on the host, by name
    default_positions  q_pos is ``q_idx + kv_len - qo_len``
    """

    qo_len: Lengths
    kv_len: Lengths
    params: Mapping[str, Any]
    default_positions: bool


Getter = Callable[[Batch], Any]


def varies(root: Expr) -> bool:
    """Whether `root` may differ between requests."""
    return any(isinstance(node, Symbol) for node in postorder(root))


def getter(root: Expr) -> Getter:
    """`root` as a function of a batch: an int64, float64 or bool scalar, or ``[batch]``."""
    if not root.args:
        return _leaf(root)
    place: dict[Expr, int] = {}
    steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
    for node in postorder(root):
        place[node] = len(steps)
        steps.append((_step(node), tuple(place[arg] for arg in node.args)))

    def value(batch: Batch) -> Any:
        values: list[Any] = []
        for step, args in steps:
            values.append(step(batch, *[values[i] for i in args]))
        return values[-1]

    return value


def _leaf(node: Expr) -> Getter:
    if isinstance(node, Const):
        value = _host(node.value, node.dtype)
        return lambda batch: value
    if isinstance(node, ParamRef):
        name, dtype = node.name, node.dtype
        return lambda batch: _host(batch.params[name], dtype)
    if isinstance(node, Symbol):
        if node.name == "batch":
            return lambda batch: np.arange(len(batch.qo_len))
        return operator.attrgetter(node.name)
    raise TypeError(f"unknown leaf {type(node).__name__}")  # pragma: no cover - every leaf is above


def _step(node: Expr) -> Callable[..., Any]:
    """A node as a function of the batch and its operands' values."""
    if isinstance(node, Index):
        return lambda batch, *indices: _element(node, batch, indices)
    if isinstance(node, Cast):
        return lambda batch, value: _host(value, node.dtype)
    if isinstance(node, Op):
        function: Callable[..., Any] = _FUNCTIONS[node.name]
        return lambda batch, *values: function(*values)
    return _leaf(node)


def _element(node: Index, batch: Batch, indices: tuple[Any, ...]) -> Any:
    table = np.asarray(batch.params[node.param])
    try:
        return _host(table[indices], node.dtype)
    except IndexError as error:
        raise ParamError(
            name=node.param,
            given=f"shape {table.shape}",
            expected=f"{node} is read for every request of a batch of {len(batch.qo_len)}: {error}.",
            fix="Give one element a request.",
        ) from None


def _host(value: Any, dtype: Dtype) -> Any:
    """Integers in 64 bits; floats rounded to fp32, as a device holds them, then computed in fp64."""
    if dtype is Dtype.FLOAT:
        return np.asarray(value, dtype=np.float32).astype(np.float64)[()]
    if isinstance(value, int):
        return value
    return np.asarray(value, dtype=np.bool_ if dtype is Dtype.BOOL else np.int64)[()]
