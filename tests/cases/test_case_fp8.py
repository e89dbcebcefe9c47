"""Cases 61 and 11 of fp8 caches: the oracle's attention over the dequantised cache, scales of every kind."""

from __future__ import annotations

import oracle
import pytest
import torch
from harness import Scales, check, compare, dtype_id, expect, run
from interpreted import sized

import attnloom as al
from attnloom.testing.inputs import Heads, Placement, random_sequences
from attnloom.testing.tolerance import State, assert_state_close

FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2)
DIMS = ((64, 64), (128, 128), (256, 256), (192, 128))
PLACEMENTS = (
    Placement("csr", 16),
    Placement("table", 1, "NHD", "layers"),
    Placement("table", 64, "HND", "packed"),
    Placement("csr", 5, "HND", "interleaved"),
    Placement("ragged", kv_layout="HND", arrangement="mixed"),
)
STEPS = {
    "decode": sized(([1] * 4, [1, 64, 700, 129]), ([1] * 3, [1, 64, 97])),
    "prefill": sized(([40, 130, 1], [40, 130, 1]), ([5, 40], [5, 40])),
    "append": sized(([1, 5, 0, 33], [300, 70, 9, 90]), ([1, 5, 0], [70, 40, 9])),
}

each_format = pytest.mark.parametrize("fp8", FORMATS, ids=dtype_id)
each_dtype = pytest.mark.parametrize("dtype", sized((torch.float16, torch.bfloat16), (torch.float16,)), ids=dtype_id)


def heads_of(dims: tuple[int, int], dtype: torch.dtype, fp8: torch.dtype) -> Heads:
    return Heads(4, 2, *dims, dtype, fp8)


def scales_of(kind: str, device: str) -> Scales:
    per_head = torch.tensor([[0.25, 3.0], [0.5, 0.1]], device=device)
    return {
        "default": Scales(),
        "numbers": Scales(0.25, 0.5),
        "number of k": Scales(k=1.7),
        "0-d": Scales(torch.tensor(0.25, device=device), torch.tensor(0.5, device=device)),
        "per head": Scales(per_head[0], per_head[1]),
        "strided, one": Scales(per_head[:, 1], torch.tensor([0.3], device=device)),
    }[kind]


KINDS = ("default", "numbers", "number of k", "0-d", "per head", "strided, one")


def crossed() -> list[object]:
    """Steps by placements by head dims, in turn; each with a kind of scales."""
    found = []
    for i, step in enumerate(STEPS):
        for j, placement in enumerate(PLACEMENTS):
            for n, dims in enumerate(DIMS):
                if placement.arrangement in ("layers", "packed") and dims[0] != dims[1]:
                    continue
                kind = KINDS[(i + j + n) % len(KINDS)]
                if sized(True, n == (i + j) % 4 or dims == (64, 64)):
                    name = f"{step}-{placement.storage}{placement.page_size}-{dims}-{kind}"
                    found.append(pytest.param(step, placement, dims, kind, id=name))
    return found


@pytest.mark.case(61)
@each_format
@each_dtype
@pytest.mark.parametrize(("step", "placement", "dims", "kind"), crossed())
def test_attention_is_that_of_the_dequantised_cache(*, runner, step, placement, dims, kind, dtype, fp8):
    batch = runner.place(random_sequences(*STEPS[step], heads_of(dims, dtype, fp8)), placement)
    pair = runner.pair("causal", batch.sequences)
    check(runner, batch, pair, scales=scales_of(kind, runner.device), num_ctas=sized((1, 24), (7,)))


@pytest.mark.case(61)
@each_format
@pytest.mark.parametrize("variant", ["full", "window", "cap_alibi", "sinks", "sigmoid", "user"])
def test_variants_see_scaled_logits(runner, variant, fp8):
    sequences = random_sequences(*STEPS["append"], heads_of((64, 64), torch.float16, fp8), seed=2)
    batch = runner.place(sequences, Placement("table", 16))
    pair = runner.pair(variant, sequences)
    check(runner, batch, pair, scales=scales_of("per head", runner.device), num_ctas=(1, sized(24, 7)))


