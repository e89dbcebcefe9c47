"""Cases 32, 33, 34, 35, 39, 43 on a GPU: real captures, replays after other plans, streams that are busy."""

from __future__ import annotations

import oracle
import pytest
import torch
from graph_pool import ROWS_PAST, Pool
from harness import compare

import attnloom as al
from attnloom.testing.inputs import Heads

pytestmark = pytest.mark.gpu

HEADS = Heads.of(8, 2, 64, torch.float16)
MAXIMA = {"max_batch_size": 8, "max_total_q": 24, "max_pages": 4 * 8192}
BUSY = 100_000_000  # cycles: some 50 ms


@pytest.fixture
def graphs(runner):
    """The runner, where it launches kernels that a graph can record."""
    if runner.implementation == "reference" or runner.device == "cpu":
        pytest.skip("only launches of kernels can be captured")
    return runner


def captured(attn: al.BatchAttention, pool: Pool, *, ragged: bool = False) -> torch.cuda.CUDAGraph:
    """A graph of one run into pool.out and pool.lse, captured on a side stream."""

    def run() -> None:
        attn.run(pool.q, *pool.caches(ragged), out=pool.out, lse=pool.lse, return_lse=True)

    run()  # compiles
    torch.cuda.synchronize()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=side):
        run()
    return graph


def replayed(graph: torch.cuda.CUDAGraph, pool: Pool, step, name: str) -> None:
    pool.out.fill_(ROWS_PAST)
    pool.lse.fill_(ROWS_PAST)
    graph.replay()
    out, lse = pool.out.cpu(), pool.lse.cpu()
    compare(step, out, lse, step.expect(oracle.causal(), pool.scale), name)
    assert (out[step.total_q :] == ROWS_PAST).all()
    assert (lse[step.total_q :] == ROWS_PAST).all()


@pytest.mark.case(32)
@pytest.mark.case(35)
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_captured_at_length_one_replayed_at_any(graphs, where):
    pool = Pool(HEADS, 8300, 16, 24, "cuda")
    attn = graphs.attention(HEADS, variant=al.variants.causal(), **MAXIMA)
    first = pool.step([1] * 4, [1] * 4, where=where)
    attn.plan(first.qo_indptr, first.kv)
    graph = captured(attn, pool)
    at = attn._declared.buffers.buffer.data_ptr(), attn._workspace.buffer.data_ptr()
    for kv in ([1] * 4, [1000] * 4, [131072] * 4, [1, 1000, 131072, 17], [1] * 4):
        step = pool.step([1] * 4, kv, where=where)
        attn.plan(step.qo_indptr, step.kv)
        for _ in range(3):  # memory that a moved buffer would have left
            torch.full((1 << 22,), -1, dtype=torch.int32, device="cuda")
        replayed(graph, pool, step, f"{kv} ")
        assert at == (attn._declared.buffers.buffer.data_ptr(), attn._workspace.buffer.data_ptr())
        eager = attn.run(pool.q, *pool.caches())
        assert torch.equal(eager[: step.total_q], pool.out[: step.total_q])
    larger = pool.step([1] * 4, [131073] * 4, where=where)
    with pytest.raises(al.errors.MaximumExceeded, match="max_pages"):
        attn.plan(larger.qo_indptr, larger.kv)


@pytest.mark.case(33)
@pytest.mark.parametrize("ragged", [False, True], ids=["paged", "ragged"])
def test_a_small_plan_after_a_large_one(graphs, ragged):
    heads = Heads.of(16, 2, 128, torch.float16)
    pool = Pool(heads, 9000, 1, 128, "cuda")
    attn = graphs.attention(heads, variant=al.variants.causal(), max_batch_size=64, max_total_q=128, max_pages=9000)
    graph = None
    for qo, kv in (([1] * 64, [60 + i for i in range(64)]), ([1] * 2, [900, 70]), ([60, 1], [60, 4000])):
        step = pool.step(qo, kv, ragged=ragged)
        attn.plan(step.qo_indptr, step.kv)
        graph = graph or captured(attn, pool, ragged=ragged)
        replayed(graph, pool, step, f"{qo} {kv} ")


