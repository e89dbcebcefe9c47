"""Checks of a traced functor's result, before anything is built on it."""

from __future__ import annotations

from collections.abc import Mapping

from attnloom.errors import VariantError
from attnloom.variant.expr import Const, Dtype, Expr, Index, Op, ParamRef, Symbol, cast_to, postorder
from attnloom.variant.ops import OPS
from attnloom.variant.params import Param

_KIND = {Dtype.BOOL: "a boolean", Dtype.INT32: "an integer", Dtype.INT64: "an integer", Dtype.FLOAT: "a float"}


def verify_result(slot: str, expr: Expr) -> Expr:
    """`expr` with the type that `slot` needs.

    Raises:
        VariantError: a mask that is not boolean, or a transform or sink that is not a float.
    """
    if slot == "logits_mask":
        if expr.dtype is not Dtype.BOOL:
            raise VariantError(
                where=slot,
                reason=f"the mask {expr} is {_KIND[expr.dtype]}, and must be a boolean",
                fix="Compare: (...) != 0",
            )
        return expr
    if expr.dtype is Dtype.BOOL or (expr.dtype.is_int and not isinstance(expr, Const)):
        raise VariantError(
            where=slot,
            reason=f"the result {expr} is {_KIND[expr.dtype]}, and must be a float",
            fix="Masks belong to logits_mask; torch.where(mask, logits, -torch.inf) and x.float() give floats",
        )
    return cast_to(expr, Dtype.FLOAT)


def verify_expr(slot: str, expr: Expr, symbols: Mapping[str, Dtype], params: Mapping[str, Param]) -> None:
    """Check the whole graph: known names, their types, one integer index a dimension, arities.

    Raises:
        VariantError: naming the node that is wrong.
    """
    for node in postorder(expr):
        problem = _problem(node, symbols, params)
        if problem is not None:
            raise VariantError(
                where=f"{slot}, at {node}", reason=problem, fix="Build expressions by tracing a function"
            )


def _problem(node: Expr, symbols: Mapping[str, Dtype], params: Mapping[str, Param]) -> str | None:
    if isinstance(node, Symbol):
        return None if symbols.get(node.name) is node.dtype else f"symbol {node.name} is not available here"
    if isinstance(node, ParamRef):
        declared = params.get(node.name)
        fits = declared is not None and declared.ndim == 0 and declared.value_dtype is node.dtype
        return None if fits else f"{node.name} is not a declared scalar of type {node.dtype.value}"
    if isinstance(node, Index):
        declared = params.get(node.param)
        if declared is None or declared.ndim != len(node.indices) or declared.value_dtype is not node.dtype:
            return f"{node.param} is not a declared {len(node.indices)}-D tensor of {node.dtype.value} elements"
        return None if all(one.dtype.is_int for one in node.indices) else "an index is not an integer"
    if isinstance(node, Op):
        info = OPS.get(node.name)
        if info is None or info.arity != len(node.operands):
            return f"{node.name} with {len(node.operands)} operands is not an operation"
    return None
