"""Tiles of real variants: counted exactly, and the same whether built in or written by a user."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_problems import Mask, make_case
from test_tiles import brute_tiles, planned_tiles

import attnloom as al
from attnloom.schedule.cost import cost_model
from attnloom.schedule.planner import schedule
from attnloom.schedule.work import TileClass
from attnloom.variant.bounds import compile_bounds

causal, window, prefix = al.variants.causal, al.variants.sliding_window, al.variants.prefix_lm
CLASSES = (TileClass(16, 8, 7), TileClass(48, 16, 5))
PREFIXES = np.array([0, 5, 30, 77, 200], np.int32)


def seen_if(rule):
    return lambda q, kv, i: np.broadcast_to(rule(q, kv, i), np.broadcast_shapes(q.shape, kv.shape))


# variant, the same mask on dense positions (q, kv, request)
VARIANTS = {
    "full": (al.Variant(), seen_if(lambda q, k, i: np.bool_(True))),
    "causal": (causal(), seen_if(lambda q, k, i: k <= q)),
    "window": (window(11), seen_if(lambda q, k, i: k >= q - 11)),
    "causal window": (causal() & window(40), seen_if(lambda q, k, i: (k <= q) & (k >= q - 40))),
    "self only": (causal() & window(0), seen_if(lambda q, k, i: k == q)),
    "prefix": (prefix(21), seen_if(lambda q, k, i: (k <= q) | (k < 21))),
    "prefix by request": (prefix(torch.from_numpy(PREFIXES)), seen_if(lambda q, k, i: (k <= q) | (k < PREFIXES[i]))),
    "prefix and window": (prefix(21) & window(9), seen_if(lambda q, k, i: ((k <= q) | (k < 21)) & (k >= q - 9))),
    "window or prefix, causal": (
        (window(9) | prefix(torch.from_numpy(PREFIXES))) & causal(),
        seen_if(lambda q, k, i: k <= q),
    ),
    "first keys and window": (
        al.Variant(logits_mask=lambda q_pos, kv_pos: ((kv_pos < 4) | (kv_pos >= q_pos - 17)) & (kv_pos <= q_pos)),
        seen_if(lambda q, k, i: ((k < 4) | (k >= q - 17)) & (k <= q)),
    ),
    "not in the window": (~window(15) & causal(), seen_if(lambda q, k, i: k < q - 15)),
}


def variant_case(variant, rule, lens, **options):
    """The case with the variant's own bands."""
    qo_lens, kv_lens = zip(*lens, strict=True)
    case = make_case(qo_lens, kv_lens, Mask("", rule, lambda i: [], lambda i: []), **options)
    params = {name: p.default for name, p in variant.program.params.items()}
    params = {name: p.numpy() if isinstance(p, torch.Tensor) else p for name, p in params.items()}
    bands = compile_bounds(variant.program).bands(np.diff(case.problem.qo_indptr), case.problem.kv_len, params, True)
    return replace(case, problem=replace(case.problem, bands=bands))


lengths = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 260)), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(VARIANTS)), lengths, st.integers(1, 5))
def test_tiles_equal_a_brute_force_count(name, lens, group_size):
    case = variant_case(*VARIANTS[name], lens, group_size=group_size)
    plan = schedule(case.problem, CLASSES, cost=cost_model("cpu"))
    for part in plan.classes:
        for (request, row), found in planned_tiles(part).items():
            assert found == brute_tiles(case, request, slice(row, row + part.tile.tile_q), part.tile.tile_kv)


USERS = {
    "causal": lambda q_pos, kv_pos: q_pos >= kv_pos,
    "causal window": lambda q_pos, kv_pos: torch.logical_and(q_pos - kv_pos >= 0, q_pos - kv_pos <= 40),
    "prefix": lambda q_idx, qo_len, kv_len, kv_pos: (kv_pos < 21) | (kv_pos <= q_idx + kv_len - qo_len),
}


@pytest.mark.parametrize("name", USERS)
def test_a_users_own_mask_gives_the_same_plan_item_for_item(name):
    lens = [(1, 250), (33, 120), (0, 5), (70, 70), (5, 2)]
    built_in, rule = VARIANTS[name]
    plans = [
        schedule(variant_case(v, rule, lens).problem, CLASSES, cost=cost_model("cpu"))
        for v in (built_in, al.Variant(logits_mask=USERS[name]))
    ]
    assert np.array_equal(plans[0].buffer, plans[1].buffer)
    assert plans[0].sections == plans[1].sections
