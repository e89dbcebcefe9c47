"""⊕ and the completion of a state, by numbers that one can reckon by hand: weights are e^lse."""

import math

import pytest
import torch

import attnloom as al
from attnloom.impl.states import finish_state, merge_state, merge_states

NINF = -math.inf


def state(value, weight, dtype=torch.float32):
    """One row, one head: out (value, -value), lse = log weight."""
    out = torch.tensor([[[value, -value]]], dtype=dtype)
    return out, torch.full((1, 1), math.log(weight) if weight else NINF)


def numbers(out, lse):
    assert out[0, 0, 1] == -out[0, 0, 0]
    return out[0, 0, 0].item(), lse[0, 0].item()


def test_two_states_are_weighted_by_their_sums():
    out, lse = numbers(*merge_state(*state(2.0, 1), *state(6.0, 3)))  # (1·2 + 3·6) / 4
    assert out == pytest.approx(5.0, rel=1e-6)
    assert lse == pytest.approx(math.log(4), rel=1e-6)


def test_equal_sums_give_the_mean():
    out, lse = numbers(*merge_state(*state(1.0, 7), *state(4.0, 7)))
    assert out == pytest.approx(2.5, rel=1e-6)
    assert lse == pytest.approx(math.log(14), rel=1e-6)


def test_three_states_in_any_order_and_grouping():
    parts = [state(8.0, 1), state(3.0, 2), state(-1.0, 5)]  # (8 + 6 - 5) / 8
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        outs, lses = zip(*(parts[i] for i in order), strict=True)
        pairwise = merge_state(*merge_state(outs[0], lses[0], outs[1], lses[1]), outs[2], lses[2])
        for merged in (merge_states(outs, lses), pairwise):
            out, lse = numbers(*merged)
            assert out == pytest.approx(9 / 8, rel=1e-6)
            assert lse == pytest.approx(math.log(8), rel=1e-6)


@pytest.mark.parametrize("payload", [0.0, 7.0, math.nan, math.inf])
def test_an_empty_state_is_the_identity_whatever_lies_under_it(payload):
    empty = torch.full((1, 1, 2), payload), torch.full((1, 1), NINF)
    full = state(3.0, 5)
    for merged in (merge_state(*empty, *full), merge_state(*full, *empty)):
        assert torch.equal(merged[0], full[0])
        assert torch.equal(merged[1], full[1])


def test_only_empty_states_give_exactly_zero_and_minus_infinity():
    out, lse = merge_states([torch.full((2, 1, 2), math.nan)] * 3, [torch.full((2, 1), NINF)] * 3)
    assert torch.equal(out, torch.zeros(2, 1, 2))
    assert torch.equal(lse, torch.full((2, 1), NINF))


@pytest.mark.parametrize("shift", [-1e4, -200.0, 200.0, 1e4])
def test_sums_beyond_the_range_of_exp(shift):
    parts = [state(2.0, 1), state(6.0, 3)]
    out, lse = numbers(*merge_states([o for o, _ in parts], [x + shift for _, x in parts]))
    assert out == pytest.approx(5.0, rel=2e-3)  # lse near 1e4 is rounded to 1e-3
    assert lse == pytest.approx(shift + math.log(4), rel=1e-6)


def test_a_far_smaller_sum_vanishes_without_noise():
    out, lse = numbers(
        *merge_states([state(2.0, 1)[0], state(6.0, 1)[0]], [torch.zeros(1, 1), torch.full((1, 1), 200.0)])
    )
    assert (out, lse) == (6.0, 200.0)


def test_out_keeps_its_dtype_and_lse_is_float32():
    out, lse = merge_state(*state(2.0, 1, torch.bfloat16), *state(6.0, 3, torch.bfloat16))
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert out[0, 0, 0].item() == 5.0


def finished(variant, out, lse, **params):
    operands = {name: param.default for name, param in variant.params.items() if param.default is not None}
    return finish_state(out, lse, variant.program, {**operands, **params})


def test_a_sink_takes_its_share_once():
    variant = al.variants.sinks(torch.tensor([0.0]))  # weight 1 beside 3
    out, lse = numbers(*finished(variant, *state(4.0, 3)))
    assert out == pytest.approx(3.0, rel=1e-6)
    assert lse == pytest.approx(math.log(4), rel=1e-6)


def test_each_head_has_its_own_sink():
    out, lse = torch.tensor([[[4.0], [4.0], [4.0]]]), torch.zeros(1, 3)  # weight 1 each
    done, total = finished(al.variants.sinks(torch.tensor([0.0, math.log(3), NINF])), out, lse)
    torch.testing.assert_close(done[0, :, 0], torch.tensor([2.0, 1.0, 4.0]))
    torch.testing.assert_close(total[0], torch.tensor([math.log(2), math.log(4), 0.0]))


@pytest.mark.parametrize("payload", [0.0, math.nan])
def test_a_row_without_keys_has_the_sink_as_lse(payload):
    variant = al.variants.sinks(torch.tensor([1.5]))
    out, lse = finished(variant, torch.full((1, 1, 2), payload), torch.full((1, 1), NINF))
    assert lse.item() == 1.5
    if payload == 0.0:  # a raw state of the engine holds 0 here
        assert torch.equal(out, torch.zeros(1, 1, 2))


def test_the_output_transform_comes_after_the_sink_and_sees_head_and_lse():
    variant = al.variants.sinks(torch.zeros(2)) & al.Variant(output_transform=lambda x, head, lse: x * (head + 1) + lse)
    out, lse = finished(variant, torch.full((1, 2, 1), 4.0), torch.full((1, 2), math.log(3)))
    expected = torch.tensor([[[3.0 + math.log(4)], [6.0 + math.log(4)]]])
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, torch.full((1, 2), math.log(4)))


def test_without_softmax_there_is_no_lse_and_the_output_transform_still_runs():
    variant = al.variants.sigmoid() & al.Variant(output_transform=lambda x, gain: x * gain, params={"gain": 2.0})
    out, lse = finished(variant, torch.full((1, 1, 2), 4.0), None, gain=3.0)
    assert lse is None
    assert torch.equal(out, torch.full((1, 1, 2), 12.0))


def test_nothing_to_finish_changes_nothing():
    out, lse = state(4.0, 3, torch.float16)
    done, total = finished(al.Variant(), out, lse)
    assert torch.equal(done, out)
    assert done.dtype == torch.float16
    assert torch.equal(total, lse)
