"""Cases 17, 18, 19: requests with nothing in them, batches of nothing, page boundaries."""

import time

import oracle
import pytest
import torch
from harness import Pair, check, compare, crossed, each_dtype, expect, run
from interpreted import sized

import attnloom as al
from attnloom.testing.inputs import Batch, Heads, Placement, random_sequences

VARIANTS_HERE = ("full", "causal", "window", "sinks", "custom_mask", "sigmoid", "user")


@pytest.mark.case(17)
@crossed("variant", VARIANTS_HERE)
@pytest.mark.parametrize(
    "lengths",
    [
        ([1, 0, 3, 1, 2], [0, 5, 0, 17, 0]),
        ([2, 1, 40], [0, 0, 0]),
        ([0, 0, 1], [7, 0, sized(700, 200)]),
        ([130, 0], [0, 3]),
    ],
)
def test_empty_requests_anywhere(runner, variant, placement, dtype, lengths):
    sequences = random_sequences(*lengths, runner.like(Heads.of(4, 2, 32, dtype)))
    batch = runner.place(sequences, placement)
    pair = runner.pair(variant, sequences)
    check(runner, batch, pair)
    attn = runner.for_batch(batch, variant=pair.variant)
    started = time.process_time()
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=7)
    run(attn, batch, return_lse=pair.functors.use_softmax)
    assert time.process_time() - started < sized(1, 10)


@pytest.mark.case(17)
@each_dtype
def test_empty_rows_are_the_identity_exactly(runner, dtype):
    batch = runner.place(random_sequences([1, 0, 3, 1, 2], [0, 5, 0, 17, 0], Heads.of(4, 2, 64, dtype)), Placement())
    blind = torch.tensor([True, True, True, True, False, True, True])
    values = torch.tensor([-20.0, 0.0, 2.0, 30.0])
    for out, lse in check(runner, batch):
        assert (out[blind] == 0).all()
        assert torch.isneginf(lse[blind]).all()
    pair = Pair(al.variants.sinks(values.to(runner.device)), oracle.sinks(values))
    for out, lse in check(runner, batch, pair):
        assert (out[blind] == 0).all()
        assert torch.equal(lse[blind].cpu(), values.expand(6, 4))


@pytest.mark.case(17)
@pytest.mark.parametrize("storage", ["ragged", "csr", "table"])
def test_a_batch_without_any_key(runner, storage):
    batch = runner.place(random_sequences([1, 2, 33], [0, 0, 0], Heads.of(4, 2, 64)), Placement(storage))
    for out, lse in check(runner, batch, Pair(al.variants.causal(), oracle.causal())):
        assert (out == 0).all()
        assert torch.isneginf(lse).all()


@pytest.mark.case(18)
@each_dtype
@pytest.mark.parametrize("storage", ["ragged", "csr", "table"])
@pytest.mark.parametrize(("qo", "kv"), [([], []), ([0, 0, 0], [5, 0, 40]), ([0], [0])])
def test_a_batch_without_rows_launches_nothing(*, runner, launches, storage, qo, kv, dtype):
    heads = runner.fit(Heads(4, 2, 64, 32, dtype))
    qk, vo = heads.dim_qk, heads.dim_vo
    filled = runner.place(random_sequences(qo or [0], kv or [0], heads), Placement(storage))
    attn = runner.for_batch(filled, variant=al.variants.causal())
    qo_indptr, kv_format = filled.qo_indptr, filled.kv
    if not qo:
        qo_indptr = torch.zeros(1, dtype=torch.int32)
        none = torch.zeros(0, dtype=torch.int32)
        kv_format = {
            "ragged": lambda: al.RaggedKV(torch.zeros(1, dtype=torch.int32)),
            "csr": lambda: al.PagedKV(torch.zeros(1, dtype=torch.int32), none, none, page_size=16),
            "table": lambda: al.PagedKV.from_block_table(none.view(0, 4), none, 16),
        }[storage]()
    for num_ctas in (1, 132):
        attn.plan(qo_indptr, kv_format, num_ctas=num_ctas)
        out, lse = attn.run(filled.q, *filled.caches, return_lse=True)
        assert out.shape == (0, 4, vo)
        assert lse.shape == (0, 4)
        assert out.dtype == dtype
        padded = attn.run(filled.q.new_full((3, 4, qk), float("nan")), *filled.caches, out=out.new_full((3, 4, vo), 9))
        assert (padded == 9).all()
    assert not launches


