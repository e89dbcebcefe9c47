"""Expressions as text, for errors, `repr` and `attnloom explain`."""

from __future__ import annotations

from attnloom.variant.expr import Cast, Const, Dtype, Expr, Index, Op, ParamRef, Symbol, postorder
from attnloom.variant.ops import ATOM, OPS

LONGEST_TREE = 400
"""Above this many operands, written out with repeats, an expression is shown as numbered lines."""


def show(root: Expr) -> str:
    """Python-like text of an expression; one line unless its written-out tree is very large."""
    size: dict[Expr, int] = {}
    text: dict[Expr, tuple[str, int]] = {}
    for node in postorder(root):
        size[node] = 1 + sum(size[arg] for arg in node.args)
        if size[node] > LONGEST_TREE:
            return "\n".join(listing(root))
        text[node] = _write(node, [text[arg] for arg in node.args])
    return text[root][0]


def listing(root: Expr) -> list[str]:
    """One line per operation, ``%3 = kv_pos - q_pos``; shared parts appear once."""
    text: dict[Expr, tuple[str, int]] = {}
    lines: list[str] = []
    for node in postorder(root):
        written = _write(node, [text[arg] for arg in node.args])
        if node.args:
            lines.append(f"%{len(lines)} = {written[0]}")
            written = (f"%{len(lines) - 1}", ATOM)
        text[node] = written
    return lines or [text[root][0]]


def _write(node: Expr, args: list[tuple[str, int]]) -> tuple[str, int]:
    """Text and precedence of `node`, given those of its operands."""
    plain = [text for text, _ in args]
    if isinstance(node, Const):
        negative = not isinstance(node.value, bool) and str(node.value).startswith("-")
        return str(node.value), 10 if negative else ATOM
    if isinstance(node, (Symbol, ParamRef)):
        return node.name, ATOM
    if isinstance(node, Index):
        return f"{node.param}[{', '.join(plain)}]", ATOM
    if isinstance(node, Cast):
        name = "float" if node.dtype is Dtype.FLOAT else node.dtype.value
        return f"{name}({plain[0]})", ATOM
    if not isinstance(node, Op):  # pragma: no cover - every node kind is above
        raise TypeError(f"unknown node {type(node).__name__}")
    info = OPS[node.name]
    if info.infix is None:
        return f"{node.name}({', '.join(plain)})", ATOM
    left = _paren(args[0], info.precedence)
    if info.arity == 1:
        return f"{info.infix}{left}", info.precedence
    chains = info.precedence != 3  # comparisons never chain
    left = left if chains else _paren(args[0], info.precedence + 1)
    return f"{left} {info.infix} {_paren(args[1], info.precedence + 1)}", info.precedence


def _paren(written: tuple[str, int], at_least: int) -> str:
    text, precedence = written
    return text if precedence >= at_least else f"({text})"
