"""The charts that a report has figures for, as files."""

from __future__ import annotations

from pathlib import Path

from attnloom.bench.gpu import chart, chart_pages
from attnloom.bench.gpu.record import Report

_PAGES = "-pages"


def draw(report: Report, path: Path) -> list[Path]:
    """Write PNG and SVG of each chart: `path` with either suffix, and its stem with ``-pages`` added.

    Raises MissingDependency without matplotlib.
    """
    written = []
    for module, suffix in ((chart, ""), (chart_pages, _PAGES)):
        if not module.has_groups(report):
            continue
        figure = module.picture(report)
        path.parent.mkdir(parents=True, exist_ok=True)
        for kind in (".png", ".svg"):
            written.append(path.with_name(f"{path.stem}{suffix}{kind}"))
            figure.savefig(written[-1], dpi=150)
    return written
