"""One suite over every implementation that can run here; memory that the engine does not own is hostile."""

from __future__ import annotations

import os
from collections import deque

import case_table
import pytest
import torch

from attnloom.testing.poison import dirty_bytes_

# Kernels under the interpreter have a process of their own.
collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["triton_interpreter"]

torch.set_num_threads(1)  # small shapes: a second thread only waits


def runners() -> list[object]:
    """A parameter for each implementation that can run, on each device there is."""
    from harness import Runner

    import attnloom as al

    found: list[object] = [Runner(a.name) for a in al.implementations("cpu") if a.available]
    if torch.cuda.is_available():
        found += [
            pytest.param(Runner(a.name, "cuda"), marks=pytest.mark.gpu)
            for a in al.implementations("cuda")
            if a.available
        ]
    else:
        found.append(
            pytest.param(Runner("cuda", "cuda"), marks=[pytest.mark.gpu, pytest.mark.skip(reason="no CUDA device")])
        )
    return found


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "case(name): the case of docs/CASES.md that the test stands for")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "runner" in metafunc.fixturenames:
        metafunc.parametrize("runner", runners(), ids=lambda r: f"{r.implementation}_{r.device}", scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What judges the whole run comes last."""
    items.sort(key=lambda item: item.path.name == "test_suite_coverage.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    cases = [str(name) for mark in item.iter_markers("case") for name in mark.args]
    if cases and (report.when == "call" or (report.when == "setup" and report.outcome != "passed")):
        callspec = getattr(item, "callspec", None)
        runner = callspec.params.get("runner") if callspec else None
        column = runner.implementation if runner else case_table.ENGINE
        if item.get_closest_marker("gpu"):
            column = column if runner and runner.device != "cpu" else "cuda"
        reason = report.longrepr[2] if report.outcome == "skipped" else ""
        case_table.record(column, cases, report.outcome, reason)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not case_table.RAN and not case_table.SKIPPED:
        return
    import attnloom as al

    available = al.implementations("cpu")
    columns = [case_table.ENGINE, *(a.name for a in available if a.available)]
    columns += sorted({c for c, _ in (*case_table.RAN, *case_table.SKIPPED)} - set(columns))
    terminalreporter.section("cases of docs/CASES.md by implementation")
    for line in case_table.lines(columns):
        terminalreporter.write_line(line)
    for each in available:
        if not each.available:
            terminalreporter.write_line(f"not here, {each.name}: {'; '.join(each.reasons)}")


@pytest.fixture(autouse=True, scope="session")
def dirty_workspaces():
    """Every workspace starts as 0xFF bytes between guards, and is dirtied again before each launch."""
    from attnloom.api import buffers
    from attnloom.impl import dispatch  # noqa: F401  imports every implementation
    from attnloom.impl.base import Implementation
    from attnloom.schedule.workspace import layout
    from attnloom.testing.poison import guarded

    patch, made = pytest.MonkeyPatch(), deque(maxlen=4)  # the newest; older ones may go with their objects

    def dirty_workspace(nbytes: int, device: torch.device) -> torch.Tensor:
        made.append(guarded((nbytes,), torch.uint8, device))
        return made[-1].tensor

    def dirtying(launch):
        def dirty_launch(self, plan, tensors):
            if tensors.workspace is not None:  # all but the counters, which a plan may have set
                floats = layout([c.tile for c in plan.classes], tensors.spec.head_dim_vo).counters_offset
                dirty_bytes_(tensors.workspace[:floats])
            launch(self, plan, tensors)
            assert all(g.intact() for g in list(made)), "a launch wrote outside its workspace"

        return dirty_launch

    patch.setattr(buffers, "new_workspace", dirty_workspace)
    for cls in Implementation.__subclasses__():
        patch.setattr(cls, "launch", dirtying(cls.launch))
    yield made
    patch.undo()


@pytest.fixture
def launched(monkeypatch):
    """A list of (plan, tensors) that grows at every launch."""
    from attnloom.impl.base import Implementation

    seen: list[tuple[object, object]] = []

    def recorded(launch):
        def recording(self, plan, tensors):
            seen.append((plan, tensors))
            launch(self, plan, tensors)

        return recording

    for cls in Implementation.__subclasses__():
        monkeypatch.setattr(cls, "launch", recorded(cls.launch))
    return seen


@pytest.fixture
def launches(launched):
    """`launched`, where only its length matters."""
    return launched
