"""Expressions in torch: the meaning of a variant on every device, and the inner loop of `cpu`."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnloom.errors import ParamError
from attnloom.variant.expr import Cast, Const, Dtype, Expr, Index, Op, ParamRef, Symbol, postorder
from attnloom.variant.in_place import overwriting
from attnloom.variant.ops import FLOAT_FUNCTIONS, ROUNDINGS

Value = torch.Tensor | int | float
Env = Mapping[str, Value]
Step = tuple[int, Callable[..., Any], tuple[int, ...]]


def _minimum(a: Any, b: Any) -> torch.Tensor:
    if not isinstance(b, torch.Tensor):
        return torch.clamp(a, max=b)
    return torch.minimum(a, b) if isinstance(a, torch.Tensor) else torch.clamp(b, max=a)


def _maximum(a: Any, b: Any) -> torch.Tensor:
    if not isinstance(b, torch.Tensor):
        return torch.clamp(a, min=b)
    return torch.maximum(a, b) if isinstance(a, torch.Tensor) else torch.clamp(b, min=a)


TORCH: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in (*FLOAT_FUNCTIONS, *ROUNDINGS, "sign", "isnan", "where", "abs")},
    "tanh_approx": torch.tanh,
    "minimum": _minimum,
    "maximum": _maximum,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "bitand": operator.and_,
    "bitor": operator.or_,
    "bitxor": operator.xor,
    "bitnot": operator.invert,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "shl": operator.lshift,
    "shr": operator.rshift,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "neg": operator.neg,
    "pow": operator.pow,
}


def _scalar(value: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A 0-d tensor on the host, which meets tensors on any device, whatever torch's default device is."""
    return torch.tensor(value, dtype=dtype, device="cpu")


