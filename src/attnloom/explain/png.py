"""The timeline of a plan as PNG, drawn with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnloom.errors import MissingDependency
from attnloom.explain.layout import Layout, arrange, cta_step
from attnloom.explain.palette import CUT, GRID, IDLE, IDLE_LINE, INK, MUTED
from attnloom.explain.timeline import Panel
from attnloom.explain.words import Facts, axis_label, headline, limit_line, panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 130
_WIDTH = 12.0
_PX_PER_INCH = 96.0


def save(facts: Facts, path: Path) -> None:
    """Draw into `path`; raises MissingDependency without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(
            feature="a PNG of the plan", package="matplotlib", reason="an .svg needs nothing"
        ) from error
    layout = arrange(facts)
    heights = [facts.panels[i].tile.num_ctas * layout.row_height / _PX_PER_INCH for i in layout.shown]
    figure = Figure(figsize=(_WIDTH, max(sum(heights) + 0.75 * len(heights) + 1.5, 4.0)), dpi=_DPI)
    FigureCanvasAgg(figure)
    tall = figure.get_figheight()
    title = "What every CTA does, and when"
    figure.text(0.055, 1 - 0.18 / tall, title, fontsize=14, weight="bold", color=INK, va="top")
    lines = f"{headline(facts)}\n{limit_line(facts)}"
    figure.text(0.055, 1 - 0.46 / tall, lines, fontsize=8.5, color=INK, va="top")
    if layout.shown:
        _panels(figure, facts, layout, heights)
    else:
        figure.text(0.5, 0.5, "No work: no request has a query row.", ha="center")
    figure.savefig(path)


def _panels(figure: Figure, facts: Facts, layout: Layout, heights: list[float]) -> None:
    tall = figure.get_figheight()
    axes = figure.subplots(len(layout.shown), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[
        :, 0
    ]
    figure.subplots_adjust(
        left=0.055, right=0.79, top=1 - 1.15 / tall, bottom=0.6 / tall, hspace=0.5 / max(min(heights), 0.1) * 0.9
    )
    for axis, index in zip(axes, layout.shown, strict=True):
        _panel(axis, facts.panels[index], layout)
        axis.set_title(panel_title(facts, index), loc="left", fontsize=8.5, color=INK, weight="bold")
    axes[-1].set_xlabel(axis_label(facts), fontsize=8, color=MUTED)
    _legend(axes[0], layout)


def _panel(axis: Axes, panel: Panel, layout: Layout) -> None:
    roomy = layout.row_height >= 6
    thickness = 0.88 if roomy else 0.96
    ctas = np.arange(panel.tile.num_ctas)
    axis.barh(
        ctas,
        panel.span - panel.busy,
        left=panel.busy,
        height=thickness,
        color=IDLE,
        hatch="////",
        edgecolor=IDLE_LINE,
        lw=0,
        snap=roomy,
    )
    width = panel.stop - panel.start
    edge = (0.5 if roomy else 0.1) if len(panel.item) < 3000 else 0.0
    colors = [layout.color(int(r)) for r in panel.request]
    axis.barh(
        panel.cta, width, left=panel.start, height=thickness, color=colors, edgecolor="white", lw=edge, snap=roomy
    )
    cut = np.minimum(0.002 * layout.end, 0.3 * width)
    for flags, left in ((panel.cut_before, panel.start), (panel.cut_after, panel.stop - cut)):
        axis.barh(panel.cta[flags], cut[flags], left=left[flags], height=thickness, color=CUT, lw=0, snap=roomy)
    axis.axvline(panel.even, color=INK, lw=1, ls=(0, (4, 3)))
    axis.set_ylim(panel.tile.num_ctas - 0.5, -0.5)
    axis.set_xlim(0, layout.end)
    axis.set_yticks(ctas[:: cta_step(panel.tile.num_ctas, layout.row_height)])
    axis.set_ylabel("CTA", fontsize=8, color=MUTED)
    axis.tick_params(labelsize=7.5, labelcolor=MUTED, labelbottom=True, color=MUTED)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(MUTED)


def _legend(axis: Axes, layout: Layout) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Line2D | Patch] = [
        Patch(facecolor=IDLE, edgecolor=IDLE_LINE, hatch="////", label="idle until the launch ends"),
        Line2D([], [], color=CUT, marker="|", ls="", markersize=8, label="keys of a q tile cut here"),
        Line2D([], [], color=INK, lw=1, ls=(0, (4, 3)), label="end, were the work spread evenly"),
    ]
    handles += [
        Patch(color=layout.color(e.request), label=f"request {e.request}: qo {e.qo_len}, kv {e.kv_len}, {e.share}")
        for e in layout.entries[: layout.listed]
    ]
    if layout.listed < len(layout.entries):
        handles.append(Patch(color=GRID, label=f"+{len(layout.entries) - layout.listed:,} more"))
    axis.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=7, frameon=False)
