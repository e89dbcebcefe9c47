"""A plan laid out in the cost model's time: which CTA runs which item when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnloom.explain.arrays import Flags, Ints, ItemWork
from attnloom.schedule.cost import CostModel
from attnloom.schedule.work import ALL_HEADS, ClassPlan, TileClass

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Panel:
    """One tile class: a bar per item and kv head, CTAs as rows; times in cost units, starting at 0.

    item: index into the class's items; busy: cost of each CTA [num_ctas]. The class is done at `span`, when
    its last CTA is; `even` is when it would be with the same work spread evenly.
    """

    tile: TileClass
    work: ItemWork
    item: Ints
    cta: Ints
    head: Ints
    start: Floats
    stop: Floats
    busy: Floats

    @property
    def span(self) -> float:
        """The end of the busiest CTA."""
        return float(self.busy.max(initial=0.0))

    @property
    def even(self) -> float:
        """The mean over all CTAs, those without work included."""
        return float(self.busy.mean()) if len(self.busy) else 0.0

    @property
    def request(self) -> Ints:
        """The request of each bar."""
        return self.work.request[self.item]

    @property
    def cut_before(self) -> Flags:
        """Bars whose q tile has earlier keys in another item."""
        return self.work.cut_before[self.item]

    @property
    def cut_after(self) -> Flags:
        """Bars whose q tile has later keys in another item."""
        return self.work.cut_after[self.item]

    def title(self, bar: int) -> str:
        """One bar in words."""
        work, i = self.work, self.item[bar]
        first, rows = int(work.row_start[i]), int(work.row_count[i])
        tiles = int(work.full[i] + work.masked[i])
        words = [
            f"request {work.request[i]}, kv head {self.head[bar]}",
            f"packed rows {first:,}–{first + rows - 1:,}",
            f"keys {work.kv_begin[i]:,}–{work.kv_end[i]:,} in {tiles:,} tiles ({int(work.masked[i]):,} masked)",
            f"CTA {self.cta[bar]}, cost {self.start[bar]:,.0f} to {self.stop[bar]:,.0f}",
        ]
        if work.partial[i]:
            words.append("a part of its q tile's keys: writes a partial state")
        return "\n".join(words)


def panel(part: ClassPlan, work: ItemWork, cost: CostModel) -> Panel:
    """Lay out one class; every CTA runs its items one after another, without a gap."""
    heads = part.heads_per_item
    price = item_cost(part.tile, work, cost)
    groups = part.tile.num_ctas // heads
    total = np.bincount(work.group, weights=price, minlength=groups)
    before = np.cumsum(total) - total
    start = np.cumsum(price) - price - before[work.group]
    n = len(price)
    item = np.repeat(np.arange(n), heads)
    lane = np.tile(np.arange(heads), n)
    busy = np.zeros(part.tile.num_ctas)
    busy[: groups * heads] = np.repeat(total, heads)
    named = work.kv_head[item]
    return Panel(
        tile=part.tile,
        work=work,
        item=item,
        cta=work.group[item] * heads + lane,
        head=np.where(named == ALL_HEADS, lane, named),
        start=start[item],
        stop=(start + price)[item],
        busy=busy,
    )


def item_cost(tile: TileClass, work: ItemWork, cost: CostModel) -> Floats:
    """Cost of every item: a fixed part, the rows of the tile, and the keys of the kv tiles that it visits."""
    keys = (work.full + work.masked) * tile.tile_kv
    one = cost.of(tile.tile_q)
    return one.fixed + one.alpha * tile.tile_q + one.beta * keys.astype(np.float64)
