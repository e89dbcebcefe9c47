"""Cases 11, 12, 14, 15, 16: memory that a request does not own never reaches a result."""

import math

import oracle
import pytest
import torch
from harness import Pair, check, compare, crossed, dirty, each_dtype, each_placement, expect, run
from interpreted import sized

import attnloom as al
from attnloom.testing.inputs import Heads, Placement, random_sequences

MIXED_QO, MIXED_KV = sized(([1, 20, 1, 96, 3], [13, 64, 96, 96, 130]), ([1, 10, 1, 32, 3], [13, 40, 70, 32, 65]))


@pytest.mark.case(11)
@crossed("variant", ["causal", "user", "sigmoid"])
def test_unowned_slots_may_hold_anything(runner, placement, dtype, variant):
    sequences = random_sequences(MIXED_QO, MIXED_KV, runner.like(Heads.of(4, 2, 32, dtype)))
    pair = runner.pair(variant, sequences)
    results = {}
    for kind in ("zero", "nan", "inf", "huge"):
        batch = runner.place(sequences, placement.but(poison=kind))
        attn = runner.for_batch(batch, variant=pair.variant)
        for num_ctas in (1, sized(132, 7)):
            attn.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
            results[kind, num_ctas] = run(attn, batch, return_lse=variant != "sigmoid")
    for (kind, num_ctas), (out, lse) in results.items():
        clean_out, clean_lse = results["zero", num_ctas]
        assert torch.equal(out, clean_out), kind
        assert lse is None or torch.equal(lse, clean_lse), kind


@pytest.mark.case(11)
@pytest.mark.parametrize(("page", "kv"), [(4, [13]), (128, [32, 64, 96, 48])])
def test_the_last_page_of_the_reports(runner, page, kv):
    for qo in ([1] * len(kv), kv):
        batch = runner.place(random_sequences(qo, kv, Heads.of(4, 2, 64)), Placement(page_size=page))
        check(runner, batch, Pair(al.variants.causal(), oracle.causal()))


