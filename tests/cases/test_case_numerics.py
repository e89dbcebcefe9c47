"""Cases 1, 3, 6, 8, 10: extreme logits, rows that see nothing, rounding of the weights, odd scales."""

import math

import oracle
import pytest
import torch
from harness import NUM_CTAS, Expected, Pair, Runner, check, default_scale, each_dtype, each_placement, expect, run
from interpreted import sized
from oracle import Functors

import attnloom as al
from attnloom.testing.inputs import Batch, Heads, Placement, Sequences, random_sequences
from attnloom.testing.tolerance import State, output_bound

WIDE = Heads.of(16, 1, 128)


def equal_logits(level: float, kv: int, dtype: torch.dtype, qo: int = 1) -> tuple[Sequences, float]:
    """q·k = `level` for every key, as near as the dtype represents it (one product each); and its exact value."""
    heads = Heads.of(16, 1, 128, dtype)
    base = random_sequences([qo], [kv], heads)
    x = torch.tensor(abs(level) ** 0.5).to(dtype)
    q, k = torch.zeros_like(base.q[0]), torch.zeros_like(base.k[0])
    q[..., 5], k[..., 5] = x, math.copysign(float(x), level)
    return Sequences(heads, (q,), (k,), base.v), math.copysign(float(x) ** 2, level)


def rounding_of_weights(lse: float) -> float:
    """Relative error of the weights by which parts of a cut row meet: their lse are float32 numbers of this size."""
    return torch.finfo(torch.float32).eps * abs(lse)


def cuts(runner: Runner, batch: Batch, num_ctas: int, variant: al.Variant | None = None) -> bool:
    """Whether a plan for so many workers cuts rows into parts; a worker may be several CTAs, so even one may cut."""
    attn = runner.for_batch(batch, variant=variant)
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
    return attn.current_plan.merges.entries.shape[0] > 0


def widened(expected: Expected, slack: float) -> Expected:
    """The model erring by as much more as lets a result err by `slack` more."""
    model = []
    for exact, low in zip(expected.exact, expected.model, strict=True):
        error = (low.out.double() - exact.out).abs().max() + slack / 2
        model.append(State(exact.out + error, low.lse))
    return Expected(expected.exact, model)


@pytest.mark.case(1)
@each_dtype
@pytest.mark.parametrize("level", [-1e4, -4.9e4, -5.1e4, -2.45e5, -1e6])
@pytest.mark.parametrize(
    ("storage", "qo", "kv"), [("csr", 1, 64), ("ragged", 3, 64), ("ragged", 1, 1), ("table", 1, sized(400, 70))]
)
def test_very_negative_logits_are_ordinary(*, runner, level, storage, qo, kv, dtype):
    sequences, exact = equal_logits(level, kv, dtype, qo)
    batch = runner.place(sequences, Placement(storage))
    wanted = exact * default_scale(batch) + math.log(kv)
    mean = sequences.v[0].double().mean(0).expand(qo, 16, 128)
    expected = expect(batch, Functors())
    meeting = rounding_of_weights(wanted) * float(sequences.v[0].abs().max())
    for num_ctas in NUM_CTAS:
        slack = meeting if cuts(runner, batch, num_ctas) else 0.0
        [(out, lse)] = check(runner, batch, num_ctas=(num_ctas,), expected=widened(expected, slack))
        bound = 2 * torch.finfo(dtype).eps * mean.abs().max() + 1e-6 + slack
        assert (out.cpu().double() - mean).abs().max() <= bound
        assert (lse.cpu().double() - wanted).abs().max() <= 1e-4 + 4e-7 * abs(wanted)


