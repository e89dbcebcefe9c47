"""Size budgets of the house, checked on the syntax tree of every Python file; no file is exempt.

What is counted (`Budgets` has the numbers):

- a file's lines;
- a function's lines, from ``def`` to its last line, signature and docstring included. Host functions,
  device functions and kernel entries have budgets of their own. Device code is what ``triton.jit`` or
  ``gluon.jit`` decorates below ``src/attnloom/kernels/``; the entries among it, which the host
  launches, are named ``*_kernel`` and are never called by other device code;
- a host function's positional parameters, lambdas included. Keyword-only parameters and a method's
  ``self`` or ``cls`` are not counted, and neither are the parameters of device code, where every
  pointer and stride is one.

A signature that a peer's interface prescribes may take more positional parameters when a comment in
the signature says so, ``# signature copied from PEER``: only below ``src/attnloom/integrations/``, with
PEER one of `PEERS`, and only where it is needed. The marker lifts no other budget.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOTS = ("src", "tests", "tools")
PEERS = frozenset({"flash_attn", "flashinfer", "sglang", "transformers", "vllm"})
MARKER = re.compile(r"#\s*signature copied from\s+(\S+)")
KERNELS = PurePosixPath("src/attnloom/kernels")
INTEGRATIONS = PurePosixPath("src/attnloom/integrations")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Budgets:
    """Upper bounds, inclusive: lines, except for `positional` (parameters)."""

    file: int = 400
    host: int = 60
    device: int = 80
    kernel: int = 150
    positional: int = 5

    def lines(self, kind: str) -> int:
        """Line budget of a function of `kind`: "host", "device" or "kernel"."""
        return {"host": self.host, "device": self.device, "kernel": self.kernel}[kind]


@dataclass
class Report:
    """What a run saw: `violations` are messages ``path:line: what, budget``."""

    violations: list[str] = field(default_factory=list)
    files: int = 0
    functions: int = 0
    copied: int = 0
    longest_file: tuple[int, str] = (0, "")
    longest_host: tuple[int, str] = (0, "")


def is_jit(decorator: ast.expr) -> bool:
    """Whether a decorator is ``triton.jit``, ``gluon.jit`` or ``jit``, called or not."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(target) in {"jit", "triton.jit", "gluon.jit"}


def kind_of(function: Function, path: PurePosixPath) -> str:
    """One of "host", "device" and "kernel", by place, decorator and name."""
    if KERNELS not in path.parents or not any(map(is_jit, function.decorator_list)):
        return "host"
    return "kernel" if function.name.endswith("_kernel") else "device"


def positional_count(function: Function | ast.Lambda, *, is_method: bool) -> int:
    """Positional parameters, without the ``self`` or ``cls`` of a method.

    >>> positional_count(ast.parse("lambda q, k, *, scale: q", mode="eval").body, is_method=False)
    2
    """
    parameters = [*function.args.posonlyargs, *function.args.args]
    if is_method and parameters and parameters[0].arg in {"self", "cls", "mcs"}:
        parameters = parameters[1:]
    return len(parameters)


def markers(text: str) -> dict[int, str]:
    """Line number -> peer, for each marker comment."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = MARKER.match(token.string) if token.type == tokenize.COMMENT else None
        if match:
            found[token.start[0]] = match.group(1)
    return found


def functions(tree: ast.AST) -> Iterator[tuple[Function | ast.Lambda, bool]]:
    """Every function and lambda below `tree`, and whether it is a method."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function | ast.Lambda):
                yield child, isinstance(node, ast.ClassDef)


def check_source(path: PurePosixPath, text: str, report: Report, budgets: Budgets | None = None) -> None:
    """Add to `report` what `text`, the content of `path` (relative to the repository), exceeds."""
    _Checker(path, report, budgets or Budgets()).check(text)


@dataclass
class _Checker:
    path: PurePosixPath
    report: Report
    budgets: Budgets
    markers: dict[int, str] = field(default_factory=dict)

    def complain(self, line: int, message: str) -> None:
        self.report.violations.append(f"{self.path}:{line}: {message}")

    def check(self, text: str) -> None:
        lines = len(text.splitlines())
        self.report.files += 1
        self.report.longest_file = max(self.report.longest_file, (lines, str(self.path)))
        if lines > self.budgets.file:
            self.complain(1, f"file has {lines} lines, budget {self.budgets.file}")
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            self.complain(error.lineno or 1, f"cannot be parsed: {error.msg}")
            return
        self.markers = markers(text)
        for function, is_method in functions(tree):
            self.report.functions += 1
            if isinstance(function, ast.Lambda):
                self.check_positional(function, "a lambda", is_method=False)
            else:
                self.check_function(function, is_method=is_method)
        for line, peer in self.markers.items():
            self.complain(line, f"marker for {peer!r} is not in the signature of a function that needs it")

    def check_function(self, function: Function, *, is_method: bool) -> None:
        kind = kind_of(function, self.path)
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > self.budgets.lines(kind):
            self.complain(
                function.lineno,
                f"{kind} function {function.name} has {lines} lines, budget {self.budgets.lines(kind)}",
            )
        if kind == "host":
            where = f"{self.path}:{function.lineno} {function.name}"
            self.report.longest_host = max(self.report.longest_host, (lines, where))
            self.check_positional(function, function.name, is_method=is_method)
        else:
            self.check_calls(function)

    def check_positional(self, function: Function | ast.Lambda, name: str, *, is_method: bool) -> None:
        count = positional_count(function, is_method=is_method)
        if count <= self.budgets.positional or self.take_marker(function):
            return
        self.complain(
            function.lineno,
            f"{name} has {count} positional parameters, budget {self.budgets.positional} "
            "(keyword-only ones are not counted)",
        )

    def take_marker(self, function: Function | ast.Lambda) -> bool:
        """Whether the signature carries a valid marker; the marker is then used up."""
        if isinstance(function, ast.Lambda):
            return False
        for line in range(function.lineno, function.body[0].lineno):
            peer = self.markers.get(line)
            if peer in PEERS and INTEGRATIONS in self.path.parents:
                del self.markers[line]
                self.report.copied += 1
                return True
        return False

    def check_calls(self, function: Function) -> None:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("_kernel"):
                self.complain(
                    node.lineno,
                    f"{function.name} calls {ast.unparse(node.func)}: only the host launches a *_kernel",
                )


def check_tree(root: Path) -> Report:
    """Check every ``*.py`` below `ROOTS` of the repository at `root`."""
    report = Report()
    for name in ROOTS:
        for file in sorted((root / name).rglob("*.py")):
            path = PurePosixPath(file.relative_to(root).as_posix())
            check_source(path, file.read_text(encoding="utf-8"), report)
    return report


def main() -> int:
    """Check this repository; 0 when every budget is kept."""
    report = check_tree(Path(__file__).resolve().parent.parent)
    for violation in report.violations:
        print(violation)
    print(
        f"size gate: {report.files} files, {report.functions} functions, "
        f"{report.copied} copied signatures, {len(report.violations)} violations\n"
        f"  longest file {report.longest_file[1]} ({report.longest_file[0]} lines)\n"
        f"  longest host function {report.longest_host[1]} ({report.longest_host[0]} lines)"
    )
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
