"""Values that callers really hand over: numpy numbers, tables for other heads, things that are no tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attnloom as al
from attnloom import errors
from attnloom.testing.inputs import Heads, Placement, place, random_sequences


def engine(**options):
    given = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 16, "dtype": torch.float32, "device": "cpu"}
    return al.BatchAttention(**{**given, **options})


def test_numpy_numbers_are_numbers():
    attn = engine(num_qo_heads=np.int64(4), num_kv_heads=np.int32(2), head_dim=np.int64(16), sm_scale=np.float32(0.5))
    assert (attn.spec.num_qo_heads, attn.spec.sm_scale) == (4, 0.5)
    assert type(attn.spec.num_qo_heads) is int
    kv = al.PagedKV([0, 1], [0], [1], page_size=np.int64(4))
    attn.plan([0, 1], kv, num_ctas=np.int64(3))
    assert attn.current_plan.classes[0].tile.num_ctas == 3


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        (al.variants.sinks(torch.zeros(8)), "sinks"),  # those of the whole model, on a rank with half the heads
        (al.variants.alibi(torch.zeros(5)), "slopes"),
        (al.variants.alibi(torch.zeros(3)), "slopes"),
    ],
)
def test_tables_for_other_heads_are_refused(variant, name):
    attn = engine(variant=variant)
    with pytest.raises(errors.ParamError, match=rf"(?s){name}.*4 values"):
        attn.plan([0, 1], al.RaggedKV([0, 3]))


def test_a_table_for_more_requests_may_be_a_buffer():
    attn = engine(variant=al.variants.prefix_lm(torch.tensor([1, 2, 9, 9])))
    attn.plan([0, 1, 2], al.RaggedKV([0, 3, 5]))


@pytest.mark.parametrize("count", [2**40, 1 << 17, 0, True, 1.5])
def test_worker_counts_that_no_device_has(count):
    with pytest.raises(errors.InvalidArgument, match="num_ctas"):
        engine().plan([0, 1], al.RaggedKV([0, 3]), num_ctas=count)


@pytest.mark.parametrize("page_size", [2**70, 0, True, "16"])
def test_page_sizes_that_are_none(page_size):
    with pytest.raises(errors.InvalidArgument, match="page_size"):
        al.PagedKV([0, 1], [0], [1], page_size=page_size)


def caches() -> tuple[torch.Tensor, ...]:
    """K and V pools of pages of 4 tokens."""
    return place(random_sequences([1], [5], Heads.of(4, 2, 16, torch.float32)), Placement(page_size=4)).caches


@pytest.mark.parametrize("slots", [None, "ab", [[0], [1, 2]], [0.5, 1.0]])
def test_slots_that_are_no_index_array(slots):
    rows = torch.zeros(2, 2, 16)
    with pytest.raises(errors.InvalidMetadata, match="slots"):
        al.append_kv(rows, rows, *caches(), slots)


def test_rows_that_are_no_tensor():
    rows = torch.zeros(2, 2, 16)
    with pytest.raises(errors.DtypeMismatch, match="v has dtype NoneType"):
        al.append_kv(rows, None, *caches(), [0, 1])


def test_lengths_functions_that_return_nothing():
    first = al.param(dtype=torch.int64, ndim=1, from_lengths=lambda qo_len, kv_len: None)
    variant = al.Variant(logits_mask=lambda kv_pos, batch, first: kv_pos >= first[batch], params={"first": first})
    with pytest.raises(errors.ParamError, match=r"first.*from_lengths returned NoneType"):
        engine(variant=variant).plan([0, 1], al.RaggedKV([0, 3]))


def test_a_scale_that_is_no_number():
    rows = torch.zeros(1, 2, 16)
    with pytest.raises(errors.InvalidArgument, match="sm_scale"):
        al.attention(rows, rows, rows, sm_scale=[1])
