"""Every visible (row, kv head, key) exactly once, and the Plan's rules about its fields."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_expand import clipped_segments, computed_pairs, item_heads
from schedule_problems import cases, costs, make_case, tile_classes

from attnloom.schedule.cost import cost_model
from attnloom.schedule.planner import heads_per_item, schedule
from attnloom.schedule.work import TileClass
from attnloom.schedule.workspace import slots, workspace_bytes

planners = st.sampled_from(["stream", "algorithm1"])


def check_pairs(case, plan):
    for request in range(len(case.problem.kv_len)):
        count = computed_pairs(case, plan, request)
        seen = case.visible(request)
        assert count.max(initial=0) <= 1
        assert (count[:, seen] == 1).all()


def check_fields(case, plan):
    """Alignment, classes and the work lists."""
    problem = case.problem
    rows = np.diff(problem.qo_indptr) * problem.group_size
    for part in plan.classes:
        assert part.work_indptr.shape == (part.tile.num_ctas + 1,)
        assert part.work_indptr[0] == 0
        assert part.work_indptr[-1] == len(part.items)
        assert (np.diff(part.work_indptr) >= 0).all()
        for item, fields in enumerate(part.items.tolist()):
            request, row, count, row_map, head, begin, end, _ = fields
            fits = [c.tile.tile_q for c in plan.classes if c.tile.tile_q >= rows[request]]
            assert part.tile.tile_q == min(fits, default=max(c.tile.tile_q for c in plan.classes))
            assert row % part.tile.tile_q == 0
            assert count == min(part.tile.tile_q, rows[request] - row)
            assert row_map == -1
            assert head == -1 if part.heads_per_item > 1 else 0 <= head < problem.num_kv_heads
            kv_len = problem.kv_len[request]
            assert begin % part.tile.tile_kv == 0
            assert end == kv_len or end % part.tile.tile_kv == 0
            runs = clipped_segments(part, item)
            assert (begin, end) == ((runs[0][0], runs[-1][1]) if runs else (0, 0))  # no key of a hole at its ends
            assert all(b <= c for (_, b, _), (c, _, _) in itertools.pairwise(runs))
            seen = case.visible(request)[row : row + count]
            assert all(seen[:, a:b].all() for a, b, full in runs if full)


def check_merges(case, plan):
    """A cut tile has its parts in the merge list, in kv order; a whole one writes the output."""
    parts = defaultdict(list)
    for region, part in enumerate(plan.classes):
        for item, fields in enumerate(part.items.tolist()):
            for head in item_heads(part, item, case.problem.num_kv_heads):
                slot = fields[7]
                if slot >= 0 and fields[4] == -1:
                    slot = slot * part.heads_per_item + head
                assert slot < slots(part.tile)
                parts[(*fields[:3], head)].append((fields[5], region, slot))
    split = {key: [p[1:] for p in sorted(found)] for key, found in parts.items() if len(found) > 1}
    assert all(found[0][2] == -1 for key, found in parts.items() if key not in split)
    merged = {}
    assert plan.merge_indptr[0] == 0
    assert plan.merge_indptr[-1] == len(plan.merge_slots)
    for entry, (a, b) in zip(
        plan.merge_entries.tolist(), zip(plan.merge_indptr, plan.merge_indptr[1:], strict=False), strict=True
    ):
        heads = case.problem.num_kv_heads
        for head in range(heads) if entry[4] == -1 else [entry[4]]:
            merged[(*entry[:3], head)] = [
                (r, s * heads + head if entry[4] == -1 else s) for r, s in plan.merge_slots[a:b].tolist()
            ]
    assert merged == split
    used = [slot for found in merged.values() for slot in found]
    assert len(set(used)) == len(used)


@settings(max_examples=200, deadline=None)
@given(cases(), tile_classes(), costs, planners)
def test_every_visible_pair_exactly_once(case, classes, cost, planner):
    plan = schedule(case.problem, classes, planner=planner, cost=cost)
    assert [c.tile for c in plan.classes] == list(classes)
    check_pairs(case, plan)
    check_fields(case, plan)
    check_merges(case, plan)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 40), st.integers(1, 8), planners)
def test_long_decode_in_both_head_forms(data, num_ctas, heads, planner):
    """Few long requests: cuts on nearly every CTA."""
    kv_lens = data.draw(st.lists(st.integers(1, 700), min_size=1, max_size=4))
    case = make_case([1] * len(kv_lens), kv_lens, "causal window" if len(kv_lens) == 3 else "full", num_kv_heads=heads)
    cost = data.draw(costs)
    plan = schedule(case.problem, [TileClass(4, 8, num_ctas)], planner=planner, cost=cost)
    assert plan.classes[0].heads_per_item == heads_per_item(TileClass(4, 8, num_ctas), heads)
    check_pairs(case, plan)
    check_fields(case, plan)
    check_merges(case, plan)


@pytest.mark.parametrize("planner", ["stream", "algorithm1"])
@pytest.mark.parametrize(
    ("qo_lens", "kv_lens"), [([], []), ([0, 0], [5, 0]), ([3, 0, 1, 40], [0, 9, 1, 0]), ([0], [2**31 - 1])]
)
def test_empty_parts(qo_lens, kv_lens, planner):
    """Batch 0, no rows, no keys: a tile without keys still has an item, which writes the identity."""
    case = make_case(qo_lens, kv_lens, group_size=3, num_kv_heads=2)
    plan = schedule(case.problem, [TileClass(8, 8, 5), TileClass(32, 16, 7)], planner=planner, cost=cost_model("cpu"))
    rows = {
        (f[0], r, head)
        for part in plan.classes
        for i, f in enumerate(part.items.tolist())
        for head in item_heads(part, i, 2)
        for r in range(f[1], f[1] + f[2])
    }
    assert rows == {(i, r, h) for i, q in enumerate(qo_lens) for r in range(q * 3) for h in range(2)}
    assert all((f[5], f[6], f[7]) == (0, 0, -1) for p in plan.classes for f in p.items.tolist() if kv_lens[f[0]] == 0)


@pytest.mark.parametrize(
    ("num_ctas", "heads", "expected"),
    [
        (132, 8, 8),
        (132, 1, 1),
        (132, 32, 32),
        (132, 12, 12),
        (7, 8, 1),
        (1, 1, 1),
        (40, 3, 3),
        (20, 7, 1),
        (100, 19, 19),
        (99, 47, 1),
        (100, 95, 95),
        (99, 94, 1),
    ],
)
def test_all_heads_form_where_at_most_a_twentieth_idles(num_ctas, heads, expected):
    assert heads_per_item(TileClass(16, 64, num_ctas), heads) == expected
    assert heads_per_item(TileClass(16, 64, num_ctas, every_head=False), heads) == 1


@settings(max_examples=100, deadline=None)
@given(cases(max_len=2000, explicit=False), tile_classes(), costs, planners, st.sampled_from([8, 64]))
def test_slots_stay_inside_the_workspace(case, classes, cost, planner, head_dim):
    """The formula of the workspace, whatever the batch; all partial states lie apart from each other."""
    plan = schedule(case.problem, classes, planner=planner, cost=cost)
    states = sum(2 * c.num_ctas * c.tile_q * (head_dim + 1) * 4 for c in classes)
    counters = sum(4 * c.num_ctas for c in classes if c.counted)
    assert workspace_bytes(classes, head_dim) == states + counters
    for part in plan.classes:
        heads = case.problem.num_kv_heads if (part.items[:, 4] == -1).any() else 1
        used = part.items[:, 7][part.items[:, 7] >= 0]
        assert sorted(used.tolist()) == list(range(len(used)))
        assert (used.max(initial=-1) + 1) * heads <= slots(part.tile)
