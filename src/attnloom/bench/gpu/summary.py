"""The figures of a report, one line each: its cells together, how many were measured, and whether all are met."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from attnloom.bench.gpu.record import MEASURED, WRONG, CaseRecord, Verdict
from attnloom.explain.text import columns

MET, MISSED, INCOMPLETE, NONE = "met", "MISSED", "met so far", "not measured"


@dataclass(frozen=True)
class Figure:
    """The cells of one label: names of cases and their verdicts; ran: implementations of the measured subjects."""

    label: str
    cells: tuple[tuple[str, Verdict], ...]
    ran: tuple[str, ...]

    @property
    def ratios(self) -> list[float]:
        """Median ratios of the measured cells."""
        return [verdict.ratio.median for _, verdict in self.cells if verdict.ratio is not None]

    @property
    def geomean(self) -> float | None:
        """Geometric mean of the measured cells' median ratios."""
        return statistics.geometric_mean(self.ratios) if self.ratios else None

    @property
    def worst(self) -> tuple[str, Verdict] | None:
        """The measured cell that is farthest below its mark, or least above."""
        measured = [(name, verdict) for name, verdict in self.cells if verdict.ratio is not None]
        return min(measured, key=lambda cell: _reached(cell[1]), default=None)

    @property
    def outcome(self) -> str:
        """MET only where every cell is measured; a wrong result anywhere is a miss of its own word."""
        if any(verdict.reason.endswith(WRONG) or f"{WRONG}:" in verdict.reason for _, verdict in self.cells):
            return WRONG
        if self.geomean is None:
            return NONE
        asked = self.cells[0][1].geomean
        below = any(verdict.met is False for _, verdict in self.cells)
        if below or (asked is not None and self.geomean < asked):
            return MISSED
        return MET if len(self.ratios) == len(self.cells) else INCOMPLETE


def figures(cases: Sequence[CaseRecord]) -> list[Figure]:
    """One figure a label, sections together; targets without a label are none."""
    cells: dict[str, list[tuple[str, Verdict]]] = {}
    ran: dict[str, list[str]] = {}
    order: dict[str, None] = dict.fromkeys(record.section for record in cases)
    for record in sorted(cases, key=lambda record: list(order).index(record.section)):
        for verdict in record.verdicts:
            if verdict.label:
                cells.setdefault(verdict.label, []).append((record.name, verdict))
                ran.setdefault(verdict.label, []).extend(_ran(record, verdict))
    return [Figure(label, tuple(each), tuple(sorted(set(ran[label])))) for label, each in cells.items()]


def render(cases: Sequence[CaseRecord]) -> str:
    """The table of figures and the count of outcomes, or "" where no case belongs to a figure."""
    found = figures(cases)
    if not found:
        return ""
    rows = [["figure", "geomean", "at least", "lowest", "at least", "", "cells", "ran", "lowest cell"]]
    rows += [_row(figure) for figure in found]
    count = Counter(figure.outcome for figure in found)
    lines = [f"figures: {', '.join(f'{n} {word}' for word, n in count.items())}"]
    for figure in found:
        reasons = Counter(verdict.reason for _, verdict in figure.cells if verdict.ratio is None)
        lines += [f"not measured: {figure.label}: {n} x {reason}" for reason, n in reasons.items()]
    return "\n".join([columns(rows), "", *lines])


def _row(figure: Figure) -> list[str]:
    first, worst = figure.cells[0][1], figure.worst
    return [
        figure.label,
        "" if figure.geomean is None else f"{figure.geomean:.3f}",
        "" if first.geomean is None else f"{first.geomean:.2f}",
        "" if worst is None or worst[1].ratio is None else f"{worst[1].ratio.median:.3f}",
        f"{(first if worst is None else worst[1]).at_least:.3f}",
        figure.outcome,
        f"{len(figure.ratios)} of {len(figure.cells)}",
        ", ".join(figure.ran),
        "" if worst is None else f"{worst[0]} ({worst[1].subject} / {worst[1].against})",
    ]


def _reached(verdict: Verdict) -> float:
    return 0.0 if verdict.ratio is None else verdict.ratio.median / verdict.at_least


def _ran(record: CaseRecord, verdict: Verdict) -> list[str]:
    if record.status != MEASURED:
        return []
    return [e.setting.removeprefix("implementation ") for e in record.entries if e.id == verdict.subject and e.seconds]
