"""Cases 5, 62a, M2: states and their merge; the base of the lse."""

import itertools
import math

import oracle
import pytest
import torch
from harness import Pair, compare, default_scale, each_dtype, expect, requests_of
from interpreted import sized
from oracle import Functors

import attnloom as al
from attnloom.testing.inputs import Heads, Placement, Sequences, random_sequences

NINF = -math.inf


def states(count: int, seed: int = 0, shape: tuple[int, ...] = (5, 3)) -> tuple[list, list]:
    generator = torch.Generator().manual_seed(seed)
    outs = [torch.randn(*shape, 16, generator=generator) for _ in range(count)]
    return outs, [torch.randn(*shape, generator=generator) * 3 for _ in range(count)]


def union(outs: list, lses: list) -> tuple[torch.Tensor, torch.Tensor]:
    """⊕ by its definition in float64: weights e^lse, an empty state's payload unread."""
    stacked = torch.stack(lses).double()
    lse = torch.logsumexp(stacked, 0)
    weight = torch.where(torch.isneginf(stacked), 0.0, (stacked - torch.where(torch.isneginf(lse), 0.0, lse)).exp())
    out = torch.where(weight[..., None] > 0, torch.stack(outs).double(), 0.0) * weight[..., None]
    return out.sum(0), lse


@pytest.mark.case(5)
@pytest.mark.parametrize("payload", [math.nan, math.inf, 7.0])
@pytest.mark.parametrize(("a", "b"), [(NINF, NINF), (NINF, 1.5), (-80.0, NINF), (200.0, NINF), (0.5, -3.0)])
def test_a_payload_under_an_empty_state_is_never_read(a, b, payload):
    outs, lses = states(2)
    for out, lse, value in zip(outs, lses, (a, b), strict=True):
        lse.fill_(value)
        if value == NINF:
            out.fill_(payload)
    wanted_out, wanted_lse = union(outs, lses)
    for out, lse in (al.merge_state(outs[0], lses[0], outs[1], lses[1]), al.merge_states(outs, lses)):
        if NINF in (a, b):  # exactly the state that is not empty, or the identity
            exact = outs[0 if b == NINF else 1] if (a, b) != (NINF, NINF) else torch.zeros_like(outs[0])
            assert torch.equal(out, exact)
            assert torch.equal(lse, wanted_lse.float())
        torch.testing.assert_close(out.double(), wanted_out, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-6, rtol=1e-6)


@pytest.mark.case(5)
@pytest.mark.parametrize("count", range(1, 10))
def test_merging_many_states_some_empty(count):
    outs, lses = states(count, seed=count)
    for i in range(count):  # each row has its own empty states
        lses[i][i % 5] = NINF
        outs[i][i % 5] = math.nan
    wanted_out, wanted_lse = union(outs, lses)
    stacked = al.merge_states(torch.stack(outs), torch.stack(lses))
    for out, lse in (al.merge_states(outs, lses), stacked):
        torch.testing.assert_close(out.double(), wanted_out, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-6, rtol=1e-6)


@pytest.mark.case(5)
@pytest.mark.parametrize("count", [2, 3, 9])
def test_all_empty_is_the_identity(count):
    outs, lses = states(count)
    for out, lse in zip(outs, lses, strict=True):
        out.fill_(math.nan)
        lse.fill_(NINF)
    out, lse = al.merge_states(outs, lses)
    assert (out == 0).all()
    assert torch.isneginf(lse).all()


@pytest.mark.case(5)
def test_the_merge_of_no_rows_and_of_no_states():
    empty_out, empty_lse = torch.empty(0, 3, 16), torch.empty(0, 3)
    out, lse = al.merge_states([empty_out] * 3, [empty_lse] * 3)
    assert out.shape == (0, 3, 16)
    assert lse.shape == (0, 3)
    out, lse = al.merge_states(torch.empty(0, 5, 3, 16), torch.empty(0, 5, 3))  # no state of a known shape
    assert torch.equal(out, torch.zeros(5, 3, 16))
    assert torch.equal(lse, torch.full((5, 3), NINF))
    with pytest.raises(al.errors.StateError, match="0 outs"):
        al.merge_states([], [])


@pytest.mark.case(5)
def test_order_does_not_matter_and_inputs_stay():
    outs, lses = states(3)
    before = [x.clone() for x in (*outs, *lses)]
    results = [
        al.merge_states([outs[i] for i in order], [lses[i] for i in order])
        for order in itertools.permutations(range(3))
    ]
    for out, lse in results[1:]:
        torch.testing.assert_close(out, results[0][0])
        torch.testing.assert_close(lse, results[0][1])
    assert all(torch.equal(x, y) for x, y in zip(before, (*outs, *lses), strict=True))


@pytest.mark.case(5)
def test_extreme_lses_do_not_overflow():
    outs, lses = states(3)
    for lse, value in zip(lses, (88000.0, 87999.0, -88000.0), strict=True):
        lse.fill_(value)
    out, lse = al.merge_states(outs, lses)
    wanted_out, wanted_lse = union(outs, lses)
    torch.testing.assert_close(out.double(), wanted_out, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-6, atol=0)


