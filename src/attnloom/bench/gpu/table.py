"""A report as text: figures and targets first, then every ratio, then the work, what was not measured and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attnloom.bench.gpu import summary
from attnloom.bench.gpu.record import MEASURED, OURS, UNFIT, WRONG, CaseRecord, Entry, Report
from attnloom.bench.timing import Spread
from attnloom.explain.text import columns, duration, percent, si

LAYERS = 36  # one plan serves this many layers where its share of a step is quoted
_VERDICT = {True: "met", False: "MISSED", None: "not measured"}


def render(report: Report) -> str:
    """Every part that has something to show."""
    cases = _by_section(report.cases)
    parts = [summary.render(cases), _targets(cases), _ratios(cases), _work(cases), _not_measured(report)]
    return "\n\n".join(part for part in parts if part)


def _by_section(cases: Sequence[CaseRecord]) -> list[CaseRecord]:
    """In the order in which the sections began."""
    order = list(dict.fromkeys(record.section for record in cases))
    return sorted(cases, key=lambda record: order.index(record.section))


def _targets(cases: Sequence[CaseRecord]) -> str:
    """One line a target, cases that were not measured included."""
    rows = [["target", "ratio", "quartiles", "at least", "", "against"]]
    for record in cases:
        for verdict in record.verdicts:
            asked = " | ".join(verdict.peers)
            subject = "" if verdict.subject == OURS else f"{verdict.subject} "
            rows.append(
                [
                    f"{record.name}, {subject}/ {asked}" if subject else f"{record.name} / {asked}",
                    *_spread(verdict.ratio),
                    f"{verdict.at_least:.2f}",
                    WRONG if WRONG in verdict.reason else _VERDICT[verdict.met],
                    verdict.against,
                ]
            )
    if len(rows) == 1:
        return ""
    count = Counter(_VERDICT[v.met] for record in cases for v in record.verdicts)
    return columns(rows) + "\n\ntargets: " + ", ".join(f"{n} {word}" for word, n in count.items())


def _ratios(cases: Sequence[CaseRecord]) -> str:
    """One line a case and peer; the ratio is the peer's time over ours."""
    rows = [["case / peer", "ratio", "quartiles", "peer", "TB/s", "TFLOP/s", "plan", f"plan/{LAYERS} + run", "setting"]]
    for record in _measured(cases):
        for entry in record.entries:
            if entry.seconds:
                is_peer = entry in record.peers
                title = f"  {entry.id}" if is_peer else record.name
                ratio = _spread(entry.ratio(record.ours)) if is_peer else ["", ""]
                rows.append([title, *ratio, *_figures(record, entry)])
    return columns(rows) if len(rows) > 1 else ""


def _figures(record: CaseRecord, entry: Entry) -> list[str]:
    median, plan = entry.time.median, entry.plan_seconds
    return [
        duration(median),
        f"{record.bytes_of(entry) / median / 1e12:.2f}",
        f"{record.flops_of(entry) / median / 1e12:.0f}",
        "" if plan is None else duration(plan),
        "" if plan is None else duration(plan / LAYERS + median),
        entry.setting,
    ]


def _work(cases: Sequence[CaseRecord]) -> str:
    """One line a case: the work, and how near ours comes to the card's limits in the same rounds."""
    rows = [["case", "bytes", "FLOP", "read ceiling", "of ceiling", "roofline", "of roofline", "host", "wall"]]
    for record in _measured(cases):
        median, roofline = record.ours.time.median, record.roofline_seconds
        rows.append(
            [
                record.name,
                si(record.counted_bytes, "B"),
                si(record.flops, ""),
                si(record.read_bytes_per_second, "B/s"),
                percent(record.counted_bytes / median / record.read_bytes_per_second),
                "" if roofline is None else duration(roofline),
                "" if roofline is None else percent(roofline / median),
                "" if record.ours.host_seconds is None else duration(record.ours.host_seconds),
                duration(record.wall_seconds),
            ]
        )
    return columns(rows) if len(rows) > 1 else ""


def _not_measured(report: Report) -> str:
    """Peers that this machine lacks, cases that did not finish, and peers that failed in some."""
    lines = [f"unavailable: {name}: {reason}" for name, reason in report.missing.items()]
    for record in report.cases:
        if record.status != MEASURED:
            lines.append(f"{record.status}: {record.name}: {record.message}")
        for entry in record.peers:
            wrong = {name: outcome for name, outcome in entry.tried.items() if isinstance(outcome, str)}
            if (
                entry.status == UNFIT
                and record.status == MEASURED
                and any(entry.id in v.peers for v in record.verdicts)
            ):
                lines.append(f"{entry.status}: {entry.id}, {record.name}: {entry.message}")
            if entry.message and entry.id not in report.missing and entry.status != UNFIT:
                lines.append(f"{entry.status}: {entry.id}, {record.name}: {entry.message}")
            elif entry.status == MEASURED:
                lines += [f"setting failed: {entry.id}, {record.name}, {n}: {why}" for n, why in wrong.items()]
    return "\n".join(lines)


def _measured(cases: Sequence[CaseRecord]) -> list[CaseRecord]:
    return [record for record in cases if record.status == MEASURED]


def _spread(ratio: Spread | None) -> list[str]:
    return ["", ""] if ratio is None else [f"{ratio.median:.2f}", f"{ratio.low:.2f}–{ratio.high:.2f}"]