@pytest.mark.case(1)
@each_dtype
@pytest.mark.parametrize("level", [-1e4, -4.9e4, -5.1e4, -2.45e5, -1e6])
@pytest.mark.parametrize("kv", [64, sized(400, 100)])
def test_the_least_negative_key_wins(runner, level, kv, dtype):
    sequences, _ = equal_logits(level, kv, dtype)
    sequences.k[0][0] *= (level + 5000) / level
    batch = runner.place(sequences, Placement())
    for out, _ in check(runner, batch):
        # a folded scale gives the greatest key a weight that is only nearly 1; it cancels in the normalisation
        assert torch.allclose(out.cpu(), sequences.v[0][:1].expand(1, 16, 128), rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.case(3)
@each_dtype
@each_placement
def test_causal_rows_before_the_first_key(runner, placement, dtype):
    sequences = random_sequences([37, 129, 128], [5, 1, 0], runner.fit(Heads.of(4, 2, 32, dtype)))
    if placement.arrangement == "mixed":  # and no group
        sequences = random_sequences([37, 129, 128], [5, 1, 0], runner.fit(Heads.of(2, 2, 32, dtype)))
    batch = runner.place(sequences, placement)
    group = sequences.heads.num_qo // 2
    for out, lse in check(runner, batch, Pair(al.variants.causal(), oracle.causal())):
        blind = torch.cat([torch.arange(32), torch.arange(37, 37 + 128), torch.arange(37 + 129, 37 + 129 + 128)])
        assert (out[blind] == 0).all()
        assert torch.isneginf(lse[blind]).all()
        assert torch.equal(out[32].cpu(), sequences.v[0][0].repeat_interleave(group, 0))


@pytest.mark.case(3)
@pytest.mark.parametrize("storage", ["ragged", "csr"])
def test_one_key_each_and_many_rows(runner, storage):
    batch = runner.place(random_sequences([76, 34, 146], [1, 1, 1], runner.fit(Heads.of(4, 2, 32))), Placement(storage))
    for out, lse in check(runner, batch, Pair(al.variants.causal(), oracle.causal())):
        last = torch.zeros(256, dtype=torch.bool)
        last[[75, 109, 255]] = True
        assert torch.isfinite(lse[last]).all()
        assert torch.isneginf(lse[~last]).all()
        assert (out[~last] == 0).all()


@pytest.mark.case(6)
@each_dtype
@pytest.mark.parametrize("cap", [50.0, 30.0])
@pytest.mark.parametrize("logit", [1000.0, 3000.0, 4400.0, 5000.0, 1e4, -1e4])
def test_soft_cap_saturates(runner, cap, logit, dtype):
    kv = sized(300, 70)
    sequences, _ = equal_logits(abs(logit) * 128**0.5, kv, dtype, qo=2)
    sign = math.copysign(1.0, logit) * torch.where(torch.arange(kv) % 2 == 0, 1.0, -1.0)
    sequences.k[0].mul_(sign[:, None, None].to(dtype))
    batch = runner.place(sequences, Placement())
    pair = Pair(al.variants.soft_cap(cap), oracle.soft_cap(cap))
    mean = sequences.v[0][sign > 0].double().mean(0).expand(2, 16, 128)
    wanted = cap + math.log(kv // 2)
    expected = expect(batch, pair.functors)
    meeting = rounding_of_weights(wanted) * float(mean.abs().max())  # of parts whose means are as large
    for num_ctas in NUM_CTAS:
        slack = meeting if cuts(runner, batch, num_ctas, pair.variant) else 0.0
        [(out, lse)] = check(runner, batch, pair, num_ctas=(num_ctas,), expected=widened(expected, slack))
        assert (out.cpu().double() - mean).abs().max() <= 2 * torch.finfo(dtype).eps * mean.abs().max() + 1e-6
        assert (lse.cpu() - wanted).abs().max() <= 1e-4


@pytest.mark.case(6)
def test_soft_cap_of_zero_is_off_and_nonsense_is_refused(runner):
    batch = runner.place(random_sequences([2], [30], Heads.of(4, 2, 64)), Placement())
    check(runner, batch, Pair(al.variants.soft_cap(0.0), Functors()))
    for wrong in (-1.0, math.inf, math.nan):
        with pytest.raises(al.errors.AttnLoomError, match="cap"):
            al.variants.soft_cap(wrong)


@pytest.mark.case(8)
@pytest.mark.parametrize(("kv", "qo", "dtype"), sized(
    [(64, 125, torch.bfloat16), (64, 1, torch.float16), (4096, 125, torch.bfloat16), (65536, 4, torch.bfloat16),
     (65536, 1, torch.float16)],
    [(64, 125, torch.float16), (2048, 1, torch.float16)],  # it truncates where a GPU rounds to bf16
))  # fmt: skip
def test_rounded_weights_bring_no_bias(runner, kv, qo, dtype):
    heads = runner.fit(Heads.of(8, 1, 32, dtype))
    sequences = random_sequences([qo], [kv], heads)
    v = (sequences.v[0].float() * 0.5 + 1).to(dtype)  # a mean to be biased
    batch = runner.place(Sequences(heads, sequences.q, sequences.k, (v,)), Placement(page_size=64))
    scale = 4.0 / heads.dim_qk**0.5
    [(out, _)] = check(runner, batch, sm_scale=scale, num_ctas=(7,))
    request = oracle.Request(sequences.q[0], sequences.k[0], v)
    exact = oracle.attend(request, Functors(), scale).out
    rounding = torch.finfo(dtype).eps / math.sqrt(12 * exact.numel())  # what rounding `out` leaves in the mean
    bias = ((out.cpu().double() - exact).mean() / exact.abs().mean()).abs().item()
    assert bias < 1e-4 + 4 * rounding


@pytest.mark.case(8)
@each_dtype
def test_the_two_tile_classes_agree(runner, dtype):
    """Rows of one long request, computed together (prefill-like tiles) and alone (decode-like tiles)."""
    heads = Heads.of(4, 2, 64, dtype)
    rows, kv = sized((40, 700), (20, 70))
    sequences = random_sequences([rows], [kv], heads, seed=3)
    q, k, v = sequences.q[0], sequences.k[0], sequences.v[0]
    batch = runner.place(sequences, Placement())
    expected = expect(batch, Functors())
    whole, _ = check(runner, batch, num_ctas=(132,), expected=expected)[0]
    alone = Sequences(heads, tuple(q[i : i + 1] for i in range(rows)), (k,) * rows, (v,) * rows)
    single, _ = check(runner, runner.place(alone, Placement()), num_ctas=(132,))[0]
    bound = 2 * output_bound(expected.exact[0].out, expected.model[0].out, dtype)
    assert (whole.double() - single.double()).abs().max() <= bound


@pytest.mark.case(10)
@each_dtype
@pytest.mark.parametrize("scale", [0, 0.0, -0.1, -3, 1e-30])
def test_scales_at_and_below_zero(runner, scale, dtype):
    lengths = sized(([1, 9, 200], [70, 9, 210]), ([1, 9, 40], [70, 9, 50]))
    batch = runner.place(random_sequences(*lengths, Heads.of(4, 2, 64, dtype)), Placement())
    check(runner, batch, Pair(al.variants.causal(), oracle.causal()), sm_scale=scale)


@pytest.mark.case(10)
@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, "1", True])
def test_scales_that_are_no_number_are_refused(runner: Runner, scale):
    with pytest.raises(al.errors.InvalidArgument, match="sm_scale") as refused:
        runner.attention(WIDE, sm_scale=scale)
    assert "finite number" in str(refused.value)


@pytest.mark.case(10)
def test_masking_follows_scaling(runner):
    """A negative scale must not turn masked keys into the largest."""
    dtype = runner.dtype(torch.float32)
    sequences, _ = equal_logits(-1e4, 40, dtype, qo=4)
    batch = runner.place(sequences, Placement())
    attn = runner.for_batch(batch, variant=al.variants.causal(), sm_scale=-1.0)
    attn.plan(batch.qo_indptr, batch.kv)
    out, _ = run(attn, batch)
    for row in range(4):
        mean = sequences.v[0][: 37 + row].double().mean(0).expand(16, 128)
        bound = max(1e-5, torch.finfo(dtype).eps)
        torch.testing.assert_close(out[row].cpu().double(), mean, atol=bound, rtol=bound)
