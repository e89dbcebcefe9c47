"""Cases 60, 62b, 62d: every head ratio, dim and length; the lse's layout; the same bits run to run."""

from itertools import product

import oracle
import pytest
import torch
from harness import DTYPES, NUM_CTAS, PLACEMENTS, Pair, check, compare, each_dtype, expect, run
from interpreted import sized

import attnloom as al
from attnloom.testing.inputs import Heads, Placement, Sequences, random_sequences

RATIOS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 64)
DIMS = ((16, 16), (32, 32), (64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 192), (256, 256), (512, 512))
PAIRS = ((192, 128), (576, 512), (64, 128), (128, 16))
QO = (1, 2, 3, 16, 17, 64)


def covering() -> list[tuple[int, int, int, torch.dtype]]:
    """Every ratio with a small dim and a dim of its own, every dim with three ratios; dtypes take turns."""
    chosen = {(ratio, DIMS[i % len(DIMS)]) for i, ratio in enumerate(RATIOS)}
    chosen |= set(product(sized((1, 3, 8), (3,)), DIMS + PAIRS)) | {(16, (576, 512)), (64, (128, 128))}
    chosen |= sized({(ratio, (64, 64)) for ratio in RATIOS}, set())
    return [(r, qk, vo, DTYPES[i % 3]) for i, (r, (qk, vo)) in enumerate(sorted(chosen))]


