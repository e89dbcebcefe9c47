"""The figures of a plan: per tile class and in total."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnloom.explain.arrays import KeyRanges, distinct_slots, kv_lengths
from attnloom.explain.cards import Card, Limit
from attnloom.explain.timeline import Floats, Panel
from attnloom.schedule.work import ClassPlan, Plan
from attnloom.spec import AttentionSpec


@dataclass(frozen=True)
class ClassFigures:
    """One tile class. Counts are over kv heads too: an item for every head counts once per head.

    split_q_tiles: q tiles whose keys went to several items; partial_states: what those wrote, to be merged;
    full, masked, skipped_tiles: kv tiles read without and with the mask applied, and not read at all;
    row_fill: real rows / rows that the q tiles hold; balance: busiest CTA / mean of all; idle: share of the
    CTAs' time without work, until the last is done; kv_bytes_read: K and V that items read, the same key once
    per q tile; kv_bytes: each cache slot once; qo_bytes: q and out; flops: both products over real rows and all
    keys of the tiles read (what the mask hides in a masked tile counts too); limit: a card's least time.
    """

    requests: int
    ctas: int
    busy_ctas: int
    q_tiles: int
    items: int
    split_q_tiles: int
    partial_states: int
    full_tiles: int
    masked_tiles: int
    skipped_tiles: int
    row_fill: float
    balance: float
    idle: float
    kv_bytes_read: int
    kv_bytes: int
    qo_bytes: int
    flops: int
    limit: Limit


@dataclass(frozen=True)
class TotalFigures:
    """Sums over the classes; kv_bytes counts a slot that two classes read once."""

    kv_bytes_read: int
    kv_bytes: int
    qo_bytes: int
    flops: int
    limit: Limit


def class_figures(
    plan: Plan, spec: AttentionSpec, part: ClassPlan, *, timeline: Panel, ranges: KeyRanges, card: Card
) -> ClassFigures:
    """Count one class; `timeline` carries its items."""
    work, heads = timeline.work, part.heads_per_item
    slot_bytes, row_bytes = _sizes(spec)
    first = np.unique(work.q_tile, return_index=True)[1]
    rows = int(work.row_count[first].sum()) * heads
    visited = int((work.full + work.masked).sum()) * heads
    whole = -(-kv_lengths(plan)[work.request[first]] // part.tile.tile_kv)
    kv_bytes = distinct_slots(plan, ranges) * spec.num_kv_heads * slot_bytes
    flops = int((work.row_count * work.keys).sum()) * heads * 2 * (spec.head_dim_qk + spec.head_dim_vo)
    even, span = timeline.even, timeline.span
    return ClassFigures(
        requests=len(np.unique(work.request)),
        ctas=part.tile.num_ctas,
        busy_ctas=int((timeline.busy > 0).sum()),
        q_tiles=len(first) * heads,
        items=len(work.request) * heads,
        split_q_tiles=len(np.unique(work.q_tile[work.partial])) * heads,
        partial_states=int(work.partial.sum()) * heads,
        full_tiles=int(work.full.sum()) * heads,
        masked_tiles=int(work.masked.sum()) * heads,
        skipped_tiles=int(whole.sum()) * heads - visited,
        row_fill=rows / (len(first) * heads * part.tile.tile_q) if len(first) else 1.0,
        balance=span / even if even else 1.0,
        idle=1.0 - even / span if span else 0.0,
        kv_bytes_read=int(work.keys.sum()) * heads * slot_bytes,
        kv_bytes=kv_bytes,
        qo_bytes=rows * row_bytes,
        flops=flops,
        limit=card.limit(kv_bytes + rows * row_bytes, flops, spec.dtype),
    )


def total_figures(
    plan: Plan,
    spec: AttentionSpec,
    classes: tuple[ClassFigures, ...],
    ranges: tuple[KeyRanges, ...],
    card: Card,
) -> TotalFigures:
    """Add the classes up."""
    joined = KeyRanges(
        request=np.concatenate([r.request for r in ranges]),
        begin=np.concatenate([r.begin for r in ranges]),
        end=np.concatenate([r.end for r in ranges]),
    )
    slot_bytes, _ = _sizes(spec)
    kv_bytes = distinct_slots(plan, joined) * spec.num_kv_heads * slot_bytes
    qo_bytes = sum(c.qo_bytes for c in classes)
    flops = sum(c.flops for c in classes)
    return TotalFigures(
        kv_bytes_read=sum(c.kv_bytes_read for c in classes),
        kv_bytes=kv_bytes,
        qo_bytes=qo_bytes,
        flops=flops,
        limit=card.limit(kv_bytes + qo_bytes, flops, spec.dtype),
    )


def request_time(panels: tuple[Panel, ...], num_requests: int) -> Floats:
    """Cost that each request takes on all CTAs together, ``[num_requests]``."""
    total: Floats = np.zeros(num_requests)
    for panel in panels:
        np.add.at(total, panel.request, panel.stop - panel.start)
    return total


def _sizes(spec: AttentionSpec) -> tuple[int, int]:
    """Bytes of one token of one kv head in K and V, and of one packed row in q and out."""
    slot = (spec.head_dim_qk + spec.head_dim_vo) * spec.kv_dtype.itemsize
    return slot, (spec.head_dim_qk + spec.head_dim_vo) * spec.dtype.itemsize