class Compiled:
    """An expression as a flat list of torch calls on numbered slots; slots are reused once their value is dead."""

    def __init__(self, root: Expr, float_dtype: torch.dtype) -> None:
        self._float = float_dtype
        self._template: list[Any] = []
        self._loads: list[tuple[int, str, Callable[[Any], Any]]] = []
        self._steps: list[Step] = []
        slots: dict[Expr, int] = {}
        free: list[int] = []
        uses: dict[Expr, int] = {root: 1}
        for node in postorder(root):
            for arg in node.args:
                uses[arg] = uses.get(arg, 0) + 1
        for node in postorder(root):
            if not node.args:
                slots[node] = self._leaf(node)
        for node in postorder(root):
            if node.args:
                self._step(node, slots, uses, free)
        self._out = slots[root]
        self._constant = isinstance(root, Const)

    def __call__(self, env: Env) -> torch.Tensor:
        """The value on `env`: every symbol and parameter that the expression reads, broadcastable to each other."""
        slots = self._template.copy()
        try:
            for slot, name, load in self._loads:
                slots[slot] = load(env[name])
        except KeyError as missing:
            raise ParamError(
                name=missing.args[0],
                given="no value was given",
                expected="",
                fix="Give it at construction, plan or run.",
            ) from None
        for slot, function, args in self._steps:
            slots[slot] = function(*[slots[i] for i in args])
        result = slots[self._out]
        return _scalar(result) if self._constant else result

    def _new_slot(self, value: object = None) -> int:
        self._template.append(value)
        return len(self._template) - 1

    def _leaf(self, node: Expr) -> int:
        if isinstance(node, Const):
            return self._new_slot(node.value)
        slot = self._new_slot()
        if isinstance(node, Symbol):
            self._loads.append((slot, node.name, self._loader(None)))
        elif isinstance(node, ParamRef):
            self._loads.append((slot, node.name, self._loader(node.dtype)))
        else:  # pragma: no cover - no other node is without operands
            raise TypeError(f"unknown leaf {type(node).__name__}")
        return slot

    def _loader(self, dtype: Dtype | None) -> Callable[[Any], Any]:
        """Numbers become 0-d tensors, so that no step meets Python numbers only; `dtype` set: storage types widen."""
        float_dtype = self._float
        widen = None if dtype is None else self._widener(dtype)

        def load(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value if widen is None else widen(value)
            return _scalar(value, float_dtype if isinstance(value, float) else None)

        return load

    def _widener(self, dtype: Dtype) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Conversion from how a parameter is stored to the type it computes in."""
        float_dtype = self._float
        if dtype is Dtype.FLOAT:
            return lambda value: value.to(float_dtype)
        if dtype is Dtype.INT32:
            return lambda value: value.to(torch.int32)
        return None

    def _step(self, node: Expr, slots: dict[Expr, int], uses: dict[Expr, int], free: list[int]) -> None:
        function = self._function(node)
        args = tuple(slots[arg] for arg in node.args)
        if isinstance(node, Index):
            table = self._new_slot()  # the parameter itself is never freed: another element of it may follow
            self._loads.append((table, node.param, lambda value: value))
            args = (table, *args)
        elif isinstance(node, Op):
            args = self._typed(node, args)
            # results of operations are our own; leaves, conversions and elements may be views of the caller's
            function = overwriting(node, lambda one: isinstance(one, Op) and uses[one] == 1, function)
        for arg in node.args:
            uses[arg] -= 1
            if uses[arg] == 0:
                free.append(slots[arg])
        slots[node] = free.pop() if free else self._new_slot()
        self._steps.append((slots[node], function, args))

    def _typed(self, node: Op, args: tuple[int, ...]) -> tuple[int, ...]:
        """Slots of the operands, one of them converted where torch would choose another type than the node's."""
        operands = node.operands[1:] if node.name == "where" else node.operands
        first = len(node.operands) - len(operands)
        tensors = [i for i, one in enumerate(operands, first) if not isinstance(one, Const)]
        wants_float = node.dtype is Dtype.FLOAT or (node.dtype is Dtype.BOOL and operands[0].dtype is not Dtype.BOOL)
        if not tensors:  # numbers only, which Python could not fold, or torch.where(condition, number, number)
            dtype = node.dtype if node.name == "where" else operands[-1].dtype
            slot = self._new_slot(_scalar(self._template[args[-1]], self._torch_dtype(dtype)))
            return (*args[:-1], slot)
        if node.dtype is Dtype.BOOL or not wants_float or any(node.operands[i].dtype is Dtype.FLOAT for i in tensors):
            return args
        target, float_dtype = tensors[0], self._float
        slot = self._new_slot()
        self._steps.append((slot, lambda value: value.to(float_dtype), (args[target],)))
        return (*args[:target], slot, *args[target + 1 :])

    def _torch_dtype(self, dtype: Dtype) -> torch.dtype:
        return {Dtype.BOOL: torch.bool, Dtype.INT32: torch.int32, Dtype.INT64: torch.int64}.get(dtype, self._float)

    def _function(self, node: Expr) -> Callable[..., Any]:
        if isinstance(node, Op):
            return TORCH[node.name]
        if isinstance(node, Cast):
            if node.dtype is Dtype.BOOL:
                return lambda value: value != 0
            target = self._torch_dtype(node.dtype)
            return lambda value: value.to(target)
        if not isinstance(node, Index):  # pragma: no cover - every node kind is above
            raise TypeError(f"unknown node {type(node).__name__}")
        widen = self._widener(node.dtype)
        name = node.param

        def element(table: torch.Tensor, *indices: Any) -> torch.Tensor:
            if table.device.type != "cpu":  # an index out of range would end the process's use of the device
                indices = tuple(
                    i.clamp(-size, size - 1) if isinstance(i, torch.Tensor) else i
                    for i, size in zip(indices, table.shape, strict=False)
                )
            try:
                found = table[indices]
            except IndexError as reason:
                raise ParamError(
                    name=name,
                    given=f"shape {tuple(table.shape)}",
                    expected=f"The variant reads beyond it: {reason}.",
                    fix="Give as many elements as it indexes, or clamp the index in the function.",
                ) from None
            return found if widen is None else widen(found)

        return element


_compiled: weakref.WeakKeyDictionary[Expr, dict[torch.dtype, Compiled]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def compile_expr(expr: Expr, float_dtype: torch.dtype = torch.float32) -> Callable[[Env], torch.Tensor]:
    """`expr` as a function of its symbols and parameters; made once per expression.

    Args:
        expr: what to compute.
        float_dtype: type that parameters, integers divided and conversions compute in: float32, or float64
            for a reference. `logits` and `x` are taken in the type they come in.
    """
    with _lock:
        by_dtype = _compiled.setdefault(expr, {})
        found = by_dtype.get(float_dtype)
        if found is None:
            found = by_dtype[float_dtype] = Compiled(expr, float_dtype)
        return found


def evaluate(expr: Expr, env: Env, float_dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The value of `expr` on tensors and numbers that broadcast to each other.

    Args:
        expr: what to compute.
        env: every symbol and parameter that `expr` reads, by name; positions may be int32 or int64.
        float_dtype: see `compile_expr`.

    Raises:
        ParamError: a name that `expr` reads is missing from `env`.
    """
    return compile_expr(expr, float_dtype)(env)