@pytest.mark.case(61)
@each_format
@each_dtype
@pytest.mark.parametrize("variant", ["causal", "cap_alibi", "sigmoid"])
@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_bits_are_those_of_an_unquantised_run(runner, dtype, fp8, variant, as_tensor):
    """Conversion is exact, and so are scales that are powers of two: not one bit differs.

    On a GPU tensor cores may sum a head's dims in another order where elements are read four by four, not two by two.
    """
    qo, kv = sized(([1, 1, 60, 3], [700, 33, 90, 300]), ([1, 20, 3], [70, 33, 97]))
    sequences = random_sequences(qo, kv, heads_of((64, 64), dtype, fp8), seed=3)
    batch = runner.place(sequences, Placement("csr", 16, poison="zero"))
    pair = runner.pair(variant, sequences)
    softmax = pair.functors.use_softmax
    k_scale, v_scale = (torch.tensor(x, device=runner.device) if as_tensor else x for x in (0.25, 0.5))
    k, v = ((x.float() * scale).to(dtype) for x, scale in zip(batch.caches, (0.25, 0.5), strict=True))
    quantised = runner.for_batch(batch, variant=pair.variant)
    plain = runner.attention(Heads(4, 2, 64, 64, dtype), page_size=16, variant=pair.variant)
    for num_ctas in (1, sized(24, 7)):
        for attn in (quantised, plain):
            attn.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
        given = quantised.run(batch.q, *batch.caches, k_scale=k_scale, v_scale=v_scale, return_lse=softmax)
        wanted = plain.run(batch.q, k, v, return_lse=softmax)
        pairs = zip(given, wanted, strict=True) if softmax else [(given, wanted)]
        for ours, theirs in pairs:
            if runner.device == "cpu":
                assert torch.equal(ours, theirs)
            else:
                eps = torch.finfo(ours.dtype if ours.dtype != torch.float32 else torch.float16).eps
                assert (ours - theirs).abs().max() <= 2 * eps * max(1.0, float(theirs.abs().max()))


@pytest.mark.case(61)
@each_format
def test_states_carry_the_scale_of_v(runner, fp8):
    """Halves of the keys, merged and finished, are the whole; of another scale each."""
    heads = heads_of((64, 64), torch.float16, fp8)
    sequences = random_sequences([3], [sized(200, 90)], heads)
    q, k, v = (x[0].to(runner.device) for x in (sequences.q, sequences.k, sequences.v))
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    attn = runner.attention(heads, variant=al.variants.sinks(sinks.to(runner.device)))
    half, states = k.shape[0] // 2, []
    scales = ((0.25, 0.5), (2.0, 1.5))
    for keys, (k_scale, v_scale) in zip((slice(half), slice(half, None)), scales, strict=True):
        attn.plan([0, 3], al.RaggedKV([0, k[keys].shape[0]]), num_ctas=sized(24, 7))
        states.append(attn.run(q, k[keys], v[keys], k_scale=k_scale, v_scale=v_scale, return_state=True))
    merged = al.merge_states(*zip(*states, strict=True))
    out, lse = al.finish_state(*merged, variant=al.variants.sinks(sinks.to(runner.device)))
    by_key = torch.arange(k.shape[0]).lt(half)[:, None, None]
    real = [
        x.cpu().float().double() * torch.where(by_key, *(scale[i] for scale in scales)) for i, x in enumerate((k, v))
    ]
    request = oracle.Request(q.cpu(), *real)
    results = [f(request, oracle.sinks(sinks), 64**-0.5) for f in (oracle.attend, oracle.model)]
    assert_state_close(State(out.cpu().half(), lse.cpu()), *(State(r.out, r.lse) for r in results))


@pytest.mark.case(61)
@each_format
@pytest.mark.parametrize("scale", [0.0, 2.0**-120, 2.0**-60])
def test_a_scale_of_next_to_nothing_leaves_the_mean(runner, fp8, scale):
    batch = runner.place(random_sequences([1, 3], [33, 70], heads_of((64, 64), torch.float16, fp8)), Placement())
    pair = runner.pair("causal", batch.sequences)
    for given in (scale, torch.tensor(scale, device=runner.device)):
        check(runner, batch, pair, scales=Scales(k=given), num_ctas=(7,))
    check(runner, batch, pair, scales=Scales(k=scale), sm_scale=1e-50, num_ctas=(7,))