@pytest.mark.case(60)
@pytest.mark.parametrize(("ratio", "qk", "vo", "dtype"), covering())
def test_head_ratios_and_dims(runner, ratio, qk, vo, dtype):
    """All query lengths in one batch; the placement follows the combination."""
    heads = Heads(ratio * (1 if ratio > 8 else 2), 1 if ratio > 8 else 2, qk, vo, runner.dtype(dtype))
    qo = list(QO if ratio * qk <= 2048 else QO[:5])
    kv = sized([65, 40, 300, 16, 130, 64], [33, 40, 70, 16, 50, 64])
    sequences = random_sequences(qo, kv[: len(qo)], heads)
    placement = PLACEMENTS[(ratio + qk // 16) % len(PLACEMENTS)]
    if qk != vo and placement.arrangement in ("packed", "layers"):
        placement = PLACEMENTS[0]
    causal = (ratio + qk // 16) % 2 == 0
    pair = Pair(al.variants.causal(), oracle.causal()) if causal else None
    check(runner, runner.place(sequences, placement), pair, num_ctas=sized((7, 132), (7,)))


@pytest.mark.case(60)
@each_dtype
@pytest.mark.parametrize("ratio", [1, 3, 8])
@pytest.mark.parametrize("causal", [True, False])
def test_long_queries(runner, ratio, causal, dtype):
    lengths = sized(([300, 300], [300, 517]), ([40, 40], [40, 75]))
    sequences = random_sequences(*lengths, Heads.of(ratio, 1, 64, dtype))
    pair = Pair(al.variants.causal(), oracle.causal()) if causal else None
    check(runner, runner.place(sequences, Placement()), pair)


@pytest.mark.case(60)
@pytest.mark.parametrize("dim", [56, 72, 100, 0, -64, 1024, 64.0, True])
def test_other_head_dims_are_refused_in_the_constructor(dim):
    with pytest.raises(al.errors.InvalidArgument, match="head_dim") as refused:
        al.BatchAttention(num_qo_heads=4, num_kv_heads=2, head_dim=dim, dtype=torch.bfloat16)
    if isinstance(dim, int) and dim > 1:
        assert "16, 32, 64, 80, 96, 112, 128, 192, 256, 512" in str(refused.value)


@pytest.mark.case(60)
@pytest.mark.parametrize(("num_qo", "num_kv"), [(4, 3), (2, 4), (0, 1), (4, 0), (-4, 2), (4.0, 2)])
def test_other_head_counts_are_refused_in_the_constructor(num_qo, num_kv):
    with pytest.raises(al.errors.InvalidArgument, match=r"num_(qo|kv)_heads"):
        al.BatchAttention(num_qo_heads=num_qo, num_kv_heads=num_kv, head_dim=64, dtype=torch.bfloat16)


@pytest.mark.case(60)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float8_e4m3fn, "bfloat16", None])
def test_other_dtypes_are_refused_in_the_constructor(dtype):
    with pytest.raises(al.errors.AttnLoomError, match=r"dtype.*float16.*bfloat16.*float32"):
        al.BatchAttention(num_qo_heads=4, num_kv_heads=2, head_dim=64, dtype=dtype)


@pytest.mark.case("62b")
@each_dtype
@pytest.mark.parametrize(("num_qo", "num_kv", "dim"), [(32, 8, 128), (16, 1, 192)])
@pytest.mark.parametrize("storage", ["ragged", "table"])
def test_the_lse_of_each_head_stays_its_own(*, runner, num_qo, num_kv, dim, storage, dtype):
    """Each head's queries have a scale of their own, so a transposed lse is far off; unsplit and split."""
    heads = Heads.of(num_qo, num_kv, dim, dtype)
    base = random_sequences([1, 1, 2], [sized(1500, 100), 64, 7], heads)
    gain = torch.linspace(0.1, 3.0, num_qo)[:, None]
    sequences = Sequences(heads, tuple((q * gain).to(dtype) for q in base.q), base.k, base.v)
    batch = runner.place(sequences, Placement(storage))
    expected = expect(batch, oracle.Functors())
    for _, lse in check(runner, batch, expected=expected):
        assert lse.shape == (4, num_qo)
        assert lse.stride() == (num_qo, 1)


@pytest.mark.case("62b")
def test_merging_states_of_unequal_heads(runner):
    heads = Heads.of(8, 2, 192)
    kv, cut = sized((400, 150), (100, 40))
    base = random_sequences([3], [kv], heads)
    q = (base.q[0] * torch.linspace(0.1, 3.0, 8)[:, None]).bfloat16()
    states = []
    for start, end in ((0, cut), (cut, kv)):
        part = Sequences(heads, (q,), (base.k[0][start:end],), (base.v[0][start:end],))
        batch = runner.place(part, Placement())
        attn = runner.for_batch(batch)
        attn.plan(batch.qo_indptr, batch.kv)
        states += attn.run(batch.q, *batch.caches, return_state=True)
    out, lse = al.merge_state(*states)
    whole = runner.place(Sequences(heads, (q,), base.k, base.v), Placement())
    expected = expect(whole, oracle.Functors(), out_dtype=torch.float32)

    compare(whole, out, lse, expected)


@pytest.mark.case("62d")
@pytest.mark.not_interpreted("the interpreter does not compute with torch's threads")
@each_dtype
def test_the_same_bits_with_any_number_of_threads(runner, dtype):
    sequences = random_sequences([1, 70, 3, 200], [900, 70, 333, 200], Heads.of(8, 2, 64, dtype))
    batch = runner.place(sequences, Placement())
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(check(runner, batch, runner.pair("user", sequences)))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(results[0], other, strict=True))


@pytest.mark.case("62d")
@each_dtype
@pytest.mark.parametrize("variant", sized(["causal", "user", "sinks", "sigmoid"], ["user", "sigmoid"]))
def test_the_same_bits_run_to_run(runner, variant, dtype):
    """Two objects, two plans, two runs each, other memory contents in between."""
    lengths = sized(([1, 70, 3, 1], [900, 70, 333, 64]), ([1, 9, 3, 1], [100, 9, 45, 32]))
    sequences = random_sequences(*lengths, Heads.of(8, 2, 64, dtype))
    pair = runner.pair(variant, sequences)
    softmax = pair.functors.use_softmax
    for num_ctas in NUM_CTAS:
        results = []
        for seed in (0, 1):
            batch = runner.place(sequences, Placement(seed=seed, poison=("nan", "inf")[seed]))
            attn = runner.for_batch(batch, variant=pair.variant)
            for _ in range(2):
                attn.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
                results += [run(attn, batch, return_lse=softmax) for _ in range(2)]
        for out, lse in results[1:]:
            assert torch.equal(out, results[0][0])
            assert lse is None or torch.equal(lse, results[0][1])
