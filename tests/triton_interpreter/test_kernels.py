"""What the cases do not ask of the Triton kernels: values that only a launch behind the API's checks can bring."""

from __future__ import annotations

import math

import pytest
import torch
from harness import Runner, check, compare, expect
from oracle import Functors
from variant_pairs import Pair

import attnloom as al
from attnloom.impl.triton import TritonImplementation
from attnloom.testing.inputs import Heads, Placement, random_sequences

RUNNER = Runner("triton")
HEADS = Heads.of(4, 2, 16, torch.float32)
QO, KV = [3, 1, 20], [13, 70, 45]


def batch_of(placement: Placement):
    return RUNNER.place(random_sequences(QO, KV, HEADS), placement)


@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
@pytest.mark.parametrize("page", [-1, -(2**31), 2**31 - 1, 10**6])
def test_no_page_id_leads_out_of_the_pool(launched, page_size, page):
    """Device tables are not validated: a wrong id reads some page of the pool, here one that is not poison."""
    batch = batch_of(Placement("table", page_size, poison="zero"))
    attn = RUNNER.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=7)
    attn.run(batch.q, *batch.caches)
    [(plan, tensors)] = launched
    plan.levels[0].pages.fill_(page)
    tensors.out.fill_(math.nan)
    TritonImplementation().launch(plan, tensors)
    end = 0 if page < 0 else batch.pool.k_nhd.shape[0] - 1
    wanted = batch.pool.v_nhd[end]
    assert tensors.out.isfinite().all()
    assert tensors.out.min() >= min(float(wanted.min()), 0.0) - 1e-6
    assert tensors.out.max() <= max(float(wanted.max()), 0.0) + 1e-6


def rows_only(q_pos):
    return q_pos * 0.1


def keys_only(kv_pos):
    return kv_pos * -0.3


@pytest.mark.parametrize("transform", [rows_only, keys_only])
@pytest.mark.parametrize("softmax", [True, False])
def test_a_logits_transform_may_leave_the_logits_out(transform, softmax):
    variant = al.Variant(logits_transform=transform, use_softmax=softmax)
    check(RUNNER, batch_of(Placement()), Pair(variant, Functors((transform,), use_softmax=softmax)), num_ctas=(1, 7))


def test_an_output_transform_may_leave_x_out():
    def heads_alone(head):
        return head * 1.5

    def as_the_oracle_needs_it(x, head):
        return x * 0 + heads_alone(head)

    variant = al.Variant(output_transform=heads_alone)
    check(RUNNER, batch_of(Placement()), Pair(variant, Functors(output=(as_the_oracle_needs_it,))), num_ctas=(1, 7))


@pytest.mark.parametrize("num_ctas", [1, 24])
def test_rows_of_nothing_but_nan_are_nan_and_spoil_no_other(num_ctas):
    def odd_rows_are_nan(logits, q_pos):
        return torch.where(q_pos % 2 == 1, logits * math.nan, logits)

    batch = batch_of(Placement())
    attn = RUNNER.for_batch(batch, variant=al.Variant(logits_transform=odd_rows_are_nan))
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
    out, lse = attn.run(batch.q, *batch.caches, return_lse=True)
    plain = expect(batch, Functors())
    odd = torch.cat([torch.arange(qo) + kv - qo for qo, kv in zip(QO, KV, strict=True)]) % 2 == 1
    assert out[odd].isnan().all()
    assert lse[odd].isnan().all()
    exact_out, exact_lse = (torch.cat([getattr(s, name) for s in plain.exact]).float() for name in ("out", "lse"))
    compare(batch, torch.where(odd[:, None, None], exact_out, out), torch.where(odd[:, None], exact_lse, lse), plain)


@pytest.mark.parametrize("scale", [1e-50, 1e-42, 1e-30])
def test_a_scale_too_small_for_float32_leaves_the_mean(scale):
    batch = batch_of(Placement())
    check(RUNNER, batch, RUNNER.pair("causal", batch.sequences), num_ctas=(7,), sm_scale=scale)
