"""Makespan, determinism, and what the planner leaves whole."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_expand import cta_loads, makespan_bound
from schedule_problems import cases, costs, make_case, tile_classes

from attnloom.errors import InvalidArgument, InvalidMetadata
from attnloom.schedule import balance
from attnloom.schedule.arrays import ArrayBuffer
from attnloom.schedule.cost import COSTS, CostModel, cost_model
from attnloom.schedule.planner import schedule
from attnloom.schedule.result import class_plans
from attnloom.schedule.work import TileClass

NO_OVERHEAD = CostModel(fixed=0.0, alpha=0.0, beta=1.0, min_chunk=1)
DECODE = TileClass(16, 64, 132)


@numba.njit
def longest_first_order(sizes):
    """Compiled functions call each other; Python reaches them through one of its own."""
    return balance.longest_first_order(sizes)


def stays_in_bound(plan, cost, heads):
    return all(
        max(cta_loads(part, cost)) <= makespan_bound(part, cost, heads) * (1 + 1e-9)
        for part in plan.classes
        if len(part.items)
    )


@settings(max_examples=200, deadline=None)
@given(cases(max_len=1500, explicit=False), tile_classes(), costs)
def test_makespan(case, classes, cost):
    plan = schedule(case.problem, classes, cost=cost)
    assert stays_in_bound(plan, cost, case.problem.num_kv_heads)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 20000), min_size=1, max_size=30), st.integers(1, 40), st.integers(1, 8), costs)
def test_makespan_of_decode(kv_lens, num_ctas, heads, cost):
    case = make_case([1] * len(kv_lens), kv_lens, "full", num_kv_heads=heads)
    plan = schedule(case.problem, [TileClass(16, 64, num_ctas)], cost=cost)
    assert stays_in_bound(plan, cost, heads)


@pytest.mark.parametrize(
    ("requests", "heads", "num_ctas"), [(133, 1, 132), (17, 8, 132), (17, 8, 131), (7, 3, 20), (9, 1, 8)]
)
@pytest.mark.parametrize(
    "cost", [NO_OVERHEAD, CostModel(2.0, 0.01, 0.02), CostModel(2.0, 0.0, 0.02, merge_fixed=1e6), *COSTS.values()]
)
def test_one_item_more_than_ctas(requests, heads, num_ctas, cost):
    """133 equal items on 132 CTAs, 17 requests of 8 kv heads: Algorithm 1 needs two waves."""
    case = make_case([1] * requests, [32768] * requests, "full", num_kv_heads=heads)
    tile = TileClass(16, 64, num_ctas)
    shipped, plain = (schedule(case.problem, [tile], planner=p, cost=cost) for p in ("stream", "algorithm1"))
    assert stays_in_bound(shipped, cost, heads)
    assert not stays_in_bound(plain, cost, heads)


@pytest.mark.parametrize("name", COSTS)
def test_short_decode_stays_whole(name):
    """Cutting what one CTA reads in about an item's fixed cost cannot pay (P9)."""
    for kv_len in (1, 64, 128):
        case = make_case([1], [kv_len], num_kv_heads=8)
        plan = schedule(case.problem, [DECODE], cost=cost_model(name))
        assert len(plan.merge_slots) == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=20), st.sampled_from(list(COSTS.values())), st.integers(1, 40)
)
def test_splitting_pays(kv_lens, cost, num_ctas):
    """Where one longest-first assignment of whole tiles is inside the bound, cuts beat it, merge included."""
    case = make_case([1] * len(kv_lens), kv_lens, "full", num_kv_heads=1)
    tile = TileClass(16, 64, num_ctas)
    plan = schedule(case.problem, [tile], cost=cost)
    part = plan.classes[0]
    price = [cost.item(16, -(-kv // 64) * 64) for kv in sorted(kv_lens, reverse=True)]
    loads = [0.0] * num_ctas
    for p in price:
        loads[loads.index(min(loads))] += p
    whole = max(loads)
    if whole <= makespan_bound(part, cost, 1):
        merging = cost.merge_fixed if len(plan.merge_slots) else 0.0
        assert max(cta_loads(part, cost)) + merging <= whole * (1 + 1e-9)


@pytest.mark.parametrize("batch", [64, 1024])
def test_decode_batches_are_balanced(batch):
    """U(2048, 4096) tokens: no CTA has 10 % more than the mean; many items need no cut at all."""
    kv_lens = np.random.default_rng(0).integers(2048, 4097, batch)
    case = make_case([1] * batch, kv_lens, num_kv_heads=8)
    plan = schedule(case.problem, [DECODE], cost=cost_model("sm90"))
    loads = cta_loads(plan.classes[0], cost_model("sm90"))
    assert max(loads) <= 1.10 * np.mean(loads)
    assert batch < 1024 or len(plan.merge_slots) == 0


@settings(max_examples=50, deadline=None)
@given(cases(), tile_classes(), costs, st.sampled_from(["stream", "algorithm1"]))
def test_deterministic(case, classes, cost, planner):
    first, second = (schedule(case.problem, classes, planner=planner, cost=cost) for _ in range(2))
    for a, b in zip(first.classes, second.classes, strict=True):
        for name in ("items", "item_segments", "segments", "work_indptr"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
    assert np.array_equal(first.merge_entries, second.merge_entries)
    assert np.array_equal(first.merge_slots, second.merge_slots)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**25) | st.integers(0, 5), max_size=200))
def test_longest_first_order_is_a_stable_sort(sizes):
    found = longest_first_order(np.array(sizes, np.int64)).tolist()
    assert found == sorted(range(len(sizes)), key=lambda i: -sizes[i])


def test_arrays_of_any_kind_give_the_same_plan():
    """Read-only, strided and 32-bit inputs are converted, not compiled for."""
    case = make_case([3, 1], [50, 900])
    p = case.problem
    frozen = np.array(p.kv_len)
    frozen.setflags(write=False)
    indptr = np.repeat(p.qo_indptr, 2)[::2].astype(np.int32)
    other = type(p)(indptr, frozen, p.group_size, p.num_kv_heads, p.bands)
    a, b = (schedule(x, [DECODE], cost=cost_model("cpu")).classes[0].items for x in (p, other))
    assert np.array_equal(a, b)


def test_tensors_of_the_plan():
    case = make_case([1, 1, 200], [5000, 70, 200])
    plan = schedule(case.problem, [DECODE, TileClass(128, 128, 132)], cost=cost_model("cpu"))
    buffer = ArrayBuffer(torch.from_numpy(plan.buffer), plan.sections)
    parts, merges = class_plans(plan.tiles, plan.heads_per_item, buffer)
    for part, arrays in zip(parts, plan.classes, strict=True):
        for name in ("items", "item_segments", "segments", "work_indptr"):
            tensor = getattr(part, name)
            assert str(tensor.dtype) == "torch.int32"
            assert np.array_equal(tensor.numpy(), getattr(arrays, name))
    assert np.array_equal(merges.slots.numpy(), plan.merge_slots)
    assert np.array_equal(merges.indptr.numpy(), plan.merge_indptr)


def test_refusals_name_what_is_supported():
    case = make_case([1], [10])
    cost = cost_model("cpu")
    with pytest.raises(InvalidArgument, match="algorithm1"):
        schedule(case.problem, [DECODE], planner="greedy", cost=cost)
    with pytest.raises(InvalidArgument, match="at least one"):
        schedule(case.problem, [], cost=cost)
    with pytest.raises(InvalidArgument, match="num_ctas"):
        schedule(case.problem, [TileClass(16, 64, 0)], cost=cost)
    with pytest.raises(InvalidMetadata, match=r"2\*\*31"):
        schedule(make_case([2**29], [10]).problem, [DECODE], cost=cost)
    with pytest.raises(InvalidMetadata, match=r"2\*\*31"):
        schedule(make_case([1], [2**31]).problem, [DECODE], cost=cost)
    with pytest.raises(InvalidArgument, match="beta"):
        CostModel(fixed=1.0, alpha=0.0, beta=0.0)
