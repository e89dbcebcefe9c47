"""No schedule within declared maxima is larger than the room that they give."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_problems import cases, costs, make_case, tile_classes

import attnloom as al
from attnloom.schedule.capacity import Limits, most_sections, most_tiles
from attnloom.schedule.cost import CostModel
from attnloom.schedule.planner import PLANNERS, schedule
from attnloom.schedule.work import TileClass
from attnloom.variant.bounds import compile_bounds


def limits_of(problem, batch: int, total_q: int, longest_kv: int) -> Limits:
    runs = problem.bands.may.shape[1] + 2 * problem.bands.not_must.shape[1]
    return Limits(
        batch=batch,
        total_q=total_q,
        longest_kv=longest_kv,
        group_size=problem.group_size,
        num_kv_heads=problem.num_kv_heads,
        runs=runs if problem.kv_pos is None else None,
    )


def lengths(plan) -> list[int]:
    return [length for _, length in plan.sections]


@settings(max_examples=300, deadline=None)
@given(cases(max_len=400), tile_classes(), costs, st.sampled_from(PLANNERS), st.integers(0, 2))
def test_sections_stay_in_their_room(case, classes, cost, planner, spare):
    """The least maxima that allow the batch, and larger ones."""
    problem = case.problem
    least = (len(problem.kv_len), int(problem.qo_indptr[-1]), int(problem.kv_len.max(initial=0)))
    room = most_sections(limits_of(problem, *(n + spare for n in least)), classes)
    used = lengths(schedule(problem, classes, planner=planner, cost=cost))
    assert all(a <= b for a, b in zip(used, room, strict=True)), (used, room)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 20000), min_size=1, max_size=60),
    st.integers(1, 140),
    st.integers(1, 8),
    costs,
    st.sampled_from([(planner, qo_lens) for planner in PLANNERS for qo_lens in ([1], [1, 3], [1, 17, 200])]),
)
def test_long_requests_cut_into_many_parts(kv_lens, num_ctas, heads, cost, form):
    planner, qo_lens = form
    qo = [qo_lens[i % len(qo_lens)] for i in range(len(kv_lens))]
    problem = make_case(qo, kv_lens, "causal window", num_kv_heads=heads).problem
    classes = [TileClass(16, 64, 4 * num_ctas), TileClass(128, 64, num_ctas, every_head=num_ctas % 2 == 0)]
    room = most_sections(limits_of(problem, len(qo), sum(qo), max(kv_lens)), classes)
    used = lengths(schedule(problem, classes, planner=planner, cost=cost))
    assert all(a <= b for a, b in zip(used, room, strict=True)), (used, room)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 90), max_size=12), st.integers(1, 5), tile_classes())
def test_tiles_counted_by_hand(qo_lens, group, classes):
    """A request's rows belong to the smallest tile that holds them, else to the largest."""
    sizes = sorted(tile.tile_q for tile in classes)
    counted = dict.fromkeys(sizes, 0)
    for rows in (n * group for n in qo_lens):
        size = next((size for size in sizes if rows <= size), sizes[-1])
        counted[size] += -(-rows // size)
    limits = Limits(len(qo_lens), sum(qo_lens), 1, group, 1, 1)
    for tile, most in zip(classes, most_tiles(limits, classes), strict=True):
        assert counted[tile.tile_q] <= most


def test_the_room_is_not_far_from_what_a_batch_needs():
    """Decode at the declared batch: items of the whole batch, and a cut a worker."""
    problem = make_case([1] * 64, [4096] * 64, "causal", num_kv_heads=8, group_size=4).problem
    classes = [TileClass(16, 64, 528), TileClass(128, 64, 264)]
    room = most_sections(limits_of(problem, 64, 64, 4096), classes)
    assert room[1] == 8 * (64 + 66)  # 528 CTAs are 66 groups of 8 heads
    used = lengths(schedule(problem, classes, cost=CostModel(0.0, 0.0, 1.0, min_chunk=1)))
    assert used[1] >= 8 * 64


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=5),
    st.booleans(),
)
def test_bands_stay_below_their_bound(requests, default_positions):
    """Whatever order the thresholds of the requests come in."""
    qo, kv, prefix = (np.array(column, np.int64) for column in zip(*requests, strict=True))
    variants = al.variants
    for variant in (
        variants.causal() & variants.sliding_window(5),
        variants.prefix_lm() | variants.sliding_window(3),
        variants.prefix_lm() & ~variants.sliding_window(7),
        variants.document_mask(),
    ):
        bounds = compile_bounds(variant.program)
        for names in (bounds.structural_params, frozenset[str]()):
            bands = bounds.bands(qo, kv, dict.fromkeys(names, prefix), default_positions)
            may, not_must = bounds.most_bands(default_positions, bounds.structural_params - names)
            assert bands.may.shape[1] <= may
            assert bands.not_must.shape[1] <= not_must
