"""The sentences, table and legend of an explained plan."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnloom.explain.arrays import Ints
from attnloom.explain.summary import ClassFigures, TotalFigures, request_time
from attnloom.explain.text import columns, count, duration, percent, si
from attnloom.explain.timeline import Panel
from attnloom.schedule.cost import CostModel
from attnloom.spec import AttentionSpec

_NOTE_WIDTH = 110


@dataclass(frozen=True)
class Facts:
    """A plan's figures, from which all words are made; qo_len and kv_len are tokens ``[requests]``."""

    spec: AttentionSpec
    page_size: int | None
    qo_len: Ints
    kv_len: Ints
    card_name: str
    cost: CostModel
    classes: tuple[ClassFigures, ...]
    total: TotalFigures
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class LegendEntry:
    """A request: its colour's rank (by time, longest first), its lengths, its share of all CTAs' time."""

    request: int
    rank: int
    qo_len: str
    kv_len: str
    share: str


def headline(facts: Facts) -> str:
    """Batch, heads and types in one line."""
    spec, kv = facts.spec, facts.kv_len
    dims = f"{spec.head_dim_qk}"
    if spec.head_dim_vo != spec.head_dim_qk:
        dims += f" (v {spec.head_dim_vo})"
    place = "ragged KV" if facts.page_size is None else f"page {facts.page_size}"
    return (
        f"{count(len(facts.qo_len))} requests, {count(int(facts.qo_len.sum()))} query rows on "
        f"{count(int(kv.sum()))} keys; {spec.num_qo_heads}/{spec.num_kv_heads} heads of {dims}, "
        f"{str(spec.dtype).removeprefix('torch.')}, {place}"
    )


def panel_title(facts: Facts, index: int) -> str:
    """One tile class in one line."""
    figures = facts.classes[index]
    split = f"{count(figures.split_q_tiles)} of {count(figures.q_tiles)} q tiles split"
    return (
        f"tile {tile_name(facts.panels[index])}:  {figures.busy_ctas} of {figures.ctas} CTAs busy,  "
        f"{count(figures.items)} items,  {split},  balance {figures.balance:.2f},  idle {percent(figures.idle)}"
    )


def limit_line(facts: Facts) -> str:
    """What the plan moves and computes, and a card's least time for it."""
    total = facts.total
    return (
        f"{facts.card_name} at its limits: {duration(total.limit.seconds)} ({total.limit.bound}).  "
        f"K and V {si(total.kv_bytes, 'B')} (read by the CTAs: {si(total.kv_bytes_read, 'B')}),  "
        f"q and out {si(total.qo_bytes, 'B')},  {si(total.flops, 'FLOP')}"
    )


def axis_label(facts: Facts) -> str:
    """What the timeline's x means."""
    used = [c.tile.tile_q for c in facts.panels if c.work.group.size]
    cost = facts.cost.of(min(used, default=1))
    # where and how they were measured takes sentences: the table's footnote has them
    source = "measured constants" if cost.measured else "estimated, not measured"
    apart = ";  each tile class is a launch of its own" if sum(c.items > 0 for c in facts.classes) > 1 else ""
    return f"µs by the cost model ({source}): {cost.fixed:g} + {cost.alpha:g} · tile rows + {cost.beta:g} · keys{apart}"


def tile_name(timeline: Panel) -> str:
    """Rows × keys of a tile."""
    return f"{timeline.tile.tile_q} × {timeline.tile.tile_kv}"


def legend(facts: Facts) -> tuple[LegendEntry, ...]:
    """Every request with work, the one that takes most time first."""
    time = request_time(facts.panels, len(facts.kv_len))
    order = np.argsort(-time, kind="stable")
    whole = time.sum() or 1.0
    # Levels of a composed format are sequences beyond the batch: they have no qo_len of their own.
    qo = [f"{n:,}" for n in facts.qo_len] + ["–"] * (len(facts.kv_len) - len(facts.qo_len))
    return tuple(
        LegendEntry(int(r), rank, qo[r], f"{facts.kv_len[r]:,}", percent(time[r] / whole))
        for rank, r in enumerate(order)
        if time[r] > 0
    )


def table(facts: Facts) -> str:
    """The figures in columns, one per tile class that has work, and the totals where they add up."""
    used = [i for i, figures in enumerate(facts.classes) if figures.items]
    if not used:
        return f"{headline(facts)}\n\nNo work: no request has a query row."
    rows = [["tile (rows × keys)", *(tile_name(facts.panels[i]) for i in used), "total"]]
    for label, of_class, of_total in _ROWS:
        cells = [of_class(facts.classes[i]) for i in used]
        rows.append([label, *cells, of_total(facts.total) if of_total else ""])
    rows.append(
        [
            f"{facts.card_name} at its limits",
            *(duration(facts.classes[i].limit.seconds) for i in used),
            duration(facts.total.limit.seconds),
        ]
    )
    return f"{headline(facts)}\n\n{columns(rows)}\n\n{_footnote(facts)}"


_ROWS: tuple[tuple[str, Callable[[ClassFigures], str], Callable[[TotalFigures], str] | None], ...] = (
    ("requests", lambda c: count(c.requests), None),
    ("CTAs", lambda c: count(c.ctas), None),
    ("CTAs with work", lambda c: count(c.busy_ctas), None),
    ("q tiles", lambda c: count(c.q_tiles), None),
    ("work items", lambda c: count(c.items), None),
    ("q tiles split and merged", lambda c: count(c.split_q_tiles), None),
    ("partial states", lambda c: count(c.partial_states), None),
    ("kv tiles, full", lambda c: count(c.full_tiles), None),
    ("kv tiles, masked", lambda c: count(c.masked_tiles), None),
    ("kv tiles, skipped", lambda c: count(c.skipped_tiles), None),
    ("rows filled", lambda c: percent(c.row_fill), None),
    ("balance (max / mean)", lambda c: f"{c.balance:.3f}", None),
    ("idle", lambda c: percent(c.idle), None),
    ("K and V read by CTAs", lambda c: si(c.kv_bytes_read, "B"), lambda t: si(t.kv_bytes_read, "B")),
    ("K and V, each slot once", lambda c: si(c.kv_bytes, "B"), lambda t: si(t.kv_bytes, "B")),
    ("q and out", lambda c: si(c.qo_bytes, "B"), lambda t: si(t.qo_bytes, "B")),
    ("products", lambda c: si(c.flops, "FLOP"), lambda t: si(t.flops, "FLOP")),
)


def _footnote(facts: Facts) -> str:
    source = f"measured: {facts.cost.measured}" if facts.cost.measured else "estimated and not measured"
    counts = f"Counts include every kv head. Balance and idle come from the cost model ({source})."
    limits = (
        "Limits: each slot and q and out moved once, or the products of the kv tiles read, whichever is longer "
        f"({facts.total.limit.bound})."
    )
    return "\n".join(textwrap.fill(note, _NOTE_WIDTH) for note in (counts, limits))
