"""Cases 27, 28, 29, 31: strides of every kind, placement of every kind."""

from itertools import product

import oracle
import pytest
import torch
from harness import DTYPES, NUM_CTAS, Pair, check, compare, each_dtype, each_placement, expect, run
from interpreted import sized

import attnloom as al
from attnloom.testing.inputs import Heads, Placement, random_sequences

QO, KV = sized(([1, 40, 1, 3], [70, 40, 200, 17]), ([1, 20, 1, 3], [40, 20, 70, 17]))


def causal() -> Pair:
    return Pair(al.variants.causal(), oracle.causal())


ARRANGEMENTS = ("separate", "packed", "interleaved", "layers", "padded", "mixed")
KINDS = [
    (storage, layout, arrangement, DTYPES[(i + i // 6) % 3])
    for i, (layout, storage, arrangement) in enumerate(
        product(["NHD", "HND"], ["csr", "table", "ragged"], ARRANGEMENTS)
    )
]


@pytest.mark.case(27)
@pytest.mark.parametrize(("storage", "layout", "arrangement", "dtype"), KINDS)
def test_every_arrangement_of_k_and_v(runner, storage, layout, arrangement, dtype):
    if storage == "ragged" and arrangement == "packed":
        arrangement = "separate"
    sequences = random_sequences(QO, KV, runner.like(Heads.of(4, 2, 64, dtype)))
    plain = runner.place(sequences, Placement(storage, 5))
    strided = runner.place(sequences, Placement(storage, 5, layout, arrangement))
    results = (check(runner, batch, causal(), num_ctas=sized(NUM_CTAS, (7,))) for batch in (plain, strided))
    for clean, other in zip(*results, strict=True):
        assert torch.equal(clean[0], other[0])
        assert torch.equal(clean[1], other[1])


@pytest.mark.case(27)
@pytest.mark.parametrize("arrangement", ["separate", "interleaved", "padded", "mixed"])
def test_k_and_v_of_different_widths(runner, arrangement):
    for heads in (Heads(8, 1, 192, 128), Heads(4, 2, 64, 32), Heads(4, 2, 32, 128, torch.float32)):
        sequences = random_sequences(QO, KV, runner.like(heads))
        batch = runner.place(sequences, Placement("csr", 16, "HND", arrangement))
        check(runner, batch, causal())


@pytest.mark.case(27)
def test_expanded_inputs(runner):
    """One kv head seen as two, one query row as three: strides of 0."""
    one_head = random_sequences([3, 1], [sized(300, 70), 17], Heads.of(4, 1, 64))
    batch = runner.place(one_head, Placement())
    expected = expect(batch, oracle.causal())
    attn = runner.attention(Heads.of(4, 2, 64), page_size=16, variant=al.variants.causal())
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=7)
    caches = [cache.expand(-1, -1, 2, -1) for cache in batch.caches]
    compare(batch, attn.run(batch.q, *caches), None, expected)
    first = batch.q[:1].expand(4, 4, 64)
    assert torch.equal(attn.run(first, *caches), attn.run(first.contiguous(), *caches))


@pytest.mark.case(27)
@pytest.mark.parametrize("which", ["k_cache", "v_cache", "q", "out"])
def test_a_last_dimension_that_is_not_contiguous_is_refused(runner, launches, which):
    batch = runner.place(random_sequences([2], [30], Heads.of(4, 2, 64)), Placement())
    tensors = dict(zip(("k_cache", "v_cache"), batch.caches, strict=True)) | {"q": batch.q}
    tensors["out"] = torch.empty_like(batch.q)
    spread = tensors[which].repeat_interleave(2, dim=-1)[..., ::2]
    assert spread.stride(-1) == 2
    tensors[which] = spread
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    with pytest.raises(al.errors.StrideUnsupported, match=which) as refused:
        attn.run(tensors["q"], tensors["k_cache"], tensors["v_cache"], out=tensors["out"])
    assert "stride 1" in str(refused.value)
    assert not launches


@pytest.mark.case(27)
@each_dtype
@each_placement
def test_append_into_every_arrangement(runner, placement, dtype):
    """Rows appended one request at a time, in a mixed order, -1 skipped, nothing else touched."""
    if placement.storage == "ragged":
        placement = placement.but(storage="csr", page_size=3)
    sequences = random_sequences([1, 1], [20, 9], Heads.of(4, 2, 32, dtype))
    batch = runner.place(sequences, placement)
    parents = [p.clone() for p in batch.pool.parents]
    for parent in batch.pool.parents:
        parent.fill_(float("nan"))
    caches = batch.caches
    if placement.arrangement == "packed":
        caches = (caches[0][:, 0], caches[0][:, 1])
    size = placement.page_size
    for i, (k, v) in enumerate(zip(sequences.k, sequences.v, strict=True)):
        order = torch.randperm(k.shape[0], generator=torch.Generator().manual_seed(i))
        slots = torch.tensor([batch.pages[i][p // size] * size + p % size for p in order.tolist()] + [-1, -1])
        skipped = torch.zeros(2, dtype=torch.int64)
        rows = [torch.cat([x[order], x[skipped] * float("inf")]).to(runner.device) for x in (k, v)]
        slots = slots.to(torch.int32) if i else slots
        al.append_kv(*rows, *caches, slots, kv_layout=placement.kv_layout)
    for before, after in zip(parents, batch.pool.parents, strict=True):
        assert torch.equal(before.isnan(), after.isnan())
        assert torch.equal(before.nan_to_num(), after.nan_to_num())


@pytest.mark.case(28)
@each_dtype
@pytest.mark.parametrize("qo", [[1, 1, 1, 1], QO])
def test_q_from_a_fused_projection_and_out_into_one(runner, qo, dtype):
    heads = Heads.of(4, 2, 64, dtype)
    sequences = random_sequences(qo, KV, heads)
    batch = runner.place(sequences, Placement())
    rows = batch.q.shape[0]
    qkv = torch.full((rows, 8, 64), float("nan"), dtype=dtype, device=runner.device)
    qkv[:, :4] = batch.q
    wide = torch.full((rows, 6, 64), 3.5, dtype=dtype, device=runner.device)
    attn = runner.for_batch(batch, variant=al.variants.causal())
    expected = expect(batch, oracle.causal())
    for num_ctas in (1, 132):
        attn.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
        plain, plain_lse = run(attn, batch)
        lse_memory = torch.full((rows, 9), 3.5, device=runner.device)
        out, lse = attn.run(qkv[:, :4], *batch.caches, out=wide[:, 1:5], lse=lse_memory[:, 2:6], return_lse=True)
        compare(batch, out, lse, expected)
        assert torch.equal(out, plain)
        assert torch.equal(lse, plain_lse)
        assert (wide[:, [0, 5]] == 3.5).all()
        assert (lse_memory[:, [0, 1, 6, 7, 8]] == 3.5).all()
        per_head = torch.empty(4, rows, 64, dtype=dtype, device=runner.device).transpose(0, 1)
        assert torch.equal(attn.run(batch.q, *batch.caches, out=per_head), plain)


@pytest.mark.case(28)
def test_an_out_or_lse_that_does_not_fit_is_refused(runner, launches):
    batch = runner.place(random_sequences([2], [30], Heads.of(4, 2, 64)), Placement())
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    q = batch.q
    wrong = {
        "dtype": ({"out": torch.empty_like(q, dtype=torch.float32)}, r"out.*float32.*bfloat16"),
        "heads": ({"out": q.new_empty(2, 3, 64)}, r"out.*\(2, 3, 64\).*\(2, 4, 64\)"),
        "rows": ({"out": q.new_empty(1, 4, 64)}, r"out.*\(1, 4, 64\).*2 rows"),
        "dims": ({"out": q.new_empty(2, 256)}, r"out.*\(2, 256\)"),
        "overlap": ({"out": q.new_empty(1, 4, 64).expand(2, 4, 64)}, r"out.*\(0, 64, 1\).*memory of their own"),
        "lse overlap": ({"lse": q.new_empty(1, 4).float().expand(2, 4)}, r"lse.*\(0, 1\)"),
        "lse dtype": ({"lse": q.new_empty(2, 4)}, r"lse.*bfloat16.*float32"),
        "lse heads": ({"lse": q.new_empty(2, 5, dtype=torch.float32)}, r"lse.*\(2, 5\).*\(2, 4\)"),
    }
    for buffers, message in wrong.values():
        with pytest.raises(al.errors.AttnLoomError, match=message):
            attn.run(q, *batch.caches, **buffers)
    assert not launches


def misaligned(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy whose first element lies one element into its storage."""
    flat = x.new_empty(x.numel() + 1)[1:]
    return flat.view(x.shape).copy_(x)


@pytest.mark.case(29)
@each_dtype
@pytest.mark.parametrize("storage", ["ragged", "csr"])
def test_base_pointers_one_element_off(runner, storage, dtype):
    batch = runner.place(random_sequences(QO, KV, Heads.of(4, 2, 64, dtype)), Placement(storage))
    attn = runner.for_batch(batch, variant=al.variants.causal())
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=7)
    out = misaligned(torch.zeros_like(batch.q))
    try:
        given = attn.run(misaligned(batch.q), *(misaligned(c) for c in batch.caches), out=out)
    except al.errors.StrideUnsupported as refused:
        assert "align" in str(refused)  # noqa: PT017  right, or refused with the alignment that it needs
        return
    compare(batch, given, None, expect(batch, oracle.causal()))


@pytest.mark.case(31)
@each_dtype
@pytest.mark.parametrize("storage", ["csr", "table"])
def test_page_order_and_sharing_do_not_change_a_bit(runner, storage, dtype):
    heads = Heads.of(4, 2, 64, dtype)
    lengths = sized(([1, 3, 1, 70], [90, 64, 301, 80]), ([1, 3, 1, 20], [70, 64, 101, 50]))
    sequences = random_sequences(*lengths, heads, shared_prefix=48)
    results = []
    for seed, shared in ((0, 0), (1, 0), (2, 3)):
        batch = runner.place(sequences, Placement(storage, 16, seed=seed, shared_pages=shared))
        results.append(check(runner, batch, causal()))
    assert batch.pages[0][:3] == batch.pages[3][:3]
    for other in results[1:]:
        for (out, lse), (first_out, first_lse) in zip(other, results[0], strict=True):
            assert torch.equal(out, first_out)
            assert torch.equal(lse, first_lse)


@pytest.mark.case(31)
@pytest.mark.parametrize("page", [1, 2, 3, 5, 16, 24, 64, 128, 256, 512, 1024])
def test_every_page_size_and_length(runner, page):
    lengths = sized([1, 2, 15, 17, 127, 129, 1023, 1025, 8192], [1, 15, 17, 31, 33, 129])
    heads = runner.fit(Heads.of(2, 1, 32, torch.float16))
    sequences = random_sequences([1] * (len(lengths) - 1) + [2], lengths, heads, seed=4)
    batch = runner.place(sequences, Placement("table" if page % 2 else "csr", page))
    check(runner, batch, causal(), num_ctas=(7,))
