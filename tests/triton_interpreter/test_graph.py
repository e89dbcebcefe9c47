"""Cases 32, 33, 34: the first launch's own arguments, launched again after other plans, do the work of those."""

from __future__ import annotations

import oracle
import pytest
import torch
from graph_pool import ROWS_PAST, Pool
from harness import Runner, compare

import attnloom as al
from attnloom.impl import dispatch
from attnloom.testing.inputs import Heads

TRITON = dispatch.registry()["triton"]  # loaded before `launched` looks for implementations
RUNNER = Runner("triton")
HEADS = Heads.of(4, 2, 16, torch.float32)

# in the order of planning; the first is the one "captured"
LENGTHS = [
    ([1, 1, 1], [1, 1, 1]),
    ([1, 1, 1], [130, 7, 90]),
    ([20, 1, 3], [50, 0, 30]),
    ([], []),
    ([0, 2, 1, 9], [5, 0, 60, 20]),
]


@pytest.mark.parametrize("ragged", [False, True], ids=["paged", "ragged"])
@pytest.mark.parametrize("planner", ["stream", "algorithm1"])
def test_a_stale_launch_does_the_work_of_the_present_plan(launched, ragged, planner):
    pool = Pool(HEADS, 30, 16, 24, "cpu")
    variant = (
        al.variants.causal()
        & al.variants.sinks()
        & al.Variant(logits_transform=lambda logits, gain: logits * gain, params={"gain": 1.0})
    )
    attn = RUNNER.attention(
        HEADS, variant=variant, planner=planner, max_batch_size=4, max_total_q=24, max_pages=480 if ragged else 30
    )
    [sinks] = set(variant.params) - {"gain"}
    merged = 0
    for turn, (qo, kv) in enumerate(LENGTHS):
        step = pool.step(qo, kv, ragged=ragged)
        gain, values = 1.0 + 0.25 * turn, torch.linspace(-1, 1, 4) * turn
        attn.plan(step.qo_indptr, step.kv, params={"gain": gain, sinks: values}, num_ctas=14)
        merged += attn.current_plan.merges.entries.shape[0]
        if not launched:
            attn.run(pool.q, *pool.caches(ragged), out=pool.out, lse=pool.lse, return_lse=True)
        plan, tensors = launched[0]
        pool.out.fill_(ROWS_PAST)
        pool.lse.fill_(ROWS_PAST)
        TRITON.launch(plan, tensors)
        scaled = oracle.Functors(logits=(lambda logits, gain: logits * gain,), params={"gain": gain})
        compare(step, pool.out, pool.lse, step.expect(oracle.causal() & oracle.sinks(values) & scaled, pool.scale))
        assert (pool.out[step.total_q :] == ROWS_PAST).all()
        assert (pool.lse[step.total_q :] == ROWS_PAST).all()
    assert merged > 0 or planner == "stream"
