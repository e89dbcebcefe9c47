"""Float operations that overwrite an operand which nothing else will read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnloom.variant.expr import Const, Dtype, Expr, Op
from attnloom.variant.ops import FLOAT_FUNCTIONS, ROUNDINGS

_UNARY: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch.Tensor, f"{name}_") for name in (*FLOAT_FUNCTIONS, *ROUNDINGS, "abs", "neg")},
    "tanh_approx": torch.Tensor.tanh_,
}
_BINARY: dict[tuple[str, int], Callable[..., Any]] = {
    ("add", 0): torch.Tensor.add_,
    ("add", 1): torch.Tensor.add_,
    ("sub", 0): torch.Tensor.sub_,
    ("mul", 0): torch.Tensor.mul_,
    ("mul", 1): torch.Tensor.mul_,
    ("div", 0): torch.Tensor.div_,
}


def overwriting(node: Op, dies: Callable[[Expr], bool], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """`otherwise`, or a function of the same value that reuses the memory of an operand.

    Args:
        node: the operation.
        dies: whether an operand is a tensor of our own that this operation reads last.
        otherwise: the operation on fresh memory.
    """
    if node.dtype is not Dtype.FLOAT:
        return otherwise
    if len(node.operands) == 1:
        return _UNARY.get(node.name, otherwise) if dies(node.operands[0]) else otherwise
    if len(node.operands) != 2 or node.operands[0] is node.operands[1]:
        return otherwise
    for place in (0, 1):
        function = _BINARY.get((node.name, place))
        if function is not None and node.operands[place].dtype is Dtype.FLOAT and dies(node.operands[place]):
            other = node.operands[1 - place]
            return (
                _with_number(function, place) if isinstance(other, Const) else _with_tensor(function, place, otherwise)
            )
    return otherwise


def _with_number(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    return function if place == 0 else lambda a, b: function(b, a)


def _with_tensor(function: Callable[..., Any], place: int, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """In place where the result has the shape and type of the operand that goes."""

    def compute(a: torch.Tensor, b: torch.Tensor) -> Any:
        mine, other = (a, b) if place == 0 else (b, a)
        if mine.dtype == other.dtype and (other.ndim == 0 or mine.shape == other.shape):
            return function(mine, other)
        return otherwise(a, b)

    return compute
