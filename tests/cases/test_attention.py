"""`attention` in one call, and engines used from several threads."""

import threading

import oracle
import pytest
import torch
from harness import each_dtype
from interpreted import sized
from oracle import Functors, Request

import attnloom as al
from attnloom.testing.inputs import Heads, Placement, random_sequences
from attnloom.testing.tolerance import State, assert_state_close


def normal(*shape: int, seed: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def close(given: tuple, request: Request, functors: Functors, scale: float) -> None:
    exact, model = (f(request, functors, scale) for f in (oracle.attend, oracle.model))
    out, lse = (x.cpu() for x in given)
    assert_state_close(State(out, lse), State(exact.out, exact.lse), State(model.out, model.lse))


@each_dtype
@pytest.mark.parametrize("order", ["bshd", "bhsd"])
@pytest.mark.parametrize(("qo", "kv"), sized([(5, 90), (130, 130), (1, 300), (7, 3)], [(20, 40), (1, 70), (7, 3)]))
def test_batched(runner, order, qo, kv, dtype):
    """[B, S, H, D], also as transposed views of [B, H, S, D]; default scale, causal and full, v of another width."""
    heads = runner.require(Heads(4, 2, 64, 32, dtype))
    q = normal(3, qo, 4, heads.dim_qk, seed=1, dtype=dtype, device=runner.device)
    k = normal(3, kv, 2, heads.dim_qk, seed=2, dtype=dtype, device=runner.device)
    v = normal(3, kv, 2, heads.dim_vo, seed=3, dtype=dtype, device=runner.device)
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) if order == "bhsd" else x for x in (q, k, v)]
    for variant, functors in ((None, Functors()), (al.variants.causal(), oracle.causal())):
        out, lse = al.attention(*views, variant=variant, return_lse=True, implementation=runner.implementation)
        assert out.shape == (3, qo, 4, heads.dim_vo)
        assert lse.shape == (3, qo, 4)
        for i in range(3):
            request = Request(q[i].cpu(), k[i].cpu(), v[i].cpu(), i)
            close((out[i], lse[i]), request, functors, heads.dim_qk**-0.5)


@each_dtype
@pytest.mark.parametrize("dtype_of_indptr", [torch.int32, torch.int64, None])
def test_packed_with_and_without_index_pointers(runner, dtype_of_indptr, dtype):
    runner.require(Heads.of(4, 2, 64, dtype))
    q = normal(8, 4, 64, seed=1, dtype=dtype, device=runner.device)
    k, v = (normal(50, 2, 64, seed=s, dtype=dtype, device=runner.device) for s in (2, 3))
    options = {"variant": al.variants.causal(), "return_lse": True, "implementation": runner.implementation}
    out, lse = al.attention(q, k, v, **options)
    close((out, lse), Request(q.cpu(), k.cpu(), v.cpu()), oracle.causal(), 64**-0.5)
    indptrs = [[0, 3, 3, 8], [0, 30, 40, 50]]
    if dtype_of_indptr is not None:
        indptrs = [torch.tensor(x, dtype=dtype_of_indptr) for x in indptrs]
    options |= {"sm_scale": 0.3, "qo_indptr": indptrs[0], "kv_indptr": indptrs[1]}
    out, lse = al.attention(q, k, v, **options)
    for i, (rows, keys) in enumerate(((slice(0, 3), slice(0, 30)), (slice(3, 8), slice(40, 50)))):
        request = Request(q[rows].cpu(), k[keys].cpu(), v[keys].cpu(), i)
        close((out[rows], lse[rows]), request, oracle.causal(), 0.3)


def test_calls_with_other_variants_do_not_mix(runner):
    dtype = runner.dtype(torch.float32)
    q = normal(8, 4, 64, seed=1, dtype=dtype, device=runner.device)
    k = normal(50, 2, 64, seed=2, dtype=dtype, device=runner.device)
    caps = [0.5, 2.0, 30.0] * 3
    for cap in caps:
        given = al.attention(
            q, k, k, variant=al.variants.soft_cap(cap), return_lse=True, implementation=runner.implementation
        )
        close(given, Request(q.cpu(), k.cpu(), k.cpu()), oracle.soft_cap(cap), 64**-0.5)


@pytest.mark.not_interpreted("the interpreter changes triton.language for the whole process: one launch at a time")
def test_several_threads_at_once(runner):
    """Engines of their own, and the one call that caches engines; every thread gets its own batch's result."""
    failures: list[BaseException] = []
    start = threading.Barrier(4)
    heads = runner.like(Heads.of(4, 2, 32, torch.float32))

    def work(seed: int) -> None:
        try:
            sequences = random_sequences([30, 3 + seed], [60 + seed, 300], heads, seed=seed)
            batch = runner.place(sequences, Placement())
            attn = runner.for_batch(batch, variant=al.variants.causal())
            q, k, v = (x[0].to(runner.device) for x in (sequences.q, sequences.k, sequences.v))
            variant = al.variants.causal()
            attn.plan(batch.qo_indptr, batch.kv, num_ctas=7)
            first = attn.run(batch.q, *batch.caches)
            start.wait()
            for _ in range(10):
                attn.plan(batch.qo_indptr, batch.kv, num_ctas=7)
                assert torch.equal(attn.run(batch.q, *batch.caches), first)
                given = al.attention(q, k, v, variant=variant, return_lse=True, implementation=runner.implementation)
                close(given, Request(*(x.cpu() for x in (q, k, v))), oracle.causal(), heads.dim_qk**-0.5)
        except BaseException as failure:  # noqa: BLE001  handed to the test's own thread
            failures.append(failure)
            start.abort()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_torchs_default_device_may_be_another(runner):
    """Scalars of the variant go where the tensors are."""
    heads = runner.fit(Heads.of(4, 2, 32))
    batch = runner.place(random_sequences([2, 5], [9, 40], heads), Placement())
    attn = runner.attention(heads, page_size=16, variant=al.variants.causal() & al.variants.soft_cap(2.0))
    scaled = al.Variant(logits_transform=lambda logits, c: torch.where(logits > 0, logits * c, -c), params={"c": 2.0})
    other = runner.attention(heads, page_size=16, variant=scaled)

    def results():
        for one in (attn, other):
            one.plan(batch.qo_indptr, batch.kv, num_ctas=7)
            yield one.run(batch.q, *batch.caches, return_lse=True)

    wanted = list(results())
    try:
        torch.set_default_device("meta")
        given = list(results())
    finally:
        torch.set_default_device(None)
    for (out, lse), (wanted_out, wanted_lse) in zip(given, wanted, strict=True):
        assert torch.equal(out, wanted_out)
        assert torch.equal(lse, wanted_lse)