@pytest.mark.case(61)
@each_format
def test_every_number_of_the_format_is_read_exactly(runner, fp8):
    """One key a request makes out its value: all 256 bytes, NaN among them, and infinities where there are any."""
    numbers = torch.arange(256, dtype=torch.uint8).view(fp8).view(4, 1, 1, 64)
    expected = numbers.float().repeat_interleave(2, 2).view(4, 2, 64).half()
    attn = runner.attention(Heads(2, 1, 64, 64, torch.float16, fp8), page_size=1)
    attn.plan(list(range(5)), al.PagedKV(list(range(5)), [2, 0, 3, 1], [1] * 4, page_size=1))
    q = torch.zeros(4, 2, 64, dtype=torch.float16, device=runner.device)
    k = torch.zeros(4, 1, 1, 64, device=runner.device).to(fp8)
    out = attn.run(q, k, numbers.to(runner.device)).cpu()
    assert torch.equal(out.nan_to_num(nan=1.0, posinf=7e4), expected[[2, 0, 3, 1]].nan_to_num(nan=1.0, posinf=7e4))
    assert torch.equal(out.isnan(), expected[[2, 0, 3, 1]].isnan())


@pytest.mark.case(61)
def test_a_nan_that_a_request_owns_is_seen(runner):
    heads = heads_of((64, 64), torch.float16, torch.float8_e4m3fn)
    batch = runner.place(random_sequences([1, 1], [33, 40], heads), Placement())
    batch.poison_keys(0, range(5, 6))
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    out = attn.run(batch.q, *batch.caches)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


@pytest.mark.case(11)
@each_format
@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda p: f"{p.storage}{p.page_size}")
def test_unowned_slots_may_hold_any_byte(runner, placement, fp8):
    """0x7F and 0xFF are NaN in both formats; 0x7E the largest e4m3, NaN in e5m2; 0x7C infinite there."""
    qo, kv = sized(([1, 20, 1, 96, 3], [13, 64, 96, 96, 130]), ([1, 10, 1, 3], [13, 40, 70, 65]))
    sequences = random_sequences(qo, kv, heads_of((64, 64), torch.float16, fp8))
    pair = runner.pair("causal", sequences)
    results = []
    for byte in (0x00, 0x7F, 0xFF, 0x7E, 0x7C):
        batch = runner.place(sequences, placement.but(poison="zero"))
        owned = [x.clone() for i in range(len(qo)) for x in batch.keys(i)]
        for parent in batch.pool.parents:
            unowned = parent.view(torch.uint8)
            unowned[unowned == 0] = byte  # a request's own zeros are put back below
        for i in range(len(qo)):
            restore(batch, i, owned[2 * i : 2 * i + 2])
        attn = runner.for_batch(batch, variant=pair.variant)
        for num_ctas in (1, sized(24, 7)):
            attn.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
            results.append(run(attn, batch, scales=Scales(0.25, 0.5)))
    for at, (out, lse) in enumerate(results):
        assert torch.equal(out, results[at % 2][0])
        assert torch.equal(lse, results[at % 2][1])
    compare(batch, *results[-1], expect(batch, pair.functors, scales=Scales(0.25, 0.5)))


