"""The library's variants mean what SEMANTICS says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dense import positions

from attnloom.errors import InvalidArgument, NotYetSupported, ParamError
from attnloom.variant import library
from attnloom.variant.evaluate import evaluate

LENGTHS = [(3, 5), (7, 9), (1, 1), (4, 4), (5, 2)]


def seen(variant, qo_len, kv_len, batch=0, **params):
    env = positions(qo_len, kv_len, batch=batch)
    mask = variant.program.mask
    return (
        torch.ones(qo_len, kv_len, dtype=torch.bool)
        if mask is None
        else evaluate(mask, {**env, **params}).expand(qo_len, kv_len)
    )


def lengths_params(variant):
    qo, kv = (np.array(column) for column in zip(*LENGTHS, strict=True))
    made = {name: one.from_lengths(qo, kv) for name, one in variant.params.items() if one.from_lengths is not None}
    assert all(value.dtype == np.int64 for value in made.values())
    return {name: torch.from_numpy(value) for name, value in made.items()}


def test_causal_with_more_rows_than_keys():
    assert seen(library.causal(), 4, 2).tolist() == [[False, False], [False, False], [True, False], [True, True]]


@pytest.mark.case("54")
@pytest.mark.parametrize("left", [0, 1, 15, 16, 17, 333])
def test_window(left):
    got = seen(library.sliding_window(left), 20, 40)
    want = torch.tensor([[kv >= row + 20 - left for kv in range(40)] for row in range(20)])
    assert torch.equal(got, want)


@pytest.mark.case("54")
@pytest.mark.parametrize("left", [-1, 1.0, True, "3"])
def test_windows_that_are_none(left):
    with pytest.raises(InvalidArgument, match="left"):
        library.sliding_window(left)


@pytest.mark.case("54")
def test_an_unlimited_window_is_no_mask():
    assert library.sliding_window(None).program.mask is None


@pytest.mark.case("6")
@pytest.mark.parametrize("cap", [30.0, 50, 50.0])
@pytest.mark.parametrize("fast_math", [False, True])
def test_soft_cap_saturates(cap, fast_math):
    logits = torch.tensor([1000.0, 3000, 4400, 5000, 1e4, -1e4, 3e38, -3e38])
    got = evaluate(library.soft_cap(cap, fast_math=fast_math).program.logits, {"logits": logits})
    assert got.tolist() == [cap] * 5 + [-cap, cap, -cap]


@pytest.mark.case("6")
def test_soft_cap_is_exact_between():
    logits = torch.linspace(-200, 200, 1001)
    got = evaluate(library.soft_cap(30.0).program.logits, {"logits": logits})
    want = 30.0 * torch.tanh(logits.double() / 30.0)
    assert (got.double() - want).abs().max() < 30 * 2**-22


@pytest.mark.case("6")
def test_soft_cap_zero_is_off():
    assert library.soft_cap(0).program.identity == library.full().program.identity


@pytest.mark.case("6")
@pytest.mark.parametrize("cap", [-1.0, math.inf, math.nan, -math.inf, True, "30"])
def test_soft_caps_that_are_none(cap):
    with pytest.raises(InvalidArgument, match="cap"):
        library.soft_cap(cap)


def test_alibi():
    slopes = library.alibi_slopes(4)
    env = {
        **positions(2, 3),
        "logits": torch.zeros(4, 2, 3),
        "qo_head": torch.arange(4)[:, None, None],
        "slopes": slopes,
    }
    got = evaluate(library.alibi(slopes).program.logits, env)
    for head, row, key in np.ndindex(4, 2, 3):
        assert got[head, row, key] == 2.0 ** -(2 * (head + 1)) * (key - (row + 1))


def test_alibi_slopes_of_powers_of_two_and_between():
    assert library.alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert library.alibi_slopes(1).tolist() == [2.0**-8]
    sixteen = [2.0 ** (-n / 2) for n in range(1, 17)]
    torch.testing.assert_close(
        library.alibi_slopes(12).double(), torch.tensor([2.0**-n for n in range(1, 9)] + sixteen[0:8:2]).double()
    )
    torch.testing.assert_close(library.alibi_slopes(3).double(), torch.tensor([2.0**-4, 2.0**-8, 2.0**-2]).double())
    for heads in range(1, 130):
        slopes = library.alibi_slopes(heads)
        assert slopes.shape == (heads,)
        assert slopes.dtype == torch.float32
        assert len(set(slopes.tolist())) == heads
        assert ((slopes > 0) & (slopes < 1)).all()
    with pytest.raises(InvalidArgument, match="num_qo_heads"):
        library.alibi_slopes(0)


def test_sinks_give_the_raw_logit_of_the_head():
    values = torch.tensor([-20.0, 0.0, 2.0, 30.0], dtype=torch.bfloat16)
    variant = library.sinks(values)
    assert variant.params["sinks"].dtype == torch.bfloat16
    got = evaluate(variant.program.sink, {"qo_head": torch.arange(4), "sinks": values})
    assert torch.equal(got, values.float())


def masks():
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(qo, kv, generator=generator) < 0.5 for qo, kv in LENGTHS]


def pack(mask):
    """Little-endian bits, a whole number of bytes."""
    flat = mask.reshape(-1).tolist()
    return [sum(bit << i for i, bit in enumerate(flat[at : at + 8])) for at in range(0, len(flat), 8)]


@pytest.mark.case("57")
def test_custom_and_packed_masks():
    dense = masks()
    flat = torch.cat([one.reshape(-1) for one in dense])
    bits = torch.tensor([byte for one in dense for byte in pack(one)], dtype=torch.uint8)
    plain, packed = library.custom_mask(flat), library.packed_mask(bits)
    for request, (qo_len, kv_len) in enumerate(LENGTHS):
        for variant, params in ((plain, {"mask": flat}), (packed, {"bits": bits})):
            got = seen(variant, qo_len, kv_len, request, **params, **lengths_params(variant))
            assert torch.equal(got, dense[request])


@pytest.mark.case("57")
def test_tree_masks_store_only_the_new_tokens():
    trees = [torch.rand(qo, qo, generator=torch.Generator().manual_seed(qo)) < 0.5 for qo, _ in LENGTHS]
    flat = torch.cat([one.reshape(-1) for one in trees])
    bits = torch.tensor([byte for one in trees for byte in pack(one)], dtype=torch.uint8)
    plain, packed = library.tree_mask(flat), library.packed_tree_mask(bits)
    for request, (qo_len, kv_len) in enumerate(LENGTHS):
        want = torch.ones(qo_len, kv_len, dtype=torch.bool)
        first = kv_len - qo_len
        for row, key in np.ndindex(qo_len, kv_len):
            if key >= first:
                want[row, key] = trees[request][row, key - first]
        for variant, params in ((plain, {"tree": flat}), (packed, {"tree_bits": bits})):
            got = seen(variant, qo_len, kv_len, request, **params, **lengths_params(variant))
            assert torch.equal(got, want)


@pytest.mark.case("57")
@pytest.mark.parametrize(
    "make",
    [
        lambda: library.custom_mask(torch.zeros(3, 5, dtype=torch.bool)),
        lambda: library.custom_mask(torch.zeros(15, dtype=torch.uint8)),
        lambda: library.packed_mask(torch.zeros(2, dtype=torch.int32)),
        lambda: library.packed_mask(torch.zeros(2, dtype=torch.bool)),
        lambda: library.tree_mask(torch.zeros(9)),
    ],
)
def test_masks_of_another_type_or_shape(make):
    with pytest.raises(ParamError, match="Declared: 1-D"):
        make()


def test_document_mask():
    q_ids, kv_ids = torch.tensor([1, 1, 2, 5, 5]), torch.tensor([1, 2, 2, 5, 7, 5, 5])
    variant = library.document_mask(q_ids, kv_ids)
    assert variant.params["q_ids"].dtype == torch.int64
    starts = {"q_start": torch.tensor([0, 3]), "kv_start": torch.tensor([0, 3])}
    params = {"q_ids": q_ids, "kv_ids": kv_ids, **starts}
    assert torch.equal(seen(variant, 3, 3, 0, **params), q_ids[:3, None] == kv_ids[:3])
    assert torch.equal(seen(variant, 2, 4, 1, **params), q_ids[3:, None] == kv_ids[3:])
    made = library.document_mask().params
    assert made["q_start"].from_lengths(np.array([3, 2]), np.array([3, 4])).tolist() == [0, 3]
    assert made["kv_start"].from_lengths(np.array([3, 2]), np.array([4, 3])).tolist() == [0, 4]


@pytest.mark.parametrize("prefix", [0, 2, 9])
def test_prefix_lm(prefix):
    want = torch.tensor([[key <= row + 2 or key < prefix for key in range(5)] for row in range(3)])
    assert torch.equal(seen(library.prefix_lm(prefix), 3, 5, prefix_len=prefix), want)
    lengths = torch.tensor([7, prefix, 1])
    assert torch.equal(seen(library.prefix_lm(lengths), 3, 5, 1, prefix_len=lengths), want)


def test_sigmoid():
    logits = torch.linspace(-90, 90, 7)
    got = evaluate(library.sigmoid(1.5).program.logits, {"logits": logits, "bias": 1.5})
    torch.testing.assert_close(got.double(), 1 / (1 + torch.exp(-(logits.double() + 1.5))), rtol=1e-6, atol=1e-30)
    assert library.sigmoid().params["bias"].default == 0.0
    with pytest.raises(ParamError, match="bias"):
        library.sigmoid("half")


@pytest.mark.parametrize("name", ["rope", "streaming_llm"])
def test_variants_that_come_later(name):
    with pytest.raises(NotYetSupported, match=name):
        getattr(library, name)(4)


def test_the_exported_names_exist():
    for name in library.__all__:
        assert callable(getattr(library, name))
        assert getattr(library, name).__doc__