@pytest.mark.case(11)
@each_dtype
@pytest.mark.parametrize("kind", ["nan", "inf", "huge"])
@pytest.mark.parametrize("page", [1, 5, 16])
@pytest.mark.parametrize("first", [0, 3])
def test_pages_wholly_outside_the_window_may_hold_anything(runner, first, page, kind, dtype):
    """Keys before the window of the request's first row are poisoned, to the page; the `first` ones are visible."""
    qo, kv = sized(([1, 4, 150, 1], [150, 333, 400, 70]), ([1, 4, 30, 1], [150, 90, 100, 70]))
    left = 37
    batch = runner.place(random_sequences(qo, kv, runner.fit(Heads.of(4, 2, 32, dtype))), Placement(page_size=page))

    def mask(q_pos, kv_pos):
        return (kv_pos <= q_pos) & ((kv_pos >= q_pos - left) | (kv_pos < first))

    window = al.variants.causal() & al.variants.sliding_window(left)
    pair = Pair(al.Variant(logits_mask=mask) if first else window, oracle.Functors(mask=mask))
    expected = expect(batch, pair.functors)
    for i in range(len(qo)):
        outside = max(kv[i] - qo[i] - left, 0) // page * page
        batch.poison_keys(i, range(-(-first // page) * page, outside), kind)
    check(runner, batch, pair, expected=expected)


@pytest.mark.case(12)
@each_dtype
@each_placement
def test_rows_past_the_last_request(runner, placement, dtype):
    """24 rows, 21 planned; rows of k and v past the last request are poison in every ragged pool."""
    sequences = random_sequences([21], [40], Heads.of(16, 1, 128, dtype))
    batch = runner.place(sequences, placement.but(q_padding=3))
    assert batch.q[21:].isnan().all()
    attn = runner.for_batch(batch, variant=al.variants.causal())
    expected = expect(batch, oracle.causal())
    check(runner, batch, Pair(al.variants.causal(), oracle.causal()), expected=expected)
    attn.plan(batch.qo_indptr, batch.kv)
    out = torch.full((24, 16, 128), 7.25, dtype=dtype, device=runner.device)
    lse = torch.full((24, 16), 7.25, device=runner.device)
    attn.run(batch.q, *batch.caches, out=out, lse=lse)
    assert (out[21:] == 7.25).all()
    assert (lse[21:] == 7.25).all()
    assert torch.isfinite(out).all()
    fresh = attn.run(batch.q, *batch.caches)
    assert torch.equal(fresh[:21], out[:21])


@pytest.mark.case(14)
@crossed("qo", [1, 3, sized(40, 10)])
def test_zero_queries_give_the_mean_of_the_values(runner, placement, dtype, qo):
    dtype = runner.dtype(dtype)
    lengths = sized([1, 63, 64, 65, 127, 129, 255, 257, 300], [1, 31, 32, 33, 63, 65, 97])
    sequences = random_sequences([qo] * len(lengths), lengths, Heads.of(8, 2, 128, dtype))
    for q in sequences.q:
        q.zero_()
    batch = runner.place(sequences, placement)
    for out, lse in check(runner, batch):
        for i, n in enumerate(lengths):
            mean = sequences.v[i].double().mean(0).repeat_interleave(4, 0)
            bound = 2 * torch.finfo(dtype).eps * float(mean.abs().max()) + 1e-6
            assert (out[batch.rows(i)].cpu().double() - mean).abs().max() <= bound
            assert (lse[batch.rows(i)] - math.log(n)).abs().max() <= 1e-5


@pytest.mark.case(15)
@each_dtype
@pytest.mark.parametrize("page", [1, 4, 16])
def test_unused_table_entries_are_never_read(runner, page, dtype):
    """The factory's tables end in -1 and INT_MAX, and its CSR indices too."""
    sequences = random_sequences([1, 5, 0, 1], [33, 5, 17, 0], Heads.of(4, 2, 64, dtype))
    for storage in ("table", "csr"):
        batch = runner.place(sequences, Placement(storage, page))
        unused = batch.kv.block_table if storage == "table" else batch.kv.kv_indices
        assert {-1, 2**31 - 1} <= set(unused.flatten().tolist())
        check(runner, batch, Pair(al.variants.causal(), oracle.causal()))


@pytest.mark.case(15)
def test_lengths_beyond_the_table_are_refused(runner, launches):
    batch = runner.place(random_sequences([1], [30], Heads()), Placement("table", 4))
    columns = batch.kv.block_table.shape[1]
    attn = runner.for_batch(batch)
    kv = al.PagedKV.from_block_table(batch.kv.block_table, torch.tensor([columns * 4 + 1]), 4)
    with pytest.raises(ValueError, match=rf"seq_lens: {columns * 4 + 1}.*{columns * 4}") as refused:
        attn.plan(batch.qo_indptr, kv)
    assert isinstance(refused.value, al.errors.InvalidMetadata)
    assert not launches


@pytest.mark.case(16)
@each_dtype
def test_a_shared_dirty_workspace(runner, dtype):
    """Decode and prefill take turns on one buffer, dirtied before each plan and each launch."""
    heads = Heads.of(4, 2, 64, dtype)
    (decode_qo, decode_kv), (prefill_qo, prefill_kv) = sized(
        (([1] * 4, [7000, 30, 410, 64]), ([300, 2], [300, 500])), (([1] * 3, [150, 30, 64]), ([30, 2], [50, 100]))
    )
    decode = runner.place(random_sequences(decode_qo, decode_kv, heads), Placement())
    prefill = runner.place(random_sequences(prefill_qo, prefill_kv, heads, seed=1), Placement())
    num_ctas, turns, planned = sized((132, 100, 20), (24, 16, 8))
    size = runner.for_batch(decode).workspace_size(num_ctas)
    buffer = dirty(torch.empty(size, dtype=torch.uint8, device=runner.device))
    attns = [runner.for_batch(b, workspace=buffer, variant=al.variants.causal()) for b in (decode, prefill)]
    first: list = [None, None]
    for turn in range(turns):
        which = turn % 2
        attn, batch = attns[which], (decode, prefill)[which]
        dirty(buffer)
        if turn < planned:  # then the plans stay, and runs alone alternate
            attn.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
            assert which or attn.current_plan.merges.entries.shape[0], "decode is not split"
        result = run(attn, batch)
        first[which] = first[which] or result
        assert all(torch.equal(a, b) for a, b in zip(result, first[which], strict=True))
    for batch, (out, lse) in zip((decode, prefill), first, strict=True):
        expected = expect(batch, oracle.causal())
        compare(batch, out, lse, expected)
