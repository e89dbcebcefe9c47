"""The table implementation x case that ends a run, and what the run must have covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

# Outcomes by (column, case): a column is an implementation, or "engine" for what no implementation enters.
RAN: Counter[tuple[str, str]] = Counter()
FAILED: Counter[tuple[str, str]] = Counter()
SKIPPED: dict[tuple[str, str], Counter[str]] = {}

ENGINE = "engine"
INTERPRETER = "triton (interpreter)"

# Files of cases whose tests were collected, whether or not they ran.
COLLECTED: set[str] = set()

# Cases that mean something without a GPU; `cpu` (or the engine around it) runs every one of them.
CPU_CASES = (
    *("1", "3", "5", "6", "8", "10", "11", "12", "14", "15", "16", "17", "18", "19", "21", "22", "25", "26"),
    *("27", "28", "29", "31", "32", "33", "34", "35", "39", "40", "41", "42", "43"),
    *("45", "47", "49", "50", "51", "53", "54", "57", "58", "60"),
    *("62a", "62b", "62d", "M2"),
)

# What `triton` must have run under Triton's interpreter.
INTERPRETER_CASES = (
    *("1", "3", "5", "6", "8", "10", "11", "12", "14", "15", "16", "17", "18", "19", "21", "22", "25", "26", "27"),
    *("28", "29", "31", "39", "40", "41", "42", "43", "45", "53", "54", "57", "58", "60", "62a", "62b", "62d", "M2"),
)


def record(column: str, cases: Iterable[str], outcome: str, reason: str) -> None:
    for case in cases:
        key = (column, case)
        if outcome == "skipped":
            SKIPPED.setdefault(key, Counter())[reason] += 1
        else:
            RAN[key] += 1
            FAILED[key] += outcome == "failed"


def uncovered() -> list[str]:
    """Cases with a CPU meaning that `cpu` did not run, or skipped somewhere."""
    missing = [c for c in CPU_CASES if not RAN["cpu", c] and not RAN[ENGINE, c]]
    return missing + [f"{case} (skipped by cpu)" for column, case in SKIPPED if column == "cpu"]


def uncovered_under_the_interpreter() -> list[str]:
    """Cases that `triton` did not run there, or skipped for another reason than a device that is not there."""
    missing = [c for c in INTERPRETER_CASES if not RAN[INTERPRETER, c]]
    skips = {(case, r) for (column, case), reasons in SKIPPED.items() if column == INTERPRETER for r in reasons}
    return missing + [f"{case} (skipped: {reason})" for case, reason in sorted(skips) if "no CUDA device" not in reason]


def lines(columns: Iterable[str]) -> list[str]:
    """The table: one line a case."""
    columns = list(columns)
    cases = sorted({c for _, c in (*RAN, *SKIPPED)}, key=_order)
    width = max([len(_cell(column, case)) for column in columns for case in cases] + [12])
    out = ["case  " + "  ".join(c.ljust(width) for c in columns)]
    out += [case.ljust(6) + "  ".join(_cell(c, case).ljust(width) for c in columns) for case in cases]
    reasons = {(column, reason) for (column, _), counts in SKIPPED.items() for reason in counts}
    return out + [f"skipped, {column}: {reason}" for column, reason in sorted(reasons)]


def _cell(column: str, case: str) -> str:
    key = (column, case)
    parts = [f"{RAN[key]} run"] if RAN[key] else []
    parts += [f"{FAILED[key]} failed"] if FAILED[key] else []
    parts += [f"{sum(SKIPPED[key].values())} skipped"] if key in SKIPPED else []
    return ", ".join(parts) or "-"


def _order(case: str) -> tuple[int, str]:
    digits = "".join(c for c in case if c.isdigit())
    return (1000 if case.startswith("M") else 0) + int(digits), case
