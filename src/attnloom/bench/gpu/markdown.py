"""A report as tables for a README: the figures that were asked for, and the batches beside each peer."""

from __future__ import annotations

from collections.abc import Sequence

from attnloom.bench.gpu.record import MEASURED, OURS, CaseRecord, Report
from attnloom.bench.gpu.summary import Figure, figures
from attnloom.explain.text import percent

_SECTIONS = ("decode", "batches", "")
_USUAL_PAGE_SIZE = 16
_DISTRIBUTIONS = {"constant": "{n} x {m}", "uniform": "{n} x U({half}, {m})", "zipf": "{n} x Zipf, mean {m}"}


def render(report: Report) -> str:
    """Where it was measured, then each table that has something to show."""
    parts = [_heading(report), _figures(report), _batches(report)]
    return "\n\n".join(part for part in parts if part)


def _heading(report: Report) -> str:
    facts = report.machine
    versions = [f"{name} {facts[name]}" for name in ("torch", "triton", "flashinfer", "fa3") if name in facts]
    where = f"{facts.get('gpu', 'GPU')}, {', '.join(versions)}, {facts.get('date')}"
    how = f"L2 cold, medians of {report.protocol.get('rounds')} interleaved rounds"
    return f"{where}; bf16, head_dim 128 unless said, {how}; a ratio is the other's time / AttnLoom's."


def _figures(report: Report) -> str:
    rows = [["figure", "asked", "reached", ""]]
    rows += [[each.label, _asked(each), _reached(each), _outcome(each)] for each in figures(report.cases)]
    return _table(rows)


def _asked(figure: Figure) -> str:
    """Marks of the cells, and of their mean; an alternative's where it decided."""
    marks = sorted({round(verdict.at_least, 3) for _, verdict in figure.cells})
    cells = " or ".join(f"{mark:.2f} ×" for mark in marks)
    mean = figure.cells[0][1].geomean
    return cells if mean is None else f"{mean:.2f} × on average, {cells} in each cell"


def _reached(figure: Figure) -> str:
    if figure.worst is None or figure.geomean is None:
        return ""
    name, verdict = figure.worst
    lowest = verdict.ratio.median if verdict.ratio else 0.0
    if len(figure.ratios) == 1:
        return f"{lowest:.2f} ×"
    subject = "" if verdict.subject == OURS else f" ({verdict.subject.removeprefix('ours-')})"
    return f"{figure.geomean:.2f} × on average, {lowest:.2f} × in {name}{subject}"


def _outcome(figure: Figure) -> str:
    count = "" if len(figure.ratios) == len(figure.cells) else f" ({len(figure.ratios)} of {len(figure.cells)} cells)"
    return f"{figure.outcome}{count}"


def _batches(report: Report) -> str:
    """Cells that were measured beside peers: rate of ours, ratio of each engine's quickest back end."""
    cells = [r for r in report.cases if r.status == MEASURED and r.section in _SECTIONS and _ratios(r)]
    cells.sort(key=lambda record: (not record.decodes, record.case["heads"][1]))
    engines = list(dict.fromkeys(engine for record in cells for engine in _ratios(record)))
    rows = [["", "AttnLoom", *engines]]
    for record in cells:
        ratios = _ratios(record)
        shown = [f"{ratios[engine]:.2f} ×" if engine in ratios else "" for engine in engines]
        rows.append([_name(record), _rate(record), *shown])
    return _table(rows)


def _ratios(record: CaseRecord) -> dict[str, float]:
    """Median ratio of each peer's quickest back end, by engine; cases of AttnLoom beside it are none."""
    quickest: dict[str, float] = {}
    for entry in record.peers:
        if entry.seconds and not entry.engine.startswith("AttnLoom"):
            ratio = entry.ratio(record.ours).median
            quickest[entry.engine] = min(ratio, quickest.get(entry.engine, ratio))
    return quickest


def _rate(record: CaseRecord) -> str:
    median = record.ours.time.median
    if not record.decodes:
        return f"{record.flops / median / 1e12:.0f} TFLOP/s"
    rate = record.counted_bytes / median
    return f"{rate / 1e12:.2f} TB/s, {percent(rate / record.read_bytes_per_second)} of a plain read"


def _name(record: CaseRecord) -> str:
    workload, mode = str(record.case["workload"]), str(record.case["mode"])
    kind, _, size = workload.partition("_")
    n, _, m = size.partition("x")
    if kind in _DISTRIBUTIONS and m.isdecimal():
        workload = _DISTRIBUTIONS[kind].format(n=n, m=m, half=int(m) // 2)
    page = record.case["page_size"]
    pages = "" if page == _USUAL_PAGE_SIZE else f", {'contiguous' if page is None else f'page {page}'}"
    return f"{mode} {workload}, {record.case['heads'][1]} kv heads{pages}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown, the first as its head; "" where there is no other."""
    if len(rows) == 1:
        return ""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines)
