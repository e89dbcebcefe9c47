"""End to end with hypothesis: any lengths, pages, heads, types, layouts, variants and splits, against the oracle."""

import itertools

import oracle
import pytest
import torch
from harness import DTYPES, Pair, Positions, check, compare, expect
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st
from interpreted import sized
from variant_pairs import VARIANTS

import attnloom as al
from attnloom.testing.inputs import Heads, Placement, Sequences, random_sequences

LONG = sized(140, 40)
EDGES = sized([63, 64, 65, 127, 128, 129, 255, 257, 400], [31, 32, 33, 63, 65, 100])
lengths = st.one_of(st.integers(0, 6), st.integers(0, LONG), st.sampled_from(EDGES))
requests = st.lists(st.tuples(st.one_of(st.integers(0, 3), st.integers(0, LONG)), lengths), max_size=sized(6, 4))


@st.composite
def heads(draw):
    num_kv, group = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    dims = draw(st.sampled_from([(16, 16), (32, 32), (64, 64), (80, 80), (64, 32), (16, 128)]))
    return Heads(num_kv * group, num_kv, *dims, draw(st.sampled_from(DTYPES)))


@st.composite
def placements(draw, equal_dims: bool):
    storage = draw(st.sampled_from(["ragged", "csr", "table"]))
    arrangements = ["separate", "interleaved", "padded", "mixed"]
    if equal_dims:
        arrangements += ["layers"] if storage == "ragged" else ["layers", "packed"]
    return Placement(
        storage=storage,
        page_size=draw(st.integers(1, 70)),
        kv_layout=draw(st.sampled_from(["NHD", "HND"])),
        arrangement=draw(st.sampled_from(arrangements)),
        poison=draw(st.sampled_from(["nan", "inf"])),
        seed=draw(st.integers(0, 1000)),
        q_padding=draw(st.integers(0, 3)),
        index_dtype=draw(st.sampled_from([torch.int32, torch.int64])),
    )


@pytest.mark.case(53)
@pytest.mark.case(31)
@settings(max_examples=sized(120, 25), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_batch_equals_the_oracle(runner, data):
    batch_of = data.draw(requests, "requests (qo, kv)")
    shape = runner.like(data.draw(heads(), "heads"))
    placement = data.draw(placements(shape.dim_qk == shape.dim_vo), "placement")
    name = data.draw(st.sampled_from(sorted(VARIANTS)), "variant")
    num_ctas = data.draw(st.sampled_from([1, 2, 7, 24, 132]), "num_ctas")
    qo, kv = ([r[i] for r in batch_of] for i in (0, 1))
    sequences = random_sequences(qo, kv, shape, seed=placement.seed)
    positions = Positions()
    if data.draw(st.booleans(), "positions given") and name not in ("custom_mask", "document"):
        generator = torch.Generator().manual_seed(placement.seed)
        positions = Positions(*(torch.randint(0, 200, (sum(n),), generator=generator) for n in (qo, kv)))
    event(f"{name}, {placement.storage}, positions {positions.q_pos is not None}")
    note(f"{sum(qo)} rows, {sum(kv)} keys")
    pair = runner.pair(name, sequences)
    batch = runner.place(sequences, placement)
    scale = data.draw(st.sampled_from([None, 0.0, -0.3, 1.0]), "sm_scale")
    expected = expect(batch, pair.functors, positions=positions, sm_scale=scale, luck=2.0)
    check(runner, batch, pair, num_ctas=(num_ctas,), positions=positions, sm_scale=scale, expected=expected)


def window(left: int):
    return lambda q_pos, kv_pos: kv_pos >= q_pos - left


def ahead(right: int):
    return lambda q_pos, kv_pos: kv_pos <= q_pos + right


def first_keys(count: int):
    return lambda kv_pos: kv_pos < count


def first_rows(count: int):
    return lambda q_idx: q_idx < count


def stripes(period: int):
    return lambda kv_pos, qo_head: (kv_pos + qo_head) % period != 0


def diagonal(period: int):
    return lambda q_pos, kv_pos: (q_pos - kv_pos) // period % 2 == 0


def of_the_request(factor: int):
    return lambda kv_pos, kv_len, batch: kv_pos * 2 < kv_len + batch * factor


ATOMS = (window, ahead, first_keys, first_rows, stripes, diagonal, of_the_request)


@st.composite
def masks(draw, depth: int = 3):
    """(variant, the same mask for the oracle), atoms put together by &, | and ~."""
    how = draw(st.sampled_from(["atom", "and", "or", "not"])) if depth else "atom"
    if how == "atom":
        functor = draw(st.sampled_from(ATOMS))(draw(st.integers(1, 150)))
        return al.Variant(logits_mask=functor), functor
    first, mask = draw(masks(depth - 1))
    if how == "not":
        return ~first, oracle.Combined(torch.logical_not, (mask,))
    second, other = draw(masks(depth - 1))
    if how == "and":
        return first & second, oracle.Combined(torch.logical_and, (mask, other))
    return first | second, oracle.Combined(torch.logical_or, (mask, other))


@pytest.mark.case(53)
@pytest.mark.case(54)
@settings(max_examples=sized(120, 25), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_combination_of_masks(runner, data):
    """What the analysis leaves out of a plan was masked, whatever the mask and the positions."""
    variant, mask = data.draw(masks(), "mask")
    batch_of = data.draw(requests, "requests (qo, kv)")
    qo, kv = ([r[i] for r in batch_of] for i in (0, 1))
    shape = runner.like(Heads.of(4, 2, 16, torch.float32))
    sequences = random_sequences(qo, kv, shape, seed=len(batch_of))
    positions = Positions()
    if data.draw(st.booleans(), "positions given"):
        generator = torch.Generator().manual_seed(len(batch_of))
        positions = Positions(*(torch.randint(0, 200, (sum(n),), generator=generator) for n in (qo, kv)))
    pair = Pair(variant, oracle.Functors(mask=mask))
    batch = runner.place(sequences, Placement("table", 5))
    expected = expect(batch, pair.functors, positions=positions, luck=2.0)
    check(runner, batch, pair, num_ctas=(7,), positions=positions, expected=expected)


@pytest.mark.case("62a")
@settings(max_examples=sized(40, 8), deadline=None, derandomize=True)
@given(data=st.data())
def test_any_cut_of_the_keys_merges_to_the_whole(runner, data):
    """⊕ over engine states in any order, some of them empty."""
    kv, qo = data.draw(st.integers(0, sized(300, 100)), "kv"), data.draw(st.integers(1, sized(20, 5)), "qo")
    shape = runner.like(data.draw(heads(), "heads"))
    cuts = sorted(data.draw(st.lists(st.integers(0, kv), max_size=4), "cuts"))
    sequences = random_sequences([qo], [kv], shape, seed=kv)
    edges, states = [0, *cuts, kv], []
    for start, end in itertools.pairwise(edges):
        part = Sequences(shape, sequences.q, (sequences.k[0][start:end],), (sequences.v[0][start:end],))
        batch = runner.place(part, Placement("csr", 7))
        attn = runner.for_batch(batch)
        attn.plan(batch.qo_indptr, batch.kv, num_ctas=7)
        states.append(attn.run(batch.q, *batch.caches, return_state=True))
    states = data.draw(st.permutations(states), "order")
    out, lse = al.merge_states([s[0] for s in states], [s[1] for s in states])
    whole = runner.place(sequences, Placement())
    compare(whole, out, lse, expect(whole, oracle.Functors(), out_dtype=torch.float32, luck=2.0))