def parts_of(sequences: Sequences, parts: int) -> list[Sequences]:
    """The same queries over consecutive pieces of the keys."""
    length = sequences.kv_len[0]
    cuts = [length * i // parts for i in range(parts + 1)]
    pieces = []
    for start, end in itertools.pairwise(cuts):
        k, v = (tuple(x[start:end] for x in xs) for xs in (sequences.k, sequences.v))
        pieces.append(Sequences(sequences.heads, sequences.q, k, v))
    return pieces


def state_of(runner, batch, variant=None):
    attn = runner.for_batch(batch, variant=variant)
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=7)
    return attn.run(batch.q, *batch.caches, return_state=True)


@pytest.mark.case("62a")
@pytest.mark.case("M2")
@each_dtype
@pytest.mark.parametrize(("parts", "qo"), [(2, 1), (3, 5), (7, 1)])
def test_parts_of_the_keys_merge_to_the_whole(runner, parts, qo, dtype):
    """Also what ranks of a context-parallel group hold, the first with no key at all."""
    heads = runner.fit(Heads(4, 2, 64, 32, dtype))
    sequences = random_sequences([qo], [sized(4096, 150)], heads)
    pieces = [sequences, *parts_of(sequences, parts)]
    pieces[0] = Sequences(sequences.heads, sequences.q, (sequences.k[0][:0],), (sequences.v[0][:0],))
    outs, lses = zip(*(state_of(runner, runner.place(p, Placement("csr", 16))) for p in pieces), strict=True)
    assert all(o.dtype == torch.float32 and s.dtype == torch.float32 for o, s in zip(outs, lses, strict=True))
    assert (outs[0] == 0).all()
    assert torch.isneginf(lses[0]).all()
    out, lse = al.merge_states(list(outs), list(lses))
    whole = runner.place(sequences, Placement())
    compare(whole, out, lse, expect(whole, Functors(), out_dtype=torch.float32))


@pytest.mark.case("62a")
@each_dtype
@pytest.mark.parametrize("storage", ["ragged", "csr", "table"])
def test_lse_is_natural_on_every_path(runner, storage, dtype):
    lengths = sized(([1, 33, 2], [700, 40, 2]), ([1, 9, 2], [100, 9, 2]))
    batch = runner.place(random_sequences(*lengths, Heads.of(8, 2, 64, dtype)), Placement(storage))
    attn = runner.for_batch(batch)
    for num_ctas in (1, 132):
        attn.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
        _, lse = attn.run(batch.q, *batch.caches, return_lse=True)
        _, state_lse = attn.run(batch.q, *batch.caches, return_state=True)
        assert torch.equal(lse, state_lse)
        for i, request in enumerate(requests_of(batch)):
            k = request.k.double().repeat_interleave(4, 1)
            logits = default_scale(batch) * torch.einsum("qhd,khd->qhk", request.q.double(), k)
            wanted = torch.logsumexp(logits, -1)
            assert lse.dtype == torch.float32
            torch.testing.assert_close(lse[batch.rows(i)].cpu().double(), wanted, atol=2e-4, rtol=1e-6)


@pytest.mark.case("62a")
@each_dtype
def test_a_raw_state_carries_neither_sink_nor_output_transform(runner, dtype):
    sequences = random_sequences([3], [sized(500, 100)], Heads.of(4, 2, 64, dtype))
    sinks = torch.tensor([-20.0, 0.0, 2.0, 30.0])

    def gate(x, head):
        return x * (head + 0.5)

    variant = al.variants.sinks(sinks) & al.Variant(output_transform=gate)
    functors = oracle.sinks(sinks) & Functors(output=(gate,))
    pieces = [state_of(runner, runner.place(p, Placement()), variant) for p in parts_of(sequences, 2)]
    out, lse = al.merge_state(*pieces[0], *pieces[1])
    whole = runner.place(sequences, Placement())
    compare(whole, out, lse, expect(whole, Functors(), out_dtype=torch.float32), "raw ")
    out, lse = al.finish_state(out, lse, variant=variant)
    compare(whole, out, lse, expect(whole, functors, out_dtype=torch.float32), "finished ")


@pytest.mark.case(5)
def test_sigmoid_states_add_and_do_not_merge(runner):
    sequences = random_sequences([3], [sized(300, 100)], Heads.of(4, 2, 64))
    variant, functors = al.variants.sigmoid(-1.0), oracle.sigmoid(-1.0)
    pieces = [state_of(runner, runner.place(p, Placement()), variant) for p in parts_of(sequences, 3)]
    assert all(lse is None for _, lse in pieces)
    total = sum(out for out, _ in pieces)
    whole = runner.place(sequences, Placement())
    compare(whole, total, None, expect(whole, functors, out_dtype=torch.float32))
    with pytest.raises(al.errors.StateError, match="lse"):
        al.merge_state(*pieces[0], *pieces[1])
    attn = runner.for_batch(whole, variant=variant)
    attn.plan(whole.qo_indptr, whole.kv)
    with pytest.raises(al.errors.StateError, match="softmax"):
        attn.run(whole.q, *whole.caches, return_lse=True)


@pytest.mark.case("62a")
def test_merge_pair_equals_finish_of_a_single_call(runner):
    """A pair given to `attention` in one call: the lse there is the same natural log."""
    sequences = random_sequences([4], [50], runner.like(Heads.of(4, 2, 64, torch.float32)))
    batch = runner.place(sequences, Placement("ragged"))
    q, (k, v) = batch.q.to(runner.device), batch.caches
    out, lse = al.attention(
        q, k[:50], v[:50], variant=al.variants.causal(), return_lse=True, implementation=runner.implementation
    )
    pair = Pair(al.variants.causal(), oracle.causal())
    compare(batch, out, lse, expect(batch, pair.functors))
