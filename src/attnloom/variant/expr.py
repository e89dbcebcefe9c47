"""The expression of a variant: an immutable graph of scalar operations.

A node is made by the functions below and interned, so equal expressions are one object: comparing is
``is``, hashing is by identity, shared parts are shared. Values are those of one (query row, key, head);
an implementation evaluates them broadcast over a tile.
"""

from __future__ import annotations

import enum
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from attnloom.variant.ops import ATOM, COMPARISON, OPS

Number = bool | int | float
E = TypeVar("E", bound="Expr")

Written = tuple[str, int]
"""Text and precedence."""

LONGEST_TREE = 400
"""Above this many operands, written out with repeats, an expression is shown as numbered lines."""

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Dtype(enum.Enum):
    """Type of a value. FLOAT is the implementation's arithmetic type: fp32, or fp64 in a reference."""

    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float"

    @property
    def is_int(self) -> bool:
        """Whether this is an integer type (bool is not)."""
        return self in (Dtype.INT32, Dtype.INT64)


_RANK = {Dtype.BOOL: 0, Dtype.INT32: 1, Dtype.INT64: 2, Dtype.FLOAT: 3}


def promote(*dtypes: Dtype) -> Dtype:
    """The type that holds a value of any of `dtypes`."""
    return max(dtypes, key=_RANK.__getitem__)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Expr:
    """A node; `dtype` is the type of its value."""

    dtype: Dtype

    @property
    def args(self) -> tuple[Expr, ...]:
        """The nodes that this one reads."""
        return ()

    def written(self, args: Sequence[Written]) -> Written:
        """Python-like text of this node and its precedence, given those of its operands."""
        raise NotImplementedError(type(self).__name__)

    def __str__(self) -> str:
        size: dict[Expr, int] = {}
        text: dict[Expr, Written] = {}
        for node in postorder(self):
            size[node] = 1 + sum(size[arg] for arg in node.args)
            if size[node] > LONGEST_TREE:
                return "\n".join(listing(self))
            text[node] = node.written([text[arg] for arg in node.args])
        return text[self][0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Const(Expr):
    """A number known when the functor was traced."""

    value: Number

    def written(self, args: Sequence[Written]) -> Written:
        """A negative number binds like a minus sign."""
        negative = not isinstance(self.value, bool) and str(self.value).startswith("-")
        return str(self.value), OPS["neg"].precedence if negative else ATOM

    def __reduce__(self) -> tuple[Any, ...]:
        return const, (self.value, self.dtype)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Symbol(Expr):
    """A name that the engine supplies: ``logits``, ``kv_pos``, ..."""

    name: str

    def written(self, args: Sequence[Written]) -> Written:
        """The name."""
        return self.name, ATOM

    def __reduce__(self) -> tuple[Any, ...]:
        return symbol, (self.name, self.dtype)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class ParamRef(Expr):
    """The value of a scalar parameter."""

    name: str

    def written(self, args: Sequence[Written]) -> Written:
        """The name."""
        return self.name, ATOM

    def __reduce__(self) -> tuple[Any, ...]:
        return param_ref, (self.name, self.dtype)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Index(Expr):
    """One element of a tensor parameter; `indices` has one integer per dimension."""

    param: str
    indices: tuple[Expr, ...]

    @property
    def args(self) -> tuple[Expr, ...]:
        """The nodes that this one reads."""
        return self.indices

    def written(self, args: Sequence[Written]) -> Written:
        """``param[i, j]``."""
        return f"{self.param}[{', '.join(text for text, _ in args)}]", ATOM

    def __reduce__(self) -> tuple[Any, ...]:
        return index, (self.param, self.indices, self.dtype)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Cast(Expr):
    """`arg` converted to `dtype`; float to integer truncates, anything to bool compares with 0."""

    arg: Expr

    @property
    def args(self) -> tuple[Expr, ...]:
        """The nodes that this one reads."""
        return (self.arg,)

    def written(self, args: Sequence[Written]) -> Written:
        """``int64(x)``."""
        return f"{self.dtype.value}({args[0][0]})", ATOM

    def __reduce__(self) -> tuple[Any, ...]:
        return cast_to, (self.arg, self.dtype)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Op(Expr):
    """An operation of `ops.OPS` on its operands."""

    name: str
    operands: tuple[Expr, ...]

    @property
    def args(self) -> tuple[Expr, ...]:
        """The nodes that this one reads."""
        return self.operands

    def written(self, args: Sequence[Written]) -> Written:
        """A call, or operators with the parentheses that Python needs."""
        info = OPS[self.name]
        if info.infix is None:
            return f"{self.name}({', '.join(text for text, _ in args)})", ATOM
        if info.arity == 1:
            return f"{info.infix}{_parenthesised(args[0], info.precedence)}", info.precedence
        tight = info.precedence + 1
        left = _parenthesised(args[0], tight if info.precedence == COMPARISON else info.precedence)
        return f"{left} {info.infix} {_parenthesised(args[1], tight)}", info.precedence

    def __reduce__(self) -> tuple[Any, ...]:
        return op, (self.name, self.operands, self.dtype)


def _parenthesised(written: Written, at_least: int) -> str:
    text, precedence = written
    return text if precedence >= at_least else f"({text})"


_nodes: weakref.WeakValueDictionary[tuple[object, ...], Expr] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _intern(key: tuple[object, ...], make: Callable[[], E]) -> E:
    with _lock:
        found = _nodes.get(key)
        if found is None:
            found = _nodes[key] = make()
        return cast(E, found)


def const(value: Number, dtype: Dtype | None = None) -> Const:
    """A constant; without `dtype` the type follows the Python number."""
    if dtype is None:
        dtype = dtype_of_number(value)
    typed: Number
    if dtype is Dtype.BOOL:
        typed = bool(value)
    elif dtype is Dtype.FLOAT:
        typed = float(value)
    else:
        typed = int(value)
    # repr tells 0.0 from -0.0 and makes NaN equal to itself
    return _intern((Const, dtype, repr(typed)), lambda: Const(dtype, typed))


def dtype_of_number(value: Number) -> Dtype:
    """BOOL, FLOAT, or the smallest integer type that holds `value`."""
    if isinstance(value, bool):
        return Dtype.BOOL
    if isinstance(value, int):
        return Dtype.INT32 if -INT32_MAX - 1 <= value <= INT32_MAX else Dtype.INT64
    return Dtype.FLOAT


def symbol(name: str, dtype: Dtype) -> Symbol:
    """A name that the engine supplies."""
    return _intern((Symbol, dtype, name), lambda: Symbol(dtype, name))


def param_ref(name: str, dtype: Dtype) -> ParamRef:
    """A scalar parameter."""
    return _intern((ParamRef, dtype, name), lambda: ParamRef(dtype, name))


def index(param: str, indices: tuple[Expr, ...], dtype: Dtype) -> Index:
    """An element of a tensor parameter."""
    return _intern((Index, dtype, param, indices), lambda: Index(dtype, param, indices))


def cast_to(arg: Expr, dtype: Dtype) -> Expr:
    """`arg` as `dtype`; `arg` itself when it has that type already."""
    if arg.dtype is dtype:
        return arg
    return _intern((Cast, dtype, arg), lambda: Cast(dtype, arg))


def op(name: str, operands: tuple[Expr, ...], dtype: Dtype) -> Op:
    """An operation; `build.py` chooses `dtype`."""
    return _intern((Op, dtype, name, operands), lambda: Op(dtype, name, operands))


TRUE = const(True)
FALSE = const(False)


def postorder(*roots: Expr) -> Iterator[Expr]:
    """Every node under `roots` once, operands before their users."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args) if arg not in seen)


def with_args(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """`node` reading `args` instead of its own operands."""
    if args == node.args:
        return node
    if isinstance(node, Op):
        return op(node.name, args, node.dtype)
    if isinstance(node, Cast):
        return cast_to(args[0], node.dtype)
    if isinstance(node, Index):
        return index(node.param, args, node.dtype)
    return node


def rewrite(root: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """`root` rebuilt from the leaves up, `change` applied to every node after its operands."""
    done: dict[Expr, Expr] = {}
    for node in postorder(root):
        done[node] = change(with_args(node, tuple(done[arg] for arg in node.args)))
    return done[root]


def substitute(root: Expr, replace: Mapping[Expr, Expr]) -> Expr:
    """`root` with whole nodes replaced; replacements are not entered."""
    return rewrite(root, lambda node: replace.get(node, node))


def listing(root: Expr) -> list[str]:
    """One line per operation, ``%3 = kv_pos - q_pos``; shared parts appear once."""
    text: dict[Expr, Written] = {}
    lines: list[str] = []
    for node in postorder(root):
        written = node.written([text[arg] for arg in node.args])
        if node.args:
            lines.append(f"%{len(lines)} = {written[0]}")
            written = (f"%{len(lines) - 1}", ATOM)
        text[node] = written
    return lines or [text[root][0]]
