"""A report as the picture of the FlashInfer paper's figure 8: utilisation by engine and distribution of lengths."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnloom.bench.gpu.case import ATTAINABLE_FLOPS
from attnloom.bench.gpu.record import MEASURED, CaseRecord, Report
from attnloom.bench.timing import spread
from attnloom.errors import MissingDependency
from attnloom.explain.cards import CARDS
from attnloom.explain.palette import GRID, INK, MUTED

_DISTRIBUTIONS = {"constant": "constant", "uniform": "uniform", "zipf": "skewed"}

# One colour an engine, alike in both panels; engines of one family share a hue.
_COLOURS = {
    "AttnLoom": "#d9480f",
    "AttnLoom, page 16": "#f4a27a",
    "FlashInfer decode": "#1864ab",
    "FlashInfer paged": "#1864ab",
    "FlashInfer ragged": "#74b3e8",
    "FA3": "#2b8a3e",
    "cuDNN (torch)": "#868e96",
    "FlexAttention": "#c2a83e",
    "FA2 (torch)": "#9775c9",
}
_OTHER_COLOUR = "#495057"


@dataclass(frozen=True)
class Bar:
    """Utilisation of one engine, its best back end, in one case: median and quartiles."""

    engine: str
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Group:
    """The bars of one case."""

    distribution: str
    label: str
    bars: tuple[Bar, ...]


def groups(cases: Sequence[CaseRecord], *, decode: bool, peak_flops: float) -> list[Group]:
    """Measured cases of one kind: constant lengths, then uniform, then skewed ones, pages of 1 last.

    Decode shows bytes read per second by the plain read of the same rounds; prefill flop/s by `peak_flops`.
    """
    found = []
    for record in cases:
        if record.status == MEASURED and record.decodes == decode:
            best = record.read_bytes_per_second if decode else peak_flops
            work = record.counted_bytes if decode else record.flops
            found.append((int(record.case["page_size"] == 1), _group(record, work / best)))
    order = list(_DISTRIBUTIONS.values())

    def rank(each: tuple[int, Group]) -> tuple[int, int]:
        kind = each[1].distribution
        return order.index(kind) if kind in order else len(order), each[0]

    return [group for _, group in sorted(found, key=rank)]


def _group(record: CaseRecord, least: float) -> Group:
    """least: the seconds that full use of the card would take."""
    quickest: dict[str, Bar] = {}
    for entry in record.entries:
        if not entry.seconds:
            continue
        each = spread([least / seconds for seconds in entry.seconds])
        if entry.engine not in quickest or each.median > quickest[entry.engine].median:
            quickest[entry.engine] = Bar(entry.engine, each.median, each.low, each.high)
    kind, _, size = str(record.case["workload"]).partition("_")
    qo, kv = record.case["heads"]
    details = f"{qo}/{kv} heads" + (
        "" if record.case["page_size"] in (16, None) else f"\npage {record.case['page_size']}"
    )
    label = f"{size.replace('x', ' × ')}\n{details}"
    return Group(_DISTRIBUTIONS.get(kind, kind), label, tuple(quickest.values()))


def draw(report: Report, path: Path) -> list[Path]:
    """Write PNG and SVG beside each other as `path` with either suffix; raises MissingDependency without matplotlib."""
    figure = picture(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for each in paths:
        figure.savefig(each, dpi=150)
    return paths


def picture(report: Report) -> Any:
    """A matplotlib figure: decode above, prefill below, each only where something was measured."""
    try:
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingDependency(feature="the chart", package="matplotlib", reason=error) from error
    gpu = str(report.machine.get("gpu", "GPU"))
    peak, source = _peak(gpu)
    panels = [
        (groups(report.cases, decode=True, peak_flops=peak), "Decode", "bandwidth, % of a plain read"),
        (groups(report.cases, decode=False, peak_flops=peak), "Causal prefill", f"FLOP/s, % of {source}"),
    ]
    panels = [panel for panel in panels if panel[0]]
    figure = figure_module.Figure(figsize=(14, 1.3 + 4.2 * max(1, len(panels))), layout="constrained")
    axes = figure.subplots(max(1, len(panels)), 1, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=False):
        _panel(axis, *panel)
    facts = f"{gpu}, torch {report.machine.get('torch')}, {report.machine.get('date')}"
    rounds = report.protocol.get("rounds")
    lines = [
        f"AttnLoom beside its peers: {facts}",
        f"bf16 and head dim 128 unless said; medians of {rounds} interleaved rounds, quartiles as whiskers, cold L2",
    ]
    if report.missing:
        lines.append(f"not on this machine: {', '.join(report.missing)}")
    figure.suptitle("\n".join(lines), fontsize=12)
    return figure


def _peak(gpu: str) -> tuple[float, str]:
    """The card's best bf16 matrix product where it was measured, else what the roofline counts with."""
    for card in CARDS.values():
        if card.name in gpu:
            found = next(iter(card.flops_per_second.values()))
            return found, f"{found / 1e12:.0f} T (a large matrix product)"
    return ATTAINABLE_FLOPS, f"{ATTAINABLE_FLOPS / 1e12:.0f} T"


def _panel(axis: Any, panel: Sequence[Group], title: str, what: str) -> None:
    engines = [name for name in _COLOURS if any(bar.engine == name for group in panel for bar in group.bars)]
    engines += sorted({bar.engine for group in panel for bar in group.bars} - set(engines))
    centres, drawn = [], set()
    position = 0.0
    for i, group in enumerate(panel):
        if i and group.distribution != panel[i - 1].distribution:
            axis.axvline(position - 0.5, color=GRID, linewidth=1.2)
        ordered = sorted(group.bars, key=lambda bar: engines.index(bar.engine))
        for j, bar in enumerate(ordered):
            _draw_bar(axis, position + j, bar, label=None if bar.engine in drawn else bar.engine)
            drawn.add(bar.engine)
        centres.append(position + (len(ordered) - 1) / 2)
        position += len(ordered) + 1
    axis.set_xticks(centres, [f"{group.distribution}\n{group.label}" for group in panel], fontsize=9)
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(-1, position - 0.5)
    axis.set_ylim(0, 1.18 * max(100 * bar.high for group in panel for bar in group.bars))
    axis.set_ylabel(what)
    axis.set_title(title, loc="left", fontweight="bold")
    axis.grid(axis="y", color=GRID)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.legend(ncols=min(4, len(engines)), loc="upper left", bbox_to_anchor=(0.14, 1.17), frameon=False, fontsize=9)


def _draw_bar(axis: Any, x: float, bar: Bar, *, label: str | None) -> None:
    height = 100 * bar.median
    whisker: Mapping[str, Any] = {"ecolor": INK, "elinewidth": 0.8, "capsize": 1.5}
    axis.bar(
        x,
        height,
        0.9,
        color=_COLOURS.get(bar.engine, _OTHER_COLOUR),
        label=label,
        yerr=[[100 * (bar.median - bar.low)], [100 * (bar.high - bar.median)]],
        error_kw=whisker,
    )
    ours = bar.engine == "AttnLoom"
    axis.annotate(
        f"{height:.0f}",
        (x, 100 * bar.high),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        color=INK if ours else MUTED,
        fontweight="bold" if ours else "normal",
    )
