"""How large the arrays of a schedule can become, whatever the lengths within declared maxima.

A request goes to one tile class. Only the largest class cuts a request into several q tiles:
``ceil(rows / tile_q) <= 1 + (rows - 1) / tile_q``, so that n requests of R packed rows in all have at most
``n + (R - n) / tile_q`` tiles, most with as many requests as the class can have. A planner makes one piece of
a unit (a q tile, of one kv head or of all) and cuts at most once a worker: `stream` where a CTA is full;
Algorithm 1 because its chunk is at least ``keys / workers`` long. A cut tile has one merge entry, and one slot
more than it has cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnloom.schedule.planner import heads_per_item
from attnloom.schedule.work import ITEM_FIELDS, MERGE_FIELDS, SEGMENT_FIELDS, TileClass


@dataclass(frozen=True)
class Limits:
    """What bounds every plan.

    batch, total_q   requests, and query tokens of all of them
    longest_kv       keys of the longest request
    group_size, num_kv_heads   as in `planner.Problem`
    runs             most runs of keys that the bands give one q tile: n + 2 * m of ``bands.may [., n, 6]`` and
                     ``not_must [., m, 6]``; None where kv_pos is given and kv tiles are looked at one by one
    """

    batch: int
    total_q: int
    longest_kv: int
    group_size: int
    num_kv_heads: int
    runs: int | None


def most_sections(limits: Limits, classes: Sequence[TileClass]) -> list[int]:
    """Greatest lengths of `Schedule.sections`, in their order, in int32."""
    lengths: list[int] = []
    all_workers = 0
    for tile, tiles in zip(classes, most_tiles(limits, classes), strict=True):
        heads = heads_per_item(tile, limits.num_kv_heads)
        workers = tile.num_ctas // heads
        items = tiles * (limits.num_kv_heads // heads) + workers
        kv_tiles = -(-limits.longest_kv // tile.tile_kv)
        segments = tiles * (kv_tiles if limits.runs is None else min(limits.runs, kv_tiles))
        lengths += [len(SEGMENT_FIELDS) * segments, len(ITEM_FIELDS) * items, 2 * items, tile.num_ctas + 1]
        all_workers += workers
    return [*lengths, len(MERGE_FIELDS) * all_workers, all_workers + 1, 2 * 2 * all_workers]


def most_tiles(limits: Limits, classes: Sequence[TileClass]) -> list[int]:
    """Most q tiles of each class."""
    sizes = sorted({tile.tile_q for tile in classes})
    counts = []
    for tile in classes:
        below = max((size for size in sizes if size < tile.tile_q), default=0)
        least_tokens = below // limits.group_size + 1
        requests = min(limits.batch, limits.total_q // least_tokens)
        rows = limits.total_q * limits.group_size
        cut = (rows - requests) // tile.tile_q if tile.tile_q == sizes[-1] else 0
        counts.append(requests + cut)
    return counts
