"""A plan for people: a table, and a timeline of its CTAs as SVG or PNG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnloom.errors import InvalidArgument
from attnloom.explain import png, svg, words
from attnloom.explain.arrays import item_work, kv_lengths
from attnloom.explain.cards import Card, card
from attnloom.explain.summary import ClassFigures, TotalFigures, class_figures, total_figures
from attnloom.explain.timeline import Panel, panel
from attnloom.schedule.cost import CostModel, cost_model
from attnloom.schedule.work import Plan
from attnloom.spec import AttentionSpec

_SUFFIXES = (".svg", ".png")


@dataclass(frozen=True)
class Explanation:
    """What one plan does, as `report` made it; `str()` gives the table."""

    facts: words.Facts

    def __str__(self) -> str:
        return self.table()

    @property
    def classes(self) -> tuple[ClassFigures, ...]:
        """The figures of each tile class, in the plan's order."""
        return self.facts.classes

    @property
    def total(self) -> TotalFigures:
        """The figures of all classes together."""
        return self.facts.total

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The timeline of each tile class, in the plan's order."""
        return self.facts.panels

    def table(self) -> str:
        """The figures in columns, one per tile class that has work, and the totals."""
        return words.table(self.facts)

    def svg(self) -> str:
        """The timeline as one self-contained SVG document."""
        return svg.draw(self.facts)

    def save(self, path: str | Path) -> Path:
        """Write the timeline to `path`, as its suffix says: .svg, or .png (needs matplotlib); returns the path.

        Raises InvalidArgument for another suffix or a folder that does not exist, MissingDependency without
        matplotlib.
        """
        path = Path(path)
        if path.suffix not in _SUFFIXES or not path.parent.is_dir():
            raise InvalidArgument(
                name="path",
                given=str(path),
                supported=f"a file in an existing folder, named {' or '.join('*' + s for s in _SUFFIXES)}",
                fix="Create the folder, or choose one of these endings.",
            )
        if path.suffix == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        else:
            png.save(self.facts, path)
        return path


def report(
    plan: Plan, spec: AttentionSpec, target_name: str | Card = "h200", *, cost: CostModel | None = None
) -> Explanation:
    """Explain a plan from its arrays alone.

    target_name: the card whose limits are quoted, by name or as a `Card`; cost: the model that times the
    items (None: the row of the device on which the plan lies, "cpu" or "gpu").
    """
    limits = target_name if isinstance(target_name, Card) else card(target_name)
    model = cost or cost_model("cpu" if plan.qo_indptr.device.type == "cpu" else "gpu")
    panels, figures, ranges = [], [], []
    for part in plan.classes:
        work, read = item_work(part)
        timeline = panel(part, work, model)
        panels.append(timeline)
        ranges.append(read)
        figures.append(class_figures(plan, spec, part, timeline=timeline, ranges=read, card=limits))
    classes = tuple(figures)
    level = plan.levels[0]
    facts = words.Facts(
        spec=spec,
        page_size=None if level.pages is None else level.page_size,
        qo_len=np.diff(plan.qo_indptr.cpu().numpy().astype(np.int64)),
        kv_len=kv_lengths(plan),
        card_name=limits.name,
        cost=model,
        classes=classes,
        total=total_figures(plan, spec, classes, tuple(ranges), limits),
        panels=tuple(panels),
    )
    return Explanation(facts)