def restore(batch, request: int, rows: list[torch.Tensor]) -> None:
    for position in range(rows[0].shape[0]):
        page, offset = 0, batch.kv_start[request] + position
        if batch.pages is not None:
            size = batch.placement.page_size
            page, offset = batch.pages[request][position // size], position % size
        batch.pool.k_nhd[page, offset] = rows[0][position]
        batch.pool.v_nhd[page, offset] = rows[1][position]


@pytest.mark.case(61)
@each_format
def test_the_values_of_scale_tensors_are_read_at_each_run(runner, fp8):
    batch = runner.place(random_sequences([2, 1], [40, 90], heads_of((64, 64), torch.float16, fp8)), Placement())
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    k_scale, v_scale = torch.ones(2, device=runner.device), torch.tensor(1.0, device=runner.device)
    for new_k, new_v in (([1.0, 1.0], 1.0), ([0.5, 2.0], 0.25), ([3.0, 0.1], 7.0)):
        k_scale.copy_(torch.tensor(new_k))
        v_scale.fill_(new_v)
        scales = Scales(k_scale, v_scale)
        compare(batch, *run(attn, batch, scales=scales), expect(batch, oracle.Functors(), scales=scales))


@pytest.mark.case(61)
@each_format
def test_in_one_call(runner, fp8):
    runner.attention(heads_of((64, 64), torch.float16, fp8))  # or a skip with its reasons
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 5, 4, 64, generator=generator).half()
    k, v = (torch.randn(2, 40, 2, 64, generator=generator).to(fp8) for _ in range(2))
    there = [x.to(runner.device) for x in (q, k, v)]
    options = {"variant": al.variants.causal(), "return_lse": True, "implementation": runner.implementation}
    out, lse = al.attention(*there, k_scale=0.25, v_scale=torch.tensor(2.0, device=runner.device), **options)
    for i in range(2):
        request = oracle.Request(q[i], k[i].float().double() * 0.25, v[i].float().double() * 2, i)
        results = [f(request, oracle.causal(), 64**-0.5) for f in (oracle.attend, oracle.model)]
        assert_state_close(State(out[i].cpu(), lse[i].cpu()), *(State(r.out, r.lse) for r in results))


WRONG = {
    "negative": (-0.5, al.errors.InvalidArgument, "k_scale = -0.5.*>= 0"),
    "nan": (float("nan"), al.errors.InvalidArgument, "k_scale = nan"),
    "text": ("1", al.errors.InvalidArgument, "k_scale = '1'"),
    "bool": (True, al.errors.InvalidArgument, "k_scale = True"),
    "dtype": (torch.ones(2, dtype=torch.float16), al.errors.DtypeMismatch, "k_scale.*float16.*float32"),
    "shape": (torch.ones(4), al.errors.ShapeMismatch, r"k_scale.*\(4,\).*\[2\]"),
    "device": (torch.ones(2, device="meta"), al.errors.DeviceMismatch, "k_scale is on meta"),
    "gradient": (torch.ones(2).requires_grad_(), al.errors.GradientRequired, "k_scale requires"),
}


@pytest.mark.case(61)
@pytest.mark.parametrize("mistake", WRONG)
def test_scales_that_are_none(runner, launches, mistake):
    scale, error, message = WRONG[mistake]
    if mistake in ("dtype", "shape", "gradient"):
        scale = scale.detach().to(runner.device).requires_grad_(scale.requires_grad)
    batch = runner.place(
        random_sequences([2], [40], heads_of((64, 64), torch.float16, torch.float8_e4m3fn)), Placement()
    )
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    with pytest.raises(error, match=message):
        attn.run(batch.q, *batch.caches, k_scale=scale)
    assert not launches


@pytest.mark.case(40)
def test_a_scale_beside_an_unquantised_cache_is_refused(runner, launches):
    batch = runner.place(random_sequences([2], [40], Heads()), Placement())
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    for name in ("k_scale", "v_scale"):
        with pytest.raises(al.errors.InvalidArgument, match=f"{name} = 1.0.*not quantised"):
            attn.run(batch.q, *batch.caches, **{name: 1.0})
    assert not launches


@pytest.mark.case(41)
def test_a_cache_of_another_format_is_refused(runner, launches):
    batch = runner.place(
        random_sequences([2], [40], heads_of((64, 64), torch.float16, torch.float8_e4m3fn)), Placement()
    )
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    for other in (torch.float8_e5m2, torch.float16):
        with pytest.raises(al.errors.DtypeMismatch, match=rf"k_cache.*{dtype_id(other)}.*float8_e4m3fn"):
            attn.run(batch.q, *(x.float().to(other) for x in batch.caches))
    assert not launches
