"""One suite over every implementation that can run here; memory that the engine does not own is hostile."""

from __future__ import annotations

from collections import Counter, deque

import case_table
import pytest
import torch
from interpreted import INTERPRETED, left_out, patch_language_once, split_short_requests

from attnloom.testing.poison import dirty_bytes_

# Kernels under the interpreter have a process of their own.
collect_ignore = [] if INTERPRETED else ["triton_interpreter"]

torch.set_num_threads(1)  # small shapes: a second thread only waits

# Tests that do not run under the interpreter, by reason.
LEFT_OUT: Counter[str] = Counter()


def runners() -> list[object]:
    """A parameter for each implementation that can run, on each device there is; under the interpreter `triton`."""
    from harness import Runner

    import attnloom as al

    if INTERPRETED:
        return [Runner("triton")]
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
    config.addinivalue_line("markers", "not_interpreted(reason): does not run under Triton's interpreter")
    if INTERPRETED:  # lines that the interpreter writes into kernels have no numbers, which other styles need
        config.option.tbstyle = "native"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "runner" in metafunc.fixturenames:
        metafunc.parametrize("runner", runners(), ids=lambda r: f"{r.implementation}_{r.device}", scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What judges the whole run comes last; under the interpreter, what is left out is counted by its reason."""
    items.sort(key=lambda item: item.path.name == "test_suite_coverage.py")
    case_table.COLLECTED.update(item.path.name for item in items if item.path.parent.name == "cases")
    if INTERPRETED:
        reasons = {item: left_out(item) for item in items}
        LEFT_OUT.update(reason for reason in reasons.values() if reason)
        config.hook.pytest_deselected(items=[item for item in items if reasons[item]])
        items[:] = [item for item in items if not reasons[item]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    cases = [str(name) for mark in item.iter_markers("case") for name in mark.args]
    if cases and (report.when == "call" or (report.when == "setup" and report.outcome != "passed")):
        callspec = getattr(item, "callspec", None)
        runner = callspec.params.get("runner") if callspec else None
        column = runner.implementation if runner else case_table.ENGINE
        if INTERPRETED and runner:
            column = case_table.INTERPRETER
        if item.get_closest_marker("gpu"):
            column = column if runner and runner.device != "cpu" else "cuda"
        reason = report.longrepr[2] if report.outcome == "skipped" else ""
        case_table.record(column, cases, report.outcome, reason)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason, count in LEFT_OUT.items():
        terminalreporter.write_line(f"not under the interpreter, {count} tests: {reason}")
    if not case_table.RAN and not case_table.SKIPPED:
        return
    import attnloom as al

    available = al.implementations("cpu")
    columns = [case_table.ENGINE, *(a.name for a in available if a.available)]
    if INTERPRETED:
        columns = [case_table.INTERPRETER]
    columns += sorted({c for c, _ in (*case_table.RAN, *case_table.SKIPPED)} - set(columns))
    terminalreporter.section("cases of docs/CASES.md by implementation")
    for line in case_table.lines(columns):
        terminalreporter.write_line(line)
    for each in available:
        if not each.available:
            terminalreporter.write_line(f"not here, {each.name}: {'; '.join(each.reasons)}")


@pytest.fixture(autouse=True, scope="session")
def small_interpreter():
    """See the two functions of `interpreted`."""
    with pytest.MonkeyPatch.context() as patch:
        if INTERPRETED:
            patch_language_once(patch)
            split_short_requests(patch)
        yield


@pytest.fixture(autouse=True, scope="session")
def dirty_workspaces():
    """Every workspace starts as 0xFF bytes between guards, and is dirtied again before each launch."""
    from attnloom.api import buffers
    from attnloom.impl.base import Implementation
    from attnloom.impl.dispatch import registry
    from attnloom.testing.poison import guarded

    patch, made = pytest.MonkeyPatch(), deque(maxlen=4)  # the newest; older ones may go with their objects

    def dirty_workspace(nbytes: int, device: torch.device) -> torch.Tensor:
        made.append(guarded((nbytes,), torch.uint8, device))
        return made[-1].tensor

    def dirtying(launch):
        def dirty_launch(self, plan, tensors):
            if tensors.workspace is not None:  # counters too: what they held before a launch does not matter
                dirty_bytes_(tensors.workspace)
            launch(self, plan, tensors)
            if tensors.q.device.type == "cpu":  # looking at a GPU's memory would wait for it: see `guards_stay`
                assert all(g.intact() for g in list(made)), "a launch wrote outside its workspace"

        return dirty_launch

    patch.setattr(buffers, "new_workspace", dirty_workspace)
    registry()  # imports every implementation
    for cls in Implementation.__subclasses__():
        patch.setattr(cls, "launch", dirtying(cls.launch))
    yield made
    patch.undo()


@pytest.fixture(autouse=True)
def guards_stay(dirty_workspaces):
    """No launch of a test wrote outside the workspaces; judged after it, when a GPU may be waited for."""
    yield
    assert all(g.intact() for g in list(dirty_workspaces)), "a launch wrote outside its workspace"


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
