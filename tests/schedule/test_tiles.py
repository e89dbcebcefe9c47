"""q tiles: non-empty and full kv tiles counted exactly, at a cost that kv_len does not change."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
from hypothesis import given, settings
from schedule_problems import MASKS, cases, make_case, tile_classes

from attnloom.schedule.cost import cost_model
from attnloom.schedule.planner import schedule
from attnloom.schedule.work import TileClass

EXACT = tuple(m for m in MASKS if m.exact)


def planned_tiles(part) -> dict[tuple[int, int], dict[int, int]]:
    """(request, row_start) -> {kv tile: full}."""
    tiles = {}
    for fields, (start, count) in zip(part.items.tolist(), part.item_segments.tolist(), strict=True):
        found = {}
        for begin, end, full in part.segments[start : start + count].tolist():
            found |= dict.fromkeys(range(begin // part.tile.tile_kv, -(-end // part.tile.tile_kv)), full)
        tiles[fields[0], fields[1]] = found
    return tiles


def brute_tiles(case, request, rows, tile_kv) -> dict[int, int]:
    seen = case.visible(request)[rows]
    blocks = {t: seen[:, t * tile_kv : (t + 1) * tile_kv] for t in range(-(-seen.shape[1] // tile_kv))}
    return {t: int(block.all()) for t, block in blocks.items() if block.any()}


@settings(max_examples=200, deadline=None)
@given(cases(masks=EXACT, explicit=False), tile_classes())
def test_non_empty_and_full_tiles_are_exact(case, classes):
    plan = schedule(case.problem, classes, cost=cost_model("cpu"))
    for part in plan.classes:
        for (request, row), found in planned_tiles(part).items():
            rows = slice(row, row + part.tile.tile_q)
            assert found == brute_tiles(case, request, rows, part.tile.tile_kv)


@settings(max_examples=100, deadline=None)
@given(cases(), tile_classes())
def test_segments_are_maximal_runs(case, classes):
    """Neighbours differ in `full` or leave a hole between them."""
    plan = schedule(case.problem, classes, cost=cost_model("cpu"))
    for part in plan.classes:
        for start, count in part.item_segments.tolist():
            runs = part.segments[start : start + count].tolist()
            assert all(a[1] < b[0] or (a[1] == b[0] and a[2] != b[2]) for a, b in itertools.pairwise(runs))


@settings(max_examples=100, deadline=None)
@given(cases(masks=EXACT), tile_classes())
def test_full_and_hidden_tiles_are_sound_with_explicit_positions(case, classes):
    """Positions in no order: minima and maxima decide, so a tile may be kept or masked without need, never lost."""
    plan = schedule(case.problem, classes, cost=cost_model("cpu"))
    for part in plan.classes:
        for (request, row), found in planned_tiles(part).items():
            true = brute_tiles(case, request, slice(row, row + part.tile.tile_q), part.tile.tile_kv)
            assert true.keys() <= found.keys()
            assert all(true.get(t) == 1 for t, full in found.items() if full)


def test_explicit_positions_that_say_the_default_give_the_default_plan():
    lens = [(5, 70), (30, 200), (1, 1), (12, 4)]
    qo_lens, kv_lens = zip(*lens, strict=True)
    q_pos = np.concatenate([np.arange(q) + k - q for q, k in lens]).astype(np.int64)
    kv_pos = np.concatenate([np.arange(k) for _, k in lens]).astype(np.int64)
    for mask in EXACT:
        plain = make_case(qo_lens, kv_lens, mask)
        for options in ({"q_pos": q_pos}, {"kv_pos": kv_pos}, {"q_pos": q_pos, "kv_pos": kv_pos}):
            told = make_case(qo_lens, kv_lens, mask, **options)
            classes = [TileClass(16, 8, 6)]
            a, b = (schedule(c.problem, classes, cost=cost_model("cpu")).classes[0] for c in (plain, told))
            if mask.name in ("full", "causal", "window", "causal window"):
                assert planned_tiles(a) == planned_tiles(b), mask.name
            else:  # several bands, or corners of a tile: the explicit form may only be coarser
                for tile, found in planned_tiles(a).items():
                    assert found.keys() <= planned_tiles(b)[tile].keys()


def test_lengths_up_to_the_largest_int32():
    """2**31 - 1 keys: the last tile's rounded end would not fit int32, sums would not either."""
    kv_len = 2**31 - 1
    case = make_case([1, 3, 2], [kv_len] * 3, group_size=8, num_kv_heads=8)
    for planner in ("stream", "algorithm1"):
        part = schedule(case.problem, [TileClass(64, 128, 132)], planner=planner, cost=cost_model("sm90")).classes[0]
        assert part.segments[-1, 1] == kv_len
        ranges = sorted(part.items[part.items[:, 0] == 2, 5:7].tolist())
        assert len(ranges) > 1
        assert (ranges[0][0], ranges[-1][1]) == (0, kv_len)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))


COUNT_STEPS = """
import sys
sys.path.insert(0, {folder!r})
from schedule_problems import make_case
from attnloom.schedule.cost import cost_model
from attnloom.schedule.planner import schedule
from attnloom.schedule.work import TileClass

steps = 0
def step(frame, event, arg):
    global steps
    steps += event == "line"
    return step

def of_tiles(frame, event, arg):
    return step if frame.f_code.co_filename.endswith("tiles.py") else None

for mask in {masks!r}:
    for kv_len in (1000, 1_000_000):
        problem = make_case([16, 1], [kv_len, kv_len - 300], mask).problem
        schedule(problem, [TileClass(16, 64, 1)], cost=cost_model("cpu"))
        steps = 0
        sys.settrace(of_tiles)
        schedule(problem, [TileClass(16, 64, 1)], cost=cost_model("cpu"))
        sys.settrace(None)
        print(steps)
"""


def test_analysis_costs_the_same_at_1k_and_1m_keys():
    """Executed lines of the analysis, counted with the compiler off: no loop over keys or kv tiles."""
    masks = ["causal", "first keys and a causal window (holes)"]
    run = subprocess.run(
        [sys.executable, "-c", COUNT_STEPS.format(folder=os.path.dirname(__file__), masks=masks)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    counts = [int(line) for line in run.stdout.split()]
    assert counts[0] == counts[1] > 100
    assert counts[2] == counts[3] > counts[0]
