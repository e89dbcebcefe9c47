"""flash_attn_varlen_func against dense fp64: ragged keys, and pages through a block table, in hostile memory."""

import pytest
import torch
from flash_dense import DTYPES, OPTIONS, check, cumulative, ints, normal
from hypothesis import given, settings
from hypothesis import strategies as st

import attnloom as al
from attnloom.integrations.flash_attn import flash_attn_varlen_func
from attnloom.testing.inputs import Heads, Placement, place, random_sequences

UNUSED = (-1, 2**31 - 1)


def heads_of(dtype=torch.float32, kv_heads=2):
    return Heads.of(4, kv_heads, 32, dtype)


def pages_of(sequences, page_size, device):
    """The poisoned pool of `sequences` with permuted pages, and a block table whose unused entries are no pages."""
    batch = place(sequences, Placement("csr", page_size))
    columns = max((len(pages) for pages in batch.pages), default=0) + 1
    table = [[*pages, *(UNUSED[i % 2] for i in range(columns - len(pages)))] for pages in batch.pages]
    pool = tuple(x.to(device) for x in (batch.pool.k_nhd, batch.pool.v_nhd))
    return pool, ints(table, device).view(len(table), columns)


def check_all(sequences, device, page_size=None, slopes=None, slack=0, **options):
    """One call, every sequence of it compared; rows of q past the last sequence are poison."""
    qo_len, kv_len = sequences.qo_len, sequences.kv_len
    q = torch.cat((*sequences.q, torch.full((slack, 4, 32), torch.nan, dtype=sequences.heads.dtype))).to(device)
    if page_size is None:
        unused = torch.full((slack, sequences.heads.num_kv, 32), torch.nan, dtype=q.dtype)
        (k, v), table = (torch.cat((*x, unused)).to(device) for x in (sequences.k, sequences.v)), None
    else:
        (k, v), table = pages_of(sequences, page_size, device)
    out, lse, _ = flash_attn_varlen_func(
        q,
        k,
        v,
        cumulative(qo_len, device),
        cumulative(kv_len, device),
        max(qo_len, default=0),
        max(kv_len, default=0),
        alibi_slopes=None if slopes is None else slopes.to(device),
        return_attn_probs=True,
        block_table=table,
        **options,
    )
    assert out.shape == q.shape
    assert lse.shape == (4, q.shape[0])
    start = 0
    for b, (own_q, own_k, own_v) in enumerate(zip(sequences.q, sequences.k, sequences.v, strict=True)):
        rows = slice(start, start + own_q.shape[0])
        own = slopes if slopes is None or slopes.ndim == 1 else slopes[b]
        check((out[rows], lse[:, rows]), (own_q, own_k, own_v), slopes=own, **options)
        start = rows.stop
    assert not out[start:].any()
    assert torch.isneginf(lse[:, start:]).all()


LENGTHS = [3, 0, 1, 20, 7], [5, 4, 40, 20, 0]


@pytest.mark.parametrize("page_size", [None, 1, 3, 16, 256])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(device, name, page_size):
    slopes = normal(5, 4, seed=4).abs() if name == "all" else None
    check_all(random_sequences(*LENGTHS, heads_of()), device, page_size, slopes, slack=2, **OPTIONS[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [None, 16])
def test_every_dtype(device, page_size, dtype):
    slopes = normal(4, seed=4).abs()
    check_all(random_sequences(*LENGTHS, heads_of(dtype)), device, page_size, slopes, **OPTIONS["all"])


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 70)), max_size=5),
    page_size=st.sampled_from([None, 1, 2, 5, 16]),
    name=st.sampled_from(sorted(OPTIONS)),
    kv_heads=st.sampled_from([1, 2, 4]),
)
def test_any_lengths(lengths, page_size, name, kv_heads):
    qo_len, kv_len = ([pair[i] for pair in lengths] for i in (0, 1))
    if not lengths:
        return  # no memory to place: the test of an empty batch has it
    check_all(random_sequences(qo_len, kv_len, heads_of(kv_heads=kv_heads)), "cpu", page_size, **OPTIONS[name])


def arguments(**changed):
    sequences = random_sequences([2, 3], [4, 6], heads_of())
    q, k, v = (torch.cat(x) for x in (sequences.q, sequences.k, sequences.v))
    named = {"q": q, "k": k, "v": v, "cu_seqlens_q": cumulative([2, 3]), "cu_seqlens_k": cumulative([4, 6])}
    return {**named, "max_seqlen_q": 3, "max_seqlen_k": 6, **changed}


def test_an_empty_batch(device):
    empty = torch.zeros(0, 4, 32, device=device)
    out, lse, _ = flash_attn_varlen_func(
        empty, empty, empty, ints([0], device), ints([0], device), 0, 0, return_attn_probs=True
    )
    assert out.shape == (0, 4, 32)
    assert lse.shape == (4, 0)


def test_bounds_above_the_lengths_and_other_integers(device):
    here = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in arguments().items()}
    expected = flash_attn_varlen_func(**here)
    for changed in (
        {"max_seqlen_q": 100, "max_seqlen_k": 1000},
        {"max_seqlen_q": torch.tensor(3), "max_seqlen_k": torch.tensor(6)},
        {"cu_seqlens_q": here["cu_seqlens_q"].long(), "cu_seqlens_k": here["cu_seqlens_k"].cpu()},
        {"cu_seqlens_k": torch.stack([here["cu_seqlens_k"]] * 2, 1)[:, 1]},
    ):
        assert torch.equal(flash_attn_varlen_func(**{**here, **changed}), expected)


TABLE = torch.zeros(2, 1, dtype=torch.int32)
POOL = torch.zeros(1, 8, 2, 32)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"max_seqlen_q": 2}, al.errors.InvalidArgument),
        ({"max_seqlen_k": 5}, al.errors.InvalidArgument),
        ({"max_seqlen_q": 3.0}, al.errors.InvalidArgument),
        ({"cu_seqlens_q": ints([1, 3, 5])}, al.errors.InvalidMetadata),
        ({"cu_seqlens_k": ints([0, 7, 6])}, al.errors.InvalidMetadata),
        ({"cu_seqlens_k": ints([0, 4, 6, 10])}, al.errors.InvalidMetadata),
        ({"cu_seqlens_k": ints([0, 5, 11])}, al.errors.InvalidMetadata),
        ({"cu_seqlens_q": ints([0, 3, 6])}, al.errors.PlanMismatch),
        ({"cu_seqlens_q": torch.tensor([0.0, 2.0, 5.0])}, al.errors.InvalidMetadata),
        ({"cu_seqlens_q": [0, 2, 5]}, al.errors.InvalidMetadata),
        ({"dropout_p": 0.5}, al.errors.NotYetSupported),
        ({"block_table": TABLE}, al.errors.ShapeMismatch),
        ({"block_table": TABLE[:1], "k": POOL, "v": POOL}, al.errors.InvalidMetadata),
        ({"block_table": TABLE.float(), "k": POOL, "v": POOL}, al.errors.InvalidMetadata),
        ({"block_table": TABLE + 1, "k": POOL, "v": POOL}, al.errors.InvalidMetadata),
        ({"block_table": TABLE, "k": POOL[:, :5], "v": POOL[:, :5]}, al.errors.InvalidMetadata),
    ],
)
def test_what_is_refused(changed, error):
    with pytest.raises(error):
        flash_attn_varlen_func(**arguments(**changed))


def test_gradients_are_refused():
    given = arguments()
    given["k"].requires_grad_(True)
    with pytest.raises(al.errors.GradientRequired):
        flash_attn_varlen_func(**given)