@pytest.mark.case(18)
def test_attention_of_nothing(runner):
    dtype = runner.dtype(torch.float32)
    q = torch.zeros(0, 4, 64, dtype=dtype, device=runner.device)
    k = torch.zeros(5, 2, 64, dtype=dtype, device=runner.device)
    assert al.attention(q, k, k, implementation=runner.implementation).shape == (0, 4, 64)
    batched = al.attention(q.view(2, 0, 4, 64), k.new_zeros(2, 5, 2, 64), k.new_zeros(2, 5, 2, 64))
    assert batched.shape == (2, 0, 4, 64)
    out, lse = al.attention(q.new_ones(3, 4, 64), k[:0], k[:0], implementation=runner.implementation, return_lse=True)
    assert (out == 0).all()
    assert torch.isneginf(lse).all()


def slot_of(batch: Batch, position: int) -> torch.Tensor:
    """Where `position` of the only request lies in the pool."""
    size = batch.placement.page_size
    return torch.tensor([batch.pages[0][position // size] * size + position % size])


@pytest.mark.case(19)
@pytest.mark.parametrize("page", sized([1, 2, 3, 16, 64], [1, 2, 3, 16]))
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_decoding_step_by_step(runner, page, layout):
    """Each step appends one row by append_kv and decodes; the table carries its surplus pages all along."""
    heads, longest = runner.fit(Heads.of(4, 2, 32)), 3 * page + 1
    sequences = random_sequences([longest], [longest], heads)
    final = runner.place(sequences, Placement("table", page, layout))
    pool = runner.place(random_sequences([1], [longest], heads, seed=1), Placement("table", page, layout))
    for cache in pool.caches:
        cache.fill_(float("nan"))
    attn = runner.for_batch(final, variant=al.variants.causal())
    expected = expect(final, oracle.causal())
    outs, lses = [], []
    for length in range(1, longest + 1):
        new = [x[0][length - 1 :][:1].to(runner.device) for x in (sequences.k, sequences.v)]
        al.append_kv(*new, *pool.caches, slot_of(pool, length - 1), kv_layout=layout)
        attn.plan([0, 1], al.PagedKV.from_block_table(pool.kv.block_table, [length], page))
        out, lse = attn.run(final.q[length - 1 :][:1], *pool.caches, return_lse=True)
        outs.append(out)
        lses.append(lse)
    compare(final, torch.cat(outs), torch.cat(lses), expected)


@pytest.mark.case(19)
@each_dtype
@pytest.mark.parametrize("page", sized([1, 2, 3, 16, 64], [1, 3, 16]))
def test_every_length_around_the_page_boundaries(runner, page, dtype):
    lengths = sorted({n for k in range(4) for n in (k * page - 1, k * page, k * page + 1) if n >= 0})
    sequences = random_sequences([1] * len(lengths), lengths, Heads.of(4, 2, 64, dtype))
    for storage in ("csr", "table"):
        check(runner, runner.place(sequences, Placement(storage, page)))


@pytest.mark.case(19)
@pytest.mark.parametrize("last", [0, 17, -1])
def test_an_invalid_last_page_len_is_refused(runner, launches, last):
    batch = runner.place(random_sequences([1, 1], [20, 33], Heads()), Placement())
    lengths = batch.kv.kv_last_page_len.clone()
    lengths[1] = last
    attn = runner.for_batch(batch)
    kv = al.PagedKV(batch.kv.kv_indptr, batch.kv.kv_indices, lengths, page_size=16)
    with pytest.raises(al.errors.InvalidMetadata, match=rf"kv_last_page_len: {last} for request 1.*1\.\.16"):
        attn.plan(batch.qo_indptr, kv)
    with pytest.raises(al.errors.PlanRequired, match="failed"):
        attn.run(batch.q, *batch.caches)
    assert not launches
    attn.plan(batch.qo_indptr, batch.kv)
    run(attn, batch)
