"""The one compiled function that Python calls: all of a tile class's scheduling."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attnloom.schedule import tiles as t
from attnloom.schedule.assemble import assemble
from attnloom.schedule.jit import Entry, inner
from attnloom.schedule.split import Costs, algorithm1, stream

Ints = npt.NDArray[np.int64]


@inner
def unit_order(tiles: Ints, heads: int) -> Ints:
    """Units tile * heads + head; the tiles of one request and head next to each other, as they read the same keys."""
    count = tiles.shape[0]
    ids = np.empty(count * heads, np.int64)
    at = 0
    start = 0
    while start < count:
        stop = start
        while stop < count and tiles[stop, t.REQUEST] == tiles[start, t.REQUEST]:
            stop += 1
        for head in range(heads):
            for tile in range(start, stop):
                ids[at] = tile * heads + head
                at += 1
        start = stop
    return ids


def plan_class(batch: t.Batch, mask: t.Mask, shape: t.Shape, costs: Costs, chunk: Any) -> Any:
    """Arrays of one class (see `assemble`) and its segments.

    costs.heads: heads of a unit (1: an item names its head). chunk = (kv heads, least chunk in keys) for
    Algorithm 1, least chunk -1 for the stream planner.
    """
    num_heads, least_chunk = chunk
    tiles, segments = t.find_tiles(batch, mask, shape)
    per_item = num_heads if costs.heads == 1 else 1
    unit_ids = unit_order(tiles, per_item)
    sizes = np.empty(unit_ids.shape[0], np.int64)
    for unit in range(unit_ids.shape[0]):
        sizes[unit] = tiles[unit_ids[unit] // per_item, t.KV_TILES]
    if sizes.shape[0] == 0:
        pieces = np.empty((0, 4), np.int64)
        order = np.empty(0, np.int64)
    elif least_chunk >= 0:
        keys = 0
        for tile in range(tiles.shape[0]):
            keys += num_heads * tiles[tile, t.KEYS]
        length = max(least_chunk, (keys + shape.num_ctas - 1) // shape.num_ctas, 1)
        pieces, order = algorithm1(sizes, (length + shape.tile_kv - 1) // shape.tile_kv, costs)
    else:
        pieces, order = stream(sizes, costs)
    item_heads = num_heads if costs.heads == 1 else 0
    arrays = assemble((tiles, segments), (pieces, order, costs.workers), unit_ids, item_heads, shape)
    return arrays, segments


plan_class_compiled = Entry(plan_class)
