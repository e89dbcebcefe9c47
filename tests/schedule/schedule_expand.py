"""A Schedule taken apart: which pairs it computes and what its CTAs cost, counted one item at a time."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from schedule_problems import Case

from attnloom.schedule.cost import CostModel
from attnloom.schedule.result import ClassArrays, Schedule


def clipped_segments(part: ClassArrays, item: int) -> list[tuple[int, int, int]]:
    """The item's own runs of keys (begin, end, full)."""
    start, count = (int(x) for x in part.item_segments[item])
    begin, end = (int(x) for x in part.items[item, 5:7])
    runs = [(max(a, begin), min(b, end), f) for a, b, f in part.segments[start : start + count].tolist()]
    return [run for run in runs if run[0] < run[1]]


def item_heads(part: ClassArrays, item: int, num_kv_heads: int) -> list[int]:
    head = int(part.items[item, 4])
    return list(range(num_kv_heads)) if head == -1 else [head]


def computed_pairs(case: Case, schedule: Schedule, request: int) -> np.ndarray:
    """int [num_kv_heads, packed rows, kv_len]: how often each pair is computed."""
    problem = case.problem
    count = np.zeros((problem.num_kv_heads, *case.visible(request).shape), int)
    for part in schedule.classes:
        for item, fields in enumerate(part.items.tolist()):
            if fields[0] != request:
                continue
            for head in item_heads(part, item, problem.num_kv_heads):
                for begin, end, _ in clipped_segments(part, item):
                    count[head, fields[1] : fields[1] + fields[2], begin:end] += 1
    return count


def kv_tiles(part: ClassArrays, item: int) -> int:
    """Non-empty kv tiles of an item."""
    tile_kv = part.tile.tile_kv
    return sum(-(-(end - begin) // tile_kv) for begin, end, _ in clipped_segments(part, item))


def cta_loads(part: ClassArrays, cost: CostModel) -> list[float]:
    """Cost of every CTA that the class's form uses: groups * heads_per_item of them, or all."""
    heads = part.heads_per_item
    all_heads = bool((part.items[:, 4] == -1).any()) if len(part.items) else heads > 1
    workers = part.tile.num_ctas // heads if all_heads else part.tile.num_ctas
    loads = []
    cost = cost.of(part.tile.tile_q)
    for worker in range(workers):
        work = range(int(part.work_indptr[worker]), int(part.work_indptr[worker + 1]))
        price = sum(
            cost.fixed + cost.alpha * part.tile.tile_q + cost.beta * part.tile.tile_kv * kv_tiles(part, i) for i in work
        )
        loads += [price] * (heads if all_heads else 1)
    return loads


def makespan_bound(part: ClassArrays, cost: CostModel, num_kv_heads: int) -> float:
    """total / #CTA in use + 2 * (fixed + alpha T_q + beta TILE_KV), total over unsplit tiles, heads included."""
    tiles: dict[tuple[int, int, int], int] = defaultdict(int)
    for item, fields in enumerate(part.items.tolist()):
        for head in item_heads(part, item, num_kv_heads):
            tiles[(fields[0], fields[1], head)] += kv_tiles(part, item)
    cost = cost.of(part.tile.tile_q)
    start = cost.fixed + cost.alpha * part.tile.tile_q
    step = cost.beta * part.tile.tile_kv
    total = sum(start + step * n for n in tiles.values())
    return total / len(cta_loads(part, cost)) + 2 * (start + step)
