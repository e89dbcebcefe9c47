"""The Triton kernels against the dense oracle: layouts, tails, splits, every kind of functor, poison throughout."""

from __future__ import annotations

import pytest
import torch
from harness import Runner, check, expect
from variant_pairs import VARIANTS

import attnloom as al
from attnloom.testing.inputs import random_sequences
from attnloom.testing.placement import Heads, Placement

RUNNER = Runner("triton")
QO, KV = [3, 1, 20, 0, 2], [13, 70, 45, 5, 0]
CTAS = (1, 7)


def sequences(heads: Heads):
    return random_sequences(QO, KV, heads, seed=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "placement",
    [
        Placement("csr", 16, "NHD"),
        Placement("csr", 5, "HND", "interleaved"),
        Placement("table", 1, "NHD", "layers", q_padding=3),
        Placement("table", 64, "HND", "packed"),
        Placement("ragged", kv_layout="HND", arrangement="mixed"),
    ],
    ids=lambda p: f"{p.storage}{p.page_size}-{p.kv_layout}-{p.arrangement}",
)
def test_placements(placement, dtype):
    batch = RUNNER.place(sequences(Heads.of(4, 2, 32, dtype)), placement)
    check(RUNNER, batch, RUNNER.pair("causal", batch.sequences), num_ctas=CTAS)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_variants(name):
    batch = RUNNER.place(sequences(Heads.of(4, 2, 16, torch.float32)), Placement("csr", 8))
    check(RUNNER, batch, RUNNER.pair(name, batch.sequences), num_ctas=(7,))


@pytest.mark.parametrize(
    "heads",
    [
        Heads(6, 2, 80, 80, torch.float16),
        Heads(2, 2, 96, 112, torch.float16),
        Heads(3, 1, 192, 128, torch.float16),
        Heads(2, 1, 32, 64, torch.float32),
    ],
    ids=str,
)
def test_head_dims_and_groups(heads):
    batch = RUNNER.place(sequences(heads), Placement("csr", 16))
    check(RUNNER, batch, RUNNER.pair("causal", batch.sequences), num_ctas=(7,))


@pytest.mark.parametrize("scale", [0.0, -0.3, 2.0])
def test_scales(scale):
    batch = RUNNER.place(sequences(Heads.of(4, 2, 16, torch.float32)), Placement("csr", 16))
    pair = RUNNER.pair("causal", batch.sequences)
    expected = expect(batch, pair.functors, sm_scale=scale)
    check(RUNNER, batch, pair, num_ctas=(7,), sm_scale=scale, expected=expected)


def test_raw_states_carry_no_sink():
    batch = RUNNER.place(sequences(Heads.of(4, 2, 16, torch.float32)), Placement("csr", 16))
    variant = al.variants.causal() & al.variants.sinks(torch.tensor([0.0, 1.0, 2.0, 30.0]))
    attn = RUNNER.for_batch(batch, variant=variant)
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=7)
    whole, lse = attn.run(batch.q, *batch.caches, return_lse=True)
    done, done_lse = al.finish_state(*attn.run(batch.q, *batch.caches, return_state=True), variant=variant)
    torch.testing.assert_close(done[: batch.total_q], whole[: batch.total_q], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(done_lse[: batch.total_q], lse[: batch.total_q], rtol=1e-5, atol=1e-6)


def test_splits_were_merged():
    batch = RUNNER.place(sequences(Heads.of(4, 2, 16, torch.float32)), Placement("csr", 16))
    attn = RUNNER.for_batch(batch, variant=al.variants.causal(), planner="algorithm1")
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=132)
    used = [part.tile.tile_q for part in attn.current_plan.classes if part.num_items]
    assert used == [16, 32]
