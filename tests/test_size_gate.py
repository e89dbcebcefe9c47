"""The size gate catches each violation that it is there for, and nothing else."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from tools import size_gate
from tools.size_gate import Budgets, Report, check_source

SRC = "src/attnloom/somewhere.py"
KERNEL = "src/attnloom/kernels/triton/decode.py"
ADAPTER = "src/attnloom/integrations/vllm/backend.py"


def violations(text: str, path: str = SRC, budgets: Budgets | None = None) -> list[str]:
    """What the gate says about `text`."""
    report = Report()
    check_source(PurePosixPath(path), text, report, budgets)
    return report.violations


def function(lines: int, *, name: str = "f", decorator: str = "") -> str:
    """Source of a function of exactly `lines` lines."""
    body = "\n".join("    pass" for _ in range(lines - 1))
    return f"{decorator}\ndef {name}():\n{body}\n"


def test_budgets_are_those_of_the_design_document():
    assert Budgets() == Budgets(file=400, host=60, device=80, kernel=150, positional=5)


@pytest.mark.parametrize("path", [SRC, KERNEL, "tests/test_x.py", "tools/x.py"])
def test_file_length(path):
    assert violations("x = 1\n" * 400, path) == []
    assert violations("x = 1\n" * 401, path) == [f"{path}:1: file has 401 lines, budget 400"]


@pytest.mark.parametrize(
    ("path", "name", "decorator", "budget"),
    [
        (SRC, "f", "", 60),
        ("tests/test_x.py", "test_f", "", 60),
        ("tools/x.py", "f", "", 60),
        (KERNEL, "launch", "", 60),
        (SRC, "f_kernel", "@triton.jit", 60),
        (KERNEL, "f_kernel", "", 60),
        (KERNEL, "softmax_update", "@triton.jit", 80),
        (KERNEL, "softmax_update", "@gluon.jit", 80),
        (KERNEL, "softmax_update", "@jit(noinline=True)", 80),
        (KERNEL, "decode_kernel", "@triton.jit", 150),
        (KERNEL, "decode_kernel", "@triton.autotune(configs=[])\n@gluon.jit", 150),
    ],
)
def test_function_length(path, name, decorator, budget):
    assert violations(function(budget, name=name, decorator=decorator), path) == []
    (message,) = violations(function(budget + 1, name=name, decorator=decorator), path)
    assert f"function {name} has {budget + 1} lines, budget {budget}" in message


def test_length_counts_methods_nested_functions_and_docstrings():
    inner = "\n".join("            pass" for _ in range(60))
    text = f"class C:\n    def outer(self):\n        def inner():\n{inner}\n"
    assert [m.split(": ")[1] for m in violations(text)] == [
        "host function outer has 62 lines, budget 60",
        "host function inner has 61 lines, budget 60",
    ]
    assert len(violations('def f():\n    """' + "\n" * 60 + '    """\n')) == 1
    assert len(violations(function(61).replace("def", "async def"))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def f(a, b, c, d, e): ...",
        "def f(a, /, b, c, d, e, *rest, g, h=1, **more): ...",
        "def f(*, a, b, c, d, e, g): ...",
        "class C:\n    def f(self, a, b, c, d, e): ...",
        "class C:\n    @classmethod\n    def f(cls, a, b, c, d, e): ...",
        "f = lambda a, b, c, d, e, *, g: 0",
    ],
)
def test_five_positional_parameters_pass(text):
    assert violations(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "def f(a, b, c, d, e, g): ...",
        "def f(a, b, /, c, d, e, g=1): ...",
        "def f(self, a, b, c, d, e): ...",
        "class C:\n    def f(self, a, b, c, d, e, g): ...",
        "class C:\n    @staticmethod\n    def f(a, b, c, d, e, g): ...",
        "class C:\n    def m(self):\n        def f(self, a, b, c, d, e): ...",
        "async def f(a, b, c, d, e, g): ...",
        "f = lambda a, b, c, d, e, g: 0",
        "@triton.jit\ndef f(a, b, c, d, e, g): ...",
    ],
)
def test_six_positional_parameters_fail(text):
    (message,) = violations(text)
    assert "has 6 positional parameters, budget 5" in message


def test_device_code_takes_its_pointers_and_strides():
    text = "@triton.jit\ndef decode_kernel(a, b, c, d, e, g, h): ..."
    assert violations(text, KERNEL) == []
    assert len(violations(text.removeprefix("@triton.jit\n"), KERNEL)) == 1


def test_marker_lifts_the_parameter_budget_of_an_adapter():
    marked = "def f(  # signature copied from vllm\n    a, b, c, d, e, g\n): ...\n"
    report = Report()
    check_source(PurePosixPath(ADAPTER), marked, report)
    assert (report.violations, report.copied) == ([], 1)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (SRC, "def f(a, b, c, d, e, g):  # signature copied from vllm\n    pass\n"),
        (ADAPTER, "def f(a, b, c, d, e, g):  # signature copied from nowhere\n    pass\n"),
        (ADAPTER, "def f(a, b, c, d, e, g):\n    pass  # signature copied from vllm\n"),
        (ADAPTER, 'def f(a, b, c, d, e, g="# signature copied from vllm"):\n    pass\n'),
        (ADAPTER, "f = lambda a, b, c, d, e, g: 0  # signature copied from vllm\n"),
    ],
)
def test_marker_elsewhere_lifts_nothing(path, text):
    assert any("6 positional parameters" in message for message in violations(text, path))


def test_marker_lifts_no_other_budget_and_is_not_left_over():
    long = "def f(a, b, c, d, e, g):  # signature copied from vllm\n" + "    pass\n" * 60
    assert [m.split(": ")[1] for m in violations(long, ADAPTER)] == ["host function f has 61 lines, budget 60"]
    (message,) = violations("def f(a):  # signature copied from vllm\n    pass\n", ADAPTER)
    assert "not in the signature of a function that needs it" in message


def test_kernel_entries_are_not_called_by_device_code():
    text = "@triton.jit\ndef helper(x):\n    return other_kernel(x)\n"
    assert len(violations(text, KERNEL)) == 1
    assert violations("def launch(x):\n    other_kernel[(1,)](x)\n", KERNEL) == []


def test_unreadable_source_is_a_violation():
    assert violations("def f(:\n") == [f"{SRC}:1: cannot be parsed: invalid syntax"]


@pytest.mark.parametrize("folder", ["src/attnloom/deep/er", "tests", "tools"])
def test_tree_is_walked_without_exemptions(tmp_path, folder):
    file = tmp_path / folder / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text(function(61))
    report = size_gate.check_tree(tmp_path)
    assert (report.files, len(report.violations)) == (1, 1)


def test_exit_status_follows_the_violations(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setattr(size_gate, "__file__", str(folder / "size_gate.py"))
    (folder / "x.py").write_text(function(60))
    assert size_gate.main() == 0
    (folder / "x.py").write_text(function(61))
    assert size_gate.main() == 1
    assert "tools/x.py:2: host function f has 61 lines, budget 60" in capsys.readouterr().out


def test_this_repository_keeps_its_budgets():
    report = size_gate.check_tree(Path(__file__).resolve().parent.parent)
    assert report.violations == []
    assert report.files > 10
