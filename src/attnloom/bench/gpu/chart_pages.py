"""A report as the picture of the FlashInfer paper's figure 12: prompts on pages beside contiguous K and V."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnloom.bench.gpu import chart
from attnloom.bench.gpu.record import MEASURED, CaseRecord, Report

_SECTION = "prefill"


def groups(cases: Sequence[CaseRecord], *, kv_heads: int, peak_flops: float) -> list[chart.Group]:
    """Contiguous prompts with that many kv heads: causal ones first, short ones first; flop/s by `peak_flops`."""
    found = []
    for record in cases:
        if record.status == MEASURED and record.section == _SECTION and record.case["heads"][1] == kv_heads:
            _, _, size = str(record.case["workload"]).partition("_")
            causal, length = bool(record.case["causal"]), int(size.partition("x")[2])
            kind = "causal" if causal else "not causal"
            bars = chart.bars(record, record.flops / peak_flops)
            found.append(((not causal, length), chart.Group(kind, size.replace("x", " × "), bars)))
    return [group for _, group in sorted(found, key=lambda each: each[0])]


def has_groups(report: Report) -> bool:
    """Whether there is anything to show."""
    return any(groups(report.cases, kv_heads=kv_heads, peak_flops=1.0) for kv_heads in _kv_heads(report))


def picture(report: Report) -> Any:
    """A matplotlib figure, one panel a number of kv heads; raises MissingDependency without matplotlib."""
    figure_module = chart.matplotlib_figure()
    peak, source = chart.card_peak(report)
    heads = _kv_heads(report)
    figure = figure_module.Figure(figsize=(18, 1.3 + 4.2 * len(heads)), layout="constrained")
    for axis, kv_heads in zip(figure.subplots(len(heads), 1, squeeze=False)[:, 0], heads, strict=True):
        panel = groups(report.cases, kv_heads=kv_heads, peak_flops=peak)
        chart.draw_panel(axis, panel, f"Prefill, 32/{kv_heads} heads", f"FLOP/s, % of {source}")
    words = "AttnLoom on contiguous K and V (plain) and on pages"
    figure.suptitle("\n".join(chart.title(words, report)), fontsize=12)
    return figure


def _kv_heads(report: Report) -> list[int]:
    found = {int(r.case["heads"][1]) for r in report.cases if r.section == _SECTION and r.status == MEASURED}
    return sorted(found)