@pytest.mark.case(34)
@pytest.mark.parametrize("rows", [1, 3])
def test_padding_requests(graphs, rows):
    """Five requests live, three of no key: rows of zeros, lse of -inf, and the replay ends."""
    pool = Pool(HEADS, 400, 16, 24, "cuda")
    attn = graphs.attention(HEADS, variant=al.variants.causal(), **MAXIMA)
    graph = None
    for kv in ([100, 3, 900, 64, 17, 0, 0, 0], [0, 5, 0, 40, 0, 700, 33, 900], [0] * 8):
        step = pool.step([rows] * 8, kv)
        attn.plan(step.qo_indptr, step.kv)
        graph = graph or captured(attn, pool)
        replayed(graph, pool, step, f"{kv} ")
        for i, length in enumerate(kv):
            if not length:
                assert not pool.out[step.rows(i)].any()
                assert (pool.lse[step.rows(i)] == -torch.inf).all()


@pytest.mark.case(35)
def test_capture_beside_a_busy_default_stream(graphs):
    pool = Pool(HEADS, 400, 16, 24, "cuda")
    attn = graphs.attention(HEADS, variant=al.variants.causal(), **MAXIMA)
    step = pool.step([1] * 4, [1000, 3, 400, 64])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        attn.plan(step.qo_indptr, step.kv)
        attn.run(pool.q, *pool.caches(), out=pool.out, lse=pool.lse)
    side.synchronize()
    torch.cuda._sleep(BUSY)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        attn.run(pool.q, *pool.caches(), out=pool.out, lse=pool.lse)
        with pytest.raises(al.errors.CaptureRefused):
            attn.plan(step.qo_indptr, step.kv)
    attn.plan(step.qo_indptr, step.kv)
    replayed(graph, pool, step, "")


@pytest.mark.case(39)
def test_plans_and_replays_back_to_back_on_a_blocked_stream(graphs):
    """Forty plans, each followed by a replay whose result is kept, before the first kernel runs."""
    pool = Pool(HEADS, 400, 16, 24, "cuda")
    attn = graphs.attention(HEADS, variant=al.variants.causal(), **MAXIMA)
    steps = [pool.step([1 + i % 3] * 4, [1 + 37 * i, 900 - 20 * i, 5, 64 * (i % 7)]) for i in range(40)]
    attn.plan(steps[0].qo_indptr, steps[0].kv)
    graph = captured(attn, pool)
    kept = torch.zeros(len(steps), *pool.out.shape, dtype=pool.out.dtype, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY)
    for i, step in enumerate(steps):
        qo_indptr = step.qo_indptr.clone()
        attn.plan(qo_indptr, step.kv)
        qo_indptr.fill_(99)
        graph.replay()
        kept[i].copy_(pool.out)
    for i, step in enumerate(steps):
        compare(step, kept[i], None, step.expect(oracle.causal(), pool.scale), f"step {i} ")


@pytest.mark.case(43)
@pytest.mark.parametrize("with_maxima", [False, True], ids=["fresh", "maxima"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_plan_does_not_synchronise(graphs, with_maxima, where):
    """Host lengths, page table on either side, operands and positions from the host; operands on the device."""
    pool = Pool(HEADS, 400, 16, 24, "cuda")
    variant = al.variants.prefix_lm() & al.variants.sinks() & al.variants.document_mask()
    attn = graphs.attention(HEADS, variant=variant, **(MAXIMA if with_maxima else {}))
    step = pool.step([1, 3, 2], [100, 900, 64], where=where)
    given = {
        "prefix_len": torch.tensor([1, 2, 3], dtype=torch.int32),
        next(name for name in variant.params if "sink" in name): torch.zeros(8, device="cuda"),
        "q_ids": torch.zeros(6, dtype=torch.int32),
        "kv_ids": torch.zeros(1064, dtype=torch.int32, device="cuda"),
    }
    positions, qo_indptr = torch.arange(6), step.qo_indptr.cpu()

    def plan() -> None:
        attn.plan(qo_indptr, step.kv, params=given, q_pos=positions)

    plan()
    attn.run(pool.q, *pool.caches())
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(3):
            plan()
            attn.run(pool.q, *pool.caches(), out=pool.out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
