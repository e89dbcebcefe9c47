"""A report as the picture of the FlashInfer paper's figure 8: utilisation by engine and distribution of lengths."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    "AttnLoom, page 64": "#ee8350",
    "AttnLoom, page 16": "#f4a27a",
    "AttnLoom, page 1": "#fad0b8",
    "FlashInfer decode": "#1864ab",
    "FlashInfer paged": "#1864ab",
    "FlashInfer ragged": "#74b3e8",
    "FA3": "#2b8a3e",
    "cuDNN (torch)": "#868e96",
    "FlexAttention": "#c2a83e",
    "FA2 (torch)": "#9775c9",
}
_OTHER_COLOUR = "#495057"

# Sections of a preset whose cases are batches by distribution of lengths, and the kv heads that are shown of them.
_SECTIONS = ("decode", "batches")
_KV_HEADS = 8


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
        if record.status == MEASURED and record.decodes == decode and _belongs(record):
            best = record.read_bytes_per_second if decode else peak_flops
            work = record.counted_bytes if decode else record.flops
            found.append((int(record.case["page_size"] == 1), _group(record, work / best)))
    order = list(_DISTRIBUTIONS.values())

    def rank(each: tuple[int, Group]) -> tuple[int, int]:
        kind = each[1].distribution
        return order.index(kind) if kind in order else len(order), each[0]

    return [group for _, group in sorted(found, key=rank)]


def _belongs(record: CaseRecord) -> bool:
    return not record.section or (record.section in _SECTIONS and record.case["heads"][1] == _KV_HEADS)


def _group(record: CaseRecord, least: float) -> Group:
    kind, _, size = str(record.case["workload"]).partition("_")
    qo, kv = record.case["heads"]
    details = f"{qo}/{kv} heads" + (
        "" if record.case["page_size"] in (16, None) else f"\npage {record.case['page_size']}"
    )
    label = f"{size.replace('x', ' × ')}\n{details}"
    return Group(_DISTRIBUTIONS.get(kind, kind), label, bars(record, least))


def bars(record: CaseRecord, least: float) -> tuple[Bar, ...]:
    """One bar an engine; least: the seconds that full use of the card would take."""
    quickest: dict[str, Bar] = {}
    for entry in record.entries:
        if not entry.seconds:
            continue
        each = spread([least / seconds for seconds in entry.seconds])
        if entry.engine not in quickest or each.median > quickest[entry.engine].median:
            quickest[entry.engine] = Bar(entry.engine, each.median, each.low, each.high)
    return tuple(quickest.values())


def has_groups(report: Report) -> bool:
    """Whether there is anything to show."""
    return any(groups(report.cases, decode=decode, peak_flops=1.0) for decode in (True, False))


def matplotlib_figure() -> Any:
    """The module `matplotlib.figure`; raises MissingDependency without matplotlib."""
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingDependency(feature="the chart", package="matplotlib", reason=error) from error


def picture(report: Report) -> Any:
    """A matplotlib figure: decode above, prefill below, each only where something was measured."""
    figure_module = matplotlib_figure()
    peak, source = card_peak(report)
    panels = [
        (groups(report.cases, decode=True, peak_flops=peak), "Decode", "bandwidth, % of a plain read"),
        (groups(report.cases, decode=False, peak_flops=peak), "Causal prefill", f"FLOP/s, % of {source}"),
    ]
    panels = [panel for panel in panels if panel[0]]
    figure = figure_module.Figure(figsize=(14, 1.3 + 4.2 * max(1, len(panels))), layout="constrained")
    axes = figure.subplots(max(1, len(panels)), 1, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=False):
        draw_panel(axis, *panel)
    lines = title("AttnLoom beside its peers", report)
    if report.missing:
        lines.append(f"not on this machine: {', '.join(report.missing)}")
    figure.suptitle("\n".join(lines), fontsize=12)
    return figure


def title(words: str, report: Report) -> list[str]:
    """Two lines: what, on which card and when; how it was measured."""
    facts = f"{report.machine.get('gpu', 'GPU')}, torch {report.machine.get('torch')}, {report.machine.get('date')}"
    rounds = report.protocol.get("rounds")
    how = f"bf16 and head dim 128 unless said; medians of {rounds} interleaved rounds, quartiles as whiskers, cold L2"
    return [f"{words}: {facts}", how]


def card_peak(report: Report) -> tuple[float, str]:
    """The card's best bf16 matrix product where it was measured, else what the roofline counts with."""
    for card in CARDS.values():
        if card.name in str(report.machine.get("gpu")):
            found = next(iter(card.flops_per_second.values()))
            return found, f"{found / 1e12:.0f} T (a large matrix product)"
    return ATTAINABLE_FLOPS, f"{ATTAINABLE_FLOPS / 1e12:.0f} T"


def draw_panel(axis: Any, panel: Sequence[Group], heading: str, what: str) -> None:
    """Groups of bars side by side; what: the y axis."""
    engines = [name for name in _COLOURS if any(bar.engine == name for group in panel for bar in group.bars)]
    engines += sorted({bar.engine for group in panel for bar in group.bars} - set(engines))
    centres, drawn = [], set()
    position = 0.0
    for i, group in enumerate(panel):
        if i and group.distribution != panel[i - 1].distribution:
            axis.axvline(position - 0.5, color=GRID, linewidth=1.2)
        ordered = sorted(group.bars, key=lambda bar: engines.index(bar.engine))
        for j, bar in enumerate(ordered):
            draw_bar(axis, position + j, bar, label=None if bar.engine in drawn else bar.engine)
            drawn.add(bar.engine)
        centres.append(position + (len(ordered) - 1) / 2)
        position += len(ordered) + 1
    axis.set_xticks(centres, [f"{group.distribution}\n{group.label}" for group in panel], fontsize=9)
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(-1, position - 0.5)
    axis.set_ylim(0, 1.18 * max(100 * bar.high for group in panel for bar in group.bars))
    axis.set_ylabel(what)
    axis.set_title(heading, loc="left", fontweight="bold")
    axis.grid(axis="y", color=GRID)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.legend(ncols=min(4, len(engines)), loc="upper left", bbox_to_anchor=(0.14, 1.17), frameon=False, fontsize=9)


def draw_bar(axis: Any, x: float, bar: Bar, *, label: str | None) -> None:
    """A bar of per cent with its quartiles and its height in figures."""
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
