"""Bands of ordinary masks: few, exact, the same however the mask is written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense import assert_exact, bands_of, call, in_bands, positions, row

from attnloom.errors import ParamError
from attnloom.variant import Variant, library, param
from attnloom.variant.bounds import compile_bounds

INF = 2**40
LENGTHS = [(1, 9), (5, 9), (9, 9), (9, 4), (3, 0), (0, 7), (7, 31)]
EVERYTHING = [-INF, INF, -INF, INF, -INF, INF]


def mask(functor, **params):
    return Variant(logits_mask=functor, params=params)


def test_causal_is_one_band_each_way():
    bands = bands_of(library.causal(), LENGTHS)
    assert bands.may.tolist() == [[[-INF, INF, -INF, INF, -INF, 0]]]
    assert bands.not_must.tolist() == [[[-INF, INF, -INF, INF, 1, INF]]]
    assert bands.may.dtype == bands.not_must.dtype == np.int64


def test_causal_window_is_one_band_and_two():
    bands = bands_of(library.causal() & library.sliding_window(4), LENGTHS)
    assert bands.may.tolist() == [[[-INF, INF, -INF, INF, -4, 0]]]
    assert sorted(band[4:] for band in bands.not_must[0].tolist()) == [[-INF, -5], [1, INF]]


def test_no_mask_and_no_key():
    everything = bands_of(library.full(), LENGTHS)
    assert everything.may.tolist() == [[EVERYTHING]]
    assert everything.not_must.shape == (1, 0, 6)
    nothing = bands_of(~library.full(), LENGTHS)
    assert nothing.may.shape == (1, 0, 6)
    assert nothing.not_must.tolist() == [[EVERYTHING]]


def test_prefix_lm_has_few_bands_for_any_batch():
    prefix = torch.tensor([0, 3, 9, 100, 2, 1, 30])
    bands = bands_of(library.prefix_lm(prefix), LENGTHS)
    assert bands.may.shape == (len(LENGTHS), 2, 6)
    assert bands.not_must.shape == (len(LENGTHS), 1, 6)


WRITTEN = {
    "causal": [
        lambda q_pos, kv_pos: kv_pos <= q_pos,
        lambda q_pos, kv_pos: q_pos >= kv_pos,
        lambda q_pos, kv_pos: q_pos - kv_pos >= 0,
        lambda q_pos, kv_pos: ~(kv_pos > q_pos),
        lambda q_pos, kv_pos: (kv_pos < q_pos) | (kv_pos == q_pos),
        lambda q_pos, kv_pos: kv_pos - q_pos < 1,
        lambda q_pos, kv_pos: 3 * kv_pos <= q_pos + q_pos + q_pos,
        lambda q_pos, kv_pos: torch.where(kv_pos > q_pos, False, True),
        lambda q_pos, kv_pos: torch.logical_not(torch.gt(kv_pos, q_pos)),
        lambda q_idx, kv_pos, qo_len, kv_len: kv_pos <= q_idx + (kv_len - qo_len),
        lambda q_pos, kv_pos: torch.minimum(q_pos, kv_pos) == kv_pos,
        lambda q_pos, kv_pos: torch.maximum(kv_pos - q_pos, torch.zeros_like(kv_pos)) == 0,
        lambda q_pos, kv_pos: (kv_pos <= q_pos).to(torch.int32) * 2 > 1,
        lambda q_pos, kv_pos: (kv_pos - q_pos).float() <= 0.5,
        lambda q_pos, kv_pos: kv_pos * 0.5 <= q_pos * 0.5,
    ],
    "symmetric window": [
        lambda q_pos, kv_pos: abs(q_pos - kv_pos) <= 4,
        lambda q_pos, kv_pos: (kv_pos - q_pos <= 4) & (q_pos - kv_pos <= 4),
        lambda q_pos, kv_pos: torch.clamp(kv_pos - q_pos, -4, 4) == kv_pos - q_pos,
        lambda q_pos, kv_pos: ~((q_pos - kv_pos).abs() > 4),
    ],
    "first sixty-four": [
        lambda kv_pos: kv_pos < 64,
        lambda kv_pos: kv_pos // 16 < 4,
        lambda kv_pos: kv_pos // 16 <= 3,
        lambda kv_pos: -(kv_pos // 8) > -8,
        lambda kv_pos: 2 * (kv_pos // 16) <= 7,
        lambda kv_pos: kv_pos / 2 < 32,
    ],
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_bands_however_it_is_written(name):
    first, *others = WRITTEN[name]
    expected = bands_of(mask(first), LENGTHS)
    assert_exact(mask(first), first, LENGTHS, {})
    for functor in others:
        bands = bands_of(mask(functor), LENGTHS)
        for table, same in ((bands.may, expected.may), (bands.not_must, expected.not_must)):
            assert table.shape[1:] == same.shape[1:]
            assert (table == same).all()
        assert_exact(mask(functor), functor, LENGTHS, {})


MASKS = [
    (lambda q_pos, kv_pos, w: kv_pos >= q_pos - w, {"w": 3}),
    (lambda q_pos, kv_pos, w: abs(q_pos - kv_pos) < w, {"w": 2.5}),
    (lambda q_pos, kv_pos, w: kv_pos - q_pos <= w, {"w": float("inf")}),
    (lambda q_pos, kv_pos, w: kv_pos - q_pos <= w, {"w": float("-inf")}),
    (lambda kv_pos, kv_len: kv_pos >= kv_len - 5, {}),
    (lambda q_idx, qo_len: q_idx + 2 < qo_len, {}),
    (lambda kv_pos, q_idx: (kv_pos < 4) ^ (q_idx >= 3), {}),
    (lambda kv_pos, qo_len: (kv_pos > 3) & (qo_len > 4), {}),
    (lambda kv_pos, on: (kv_pos > 3) | on, {"on": True}),
    (lambda kv_pos, q_pos, on: torch.where(on, kv_pos <= q_pos, kv_pos > 2), {"on": torch.tensor(False)}),
    (lambda kv_pos, q_pos, batch, ends: (kv_pos <= q_pos) | (kv_pos < ends[batch]), {"ends": torch.arange(7) * 3 - 2}),
    (lambda kv_pos, batch, ends: (kv_pos >= ends[batch, 0]) & (kv_pos < ends[batch, 1]),
     {"ends": torch.tensor([[0, 2], [3, 3], [8, 1], [0, 4], [1, 5], [2, 3], [10, 20]])}),
    (lambda kv_pos, q_pos, batch, w: (kv_pos <= q_pos) & (kv_pos > q_pos - w[batch]), {"w": torch.arange(7)}),
    (lambda kv_pos, q_pos, a, b: (kv_pos < a) ^ (kv_pos < b) ^ (kv_pos <= q_pos), {"a": 7, "b": 3}),
    (lambda kv_pos, q_pos, kv_len: (kv_pos < kv_len // 2) | (kv_pos == q_pos), {}),
    (lambda kv_pos, q_pos: (kv_pos <= q_pos) & (q_pos != 6), {}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MASKS)))
def test_exact_where_every_comparison_is_understood(number):
    functor, params = MASKS[number]
    assert_exact(mask(functor, **params), functor, LENGTHS, params)


def test_unknown_parts_leave_the_rest_sharp():
    def functor(q_pos, kv_pos, qo_head, table):
        return (kv_pos <= q_pos) & table[qo_head]

    bands = bands_of(mask(functor, table=torch.tensor([True, False])), LENGTHS)
    assert bands.may.tolist() == [[[-INF, INF, -INF, INF, -INF, 0]]]
    assert bands.not_must.tolist() == [[EVERYTHING]]


def test_tree_mask_is_full_over_the_prefix():
    bands = bands_of(library.tree_mask(), [(4, 10), (4, 4)], {})
    assert bands.not_must[:, :, :2].tolist() == [[[6, INF]], [[0, INF]]]
    assert np.array_equal(bands.may, np.broadcast_to(np.array(EVERYTHING), (2, 1, 6)))


def test_structural_params_are_those_that_shape_the_bands():
    def functor(kv_pos, q_pos, batch, *, ends, w, table):
        return (kv_pos < ends[batch]) & (kv_pos >= q_pos - w) & (table[kv_pos] > 0)

    variant = mask(functor, ends=torch.tensor([4]), w=3, table=torch.ones(9))
    assert compile_bounds(variant.program).structural_params == {"ends", "w"}
    assert compile_bounds(library.custom_mask().program).structural_params == frozenset()


def test_a_value_that_is_not_known_yet_is_unknown():
    variant = library.causal() & library.prefix_lm()
    bands = bands_of(variant, LENGTHS, {"prefix_len": None})
    assert bands.may.tolist() == [[[-INF, INF, -INF, INF, -INF, 0]]]
    assert bands.not_must.tolist() == [[[-INF, INF, -INF, INF, 1, INF]]]


def test_given_positions_make_q_idx_unknown():
    variant = mask(lambda q_idx, kv_pos, q_pos: (kv_pos <= q_idx) & (kv_pos <= q_pos))
    bands = bands_of(variant, [(3, 8)], default=False)
    assert bands.may.tolist() == [[[-INF, INF, -INF, INF, -INF, 0]]]
    assert bands.not_must.tolist() == [[EVERYTHING]]


def test_given_positions_are_exact_in_their_own_coordinates():
    functor = WRITTEN["symmetric window"][0]
    bands = bands_of(mask(functor), [(4, 20)], default=False)
    env = positions(4, 20, q_pos=torch.tensor([19, 0, 7, 300]))
    assert torch.equal(in_bands(bands.may[0], env), call(functor, env))
    assert torch.equal(in_bands(bands.not_must[0], env), ~call(functor, env))


def test_float_thresholds_never_claim_what_rounding_may_change():
    def functor(kv_pos, kv_len):
        return kv_pos < 0.3 * kv_len

    for kv_len in (10, 20, 1000, 99_990, 1_000_000):
        bands = bands_of(mask(functor), [(1, kv_len)])
        seen = kv_len * 3 // 10
        window = torch.arange(max(seen - 40, 0), min(seen + 40, kv_len))
        env = {"kv_pos": window, "q_pos": torch.full_like(window, kv_len - 1)}
        exact = window.double() < torch.tensor(0.3, dtype=torch.float64) * kv_len
        for value in (exact, window < torch.tensor(0.3) * torch.tensor(float(kv_len))):
            assert not (value & ~in_bands(bands.may[0], env)).any()
            assert not (~value & ~in_bands(bands.not_must[0], env)).any()
        undecided = in_bands(bands.may[0], env) & in_bands(bands.not_must[0], env)
        assert int(undecided.sum()) <= 1 + kv_len // 200_000


@pytest.mark.parametrize(
    "functor",
    [
        lambda kv_pos: kv_pos * 1e-300 < 1e-300,
        lambda kv_pos: kv_pos * 1e200 * 1e200 < 1.0,
        lambda kv_pos: kv_pos + 1e300 * 1e10 > 1.0,
        lambda kv_pos, w: kv_pos * w < 1e30,
        lambda kv_pos, w: kv_pos * 1.0 < w * w * w,
        lambda kv_pos, kv_len: kv_pos / 3 < kv_len / 7,
    ],
)
def test_floats_of_any_size_are_bounded(functor):
    params = {"w": 3e30} if "w" in functor.__code__.co_varnames else {}
    bands = bands_of(mask(functor, **params), [(2, 30)])
    env = positions(2, 30)
    seen = call(functor, {**env, **params})
    assert not (seen & ~in_bands(row(bands.may, 0), env)).any()
    assert not (~seen & ~in_bands(row(bands.not_must, 0), env)).any()


def test_nan_is_decided_by_the_device():
    bands = bands_of(mask(lambda kv_pos, w: kv_pos < w, w=float("nan")), [(2, 5)])
    assert in_bands(row(bands.may, 0), positions(2, 5)).all()
    assert in_bands(row(bands.not_must, 0), positions(2, 5)).all()


def test_too_few_elements_for_the_batch():
    with pytest.raises(ParamError, match="prefix_len"):
        bands_of(library.prefix_lm(torch.tensor([1, 2])), LENGTHS)


def test_empty_batch():
    empty = np.zeros(0, dtype=np.int64)
    bounds = compile_bounds(library.prefix_lm().program)
    bands = bounds.bands(empty, empty, {"prefix_len": np.zeros(0, dtype=np.int32)}, True)
    assert bands.may.shape[0] == bands.not_must.shape[0] == 0
    assert bands.may.shape[2] == bands.not_must.shape[2] == 6


def test_one_row_where_only_scalars_decide():
    bands = bands_of(library.prefix_lm(5), LENGTHS)
    assert bands.may.shape[0] == bands.not_must.shape[0] == 1
    assert_exact(
        library.prefix_lm(5), lambda q_pos, kv_pos: (kv_pos <= q_pos) | (kv_pos < 5), LENGTHS, {"prefix_len": 5}
    )


def test_constant_bands_are_made_once():
    bounds = compile_bounds((library.causal() & library.sliding_window(9)).program)
    one, two = np.array([1]), np.array([1, 2])
    assert bounds.bands(one, one, {}, True) is bounds.bands(two, two, {}, True)


def test_bounds_are_kept_on_the_program():
    variant = Variant(logits_mask=lambda kv_pos, w: kv_pos > w, params={"w": param(torch.int32, 0)})
    assert compile_bounds(variant.program) is compile_bounds(variant.program)


def test_a_mask_of_a_thousand_parts_is_analysed():
    def functor(q_pos, kv_pos):
        seen = kv_pos <= q_pos
        for i in range(1000):
            seen = seen & (kv_pos + i >= 0) & (kv_pos < 2000 + (i - i))
        position = kv_pos
        for _ in range(1000):
            position = position + 1
        return seen & (position < 1005)

    assert_exact(mask(functor), functor, [(9, 9)], {})


def test_many_thresholds_fall_back_to_everything():
    def functor(q_pos, kv_pos):
        seen = kv_pos == q_pos
        for i in range(20):
            seen = seen | ((kv_pos == 7 * i) & (q_pos == 3 * i) & (kv_pos - q_pos != i))
        return seen

    bands = bands_of(mask(functor), [(9, 9)])
    assert bands.may.tolist() == [[EVERYTHING]]
    assert bands.not_must.tolist() == [[EVERYTHING]]
