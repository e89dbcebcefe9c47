"""Cases 53, 54, 57, 58: user functions, window edges, masks given as bits, sinks."""

import inspect

import oracle
import pytest
import torch
from harness import NUM_CTAS, Pair, Positions, check, crossed, default_scale, each_dtype, expect, requests_of
from interpreted import sized
from oracle import Functors
from variant_pairs import VARIANTS, flat, random_masks

import attnloom as al
from attnloom.impl.reference import ReferenceImplementation
from attnloom.testing.inputs import Heads, Placement, Sequences, random_sequences

QO, KV = sized(([1, 40, 3, 1, 130], [300, 40, 17, 64, 333]), ([1, 10, 3, 1, 20], [70, 10, 17, 32, 50]))


@pytest.mark.case(53)
@crossed("name", list(VARIANTS))
def test_every_variant_everywhere(runner, placement, dtype, name):
    heads = Heads.of(6, 2, 32, dtype) if placement.page_size == 5 else Heads.of(4, 1, 64, dtype)
    sequences = random_sequences(QO, KV, runner.like(heads))
    check(runner, runner.place(sequences, placement.but(q_padding=2)), runner.pair(name, sequences))


@pytest.mark.case(53)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_as_the_user_would_write_it(runner, name):
    """The oracle's own functions, given to al.Variant as they are."""
    sequences = random_sequences(QO, KV, runner.like(Heads.of(4, 2, 32, torch.float32)))
    functors = runner.pair(name, sequences).functors
    here = functors.given(**moved(functors.params, runner.device))  # once: one name is one tensor
    variant = al.Variant(use_softmax=functors.use_softmax, params=used(here, ()))
    for transform in functors.logits:
        operands = used(here, (transform,))
        # without softmax the transform's value is the weight, which composes only with itself
        variant &= al.Variant(logits_transform=transform, use_softmax=functors.use_softmax, params=operands)
    for mask in flatten(functors.mask):
        variant &= al.Variant(logits_mask=mask, params=used(here, (mask,)))
    for output in functors.output:
        variant &= al.Variant(output_transform=output, params=used(here, (output,)))
    if functors.sink is not None:
        variant &= al.Variant(sink=functors.sink, params=used(here, (functors.sink,)))
    check(runner, runner.place(sequences, Placement()), Pair(variant, functors))


def flatten(mask) -> list:
    if mask is None:
        return []
    return [f for part in mask.parts for f in flatten(part)] if isinstance(mask, oracle.Combined) else [mask]


def used(functors: Functors, of: tuple) -> dict:
    names = {n for f in of for n in inspect.signature(f).parameters}
    return {n: v for n, v in functors.params.items() if n in names}


def moved(params: dict, device: str) -> dict:
    return {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in params.items()}


@pytest.mark.case(53)
@pytest.mark.parametrize("splits", NUM_CTAS)
def test_one_hot_values_read_back_each_weight_once(runner, splits):
    """V[j] = one-hot(j): out is the row of weights, so a key counted twice or lost would show."""
    kv = sized(256, 128)
    heads = runner.like(Heads(8, 2, 64, kv, torch.float32))
    base = random_sequences([1, 9], [kv, kv], heads)
    one_hot = torch.eye(kv, dtype=heads.dtype)[:, None].expand(kv, 2, kv).contiguous()
    sequences = Sequences(heads, base.q, base.k, (one_hot, one_hot))
    batch = runner.place(sequences, Placement("table", 5))
    pair = runner.pair("user", sequences)
    pair = Pair(pair.variant & al.variants.causal(), pair.functors & oracle.causal())
    [(out, _)] = check(runner, batch, pair, num_ctas=(splits,))
    for i, request in enumerate(requests_of(batch)):
        seen = oracle.visible(request, pair.functors).transpose(0, 1)
        assert ((out[batch.rows(i)].cpu() != 0) <= seen).all()


@pytest.mark.case(53)
@each_dtype
def test_the_reference_dumps_the_logits_of_a_run(runner, launched, dtype):
    """For debugging: after transform and mask, per request, on the plan and tensors of a real launch."""
    sequences = random_sequences(QO, KV, runner.fit(Heads.of(4, 2, 32, dtype)))
    pair = runner.pair("cap_alibi", sequences)
    batch = runner.place(sequences, Placement("table", 5))
    check(runner, batch, pair, num_ctas=(7,))
    [(plan, tensors)] = launched
    dumped = ReferenceImplementation().dump_logits(plan, tensors)
    for given, request in zip(dumped, requests_of(batch), strict=True):
        wanted = oracle.logits(request, pair.functors, default_scale(batch))
        seen = oracle.visible(request, pair.functors)
        assert torch.equal(torch.isneginf(given.cpu()), ~seen)
        torch.testing.assert_close(given.cpu()[seen].double(), wanted[seen], atol=1e-4, rtol=1e-5)


@pytest.mark.case(53)
def test_operands_given_at_plan_and_at_run(runner):
    sequences = random_sequences(QO, KV, runner.fit(Heads.of(4, 2, 32)))
    whole = runner.pair("user", sequences)
    operands = whole.functors.params

    def declared(value):
        if isinstance(value, torch.Tensor):
            return al.param(dtype=value.dtype, ndim=value.ndim)
        return al.param(dtype=torch.float32, ndim=0)

    [transform], [output] = whole.functors.logits, whole.functors.output
    variant = al.Variant(
        logits_transform=transform,
        logits_mask=whole.functors.mask,
        output_transform=output,
        params={n: declared(v) for n, v in operands.items()},
    )
    given = moved(dict(operands), runner.device)
    early, late = {n: given[n] for n in ("far",)}, {n: given[n] for n in ("bias", "gain")}
    check(runner, runner.place(sequences, Placement()), Pair(variant, whole.functors, early, late))


@pytest.mark.case(53)
@each_dtype
@pytest.mark.parametrize("name", ["window", "cap_alibi", "prefix_lm", "user"])
def test_positions_given_at_plan(runner, name, dtype):
    """Masks and transforms see them; document-style resets, holes and jumps included."""
    sequences = random_sequences(QO, KV, runner.fit(Heads.of(4, 2, 32, dtype)))
    generator = torch.Generator().manual_seed(11)
    q_pos = torch.randint(0, 300, (sum(QO),), generator=generator)
    kv_pos = torch.randint(0, 300, (sum(KV),), generator=generator)
    batch = runner.place(sequences, Placement("table", 5))
    for positions in (Positions(q_pos, kv_pos), Positions(q_pos=q_pos), Positions(kv_pos=kv_pos)):
        check(runner, batch, runner.pair(name, sequences), positions=positions, num_ctas=sized((7, 132), (7,)))


@pytest.mark.case(53)
def test_masks_combine(runner):
    sequences = random_sequences(QO, KV, runner.fit(Heads.of(4, 2, 32)))
    batch = runner.place(sequences, Placement())
    window, causal = al.variants.sliding_window(20), al.variants.causal()

    def even(kv_pos):
        return kv_pos % 2 == 0

    evens = al.Variant(logits_mask=even)
    combinations = {
        "or": (
            window & causal | evens,
            lambda q_pos, kv_pos: ((q_pos - kv_pos <= 20) & (kv_pos <= q_pos)) | even(kv_pos),
        ),
        "not": (~causal, lambda q_pos, kv_pos: kv_pos > q_pos),
        "mixed": (~(window | evens) & causal, lambda q_pos, kv_pos: (kv_pos < q_pos - 20) & (kv_pos % 2 == 1)),
        "nothing": (causal & ~causal, lambda q_pos, kv_pos: (kv_pos > q_pos) & (kv_pos <= q_pos)),
        "everything": (causal | ~causal, lambda kv_pos: kv_pos >= 0),
    }
    for variant, mask in combinations.values():
        check(runner, batch, Pair(variant, Functors(mask=mask)), num_ctas=(7,))


WINDOW_QO, WINDOW_KV = sized(([1, 7, 128, 300], [333, 400, 128, 1500]), ([1, 7, 20, 30], [70, 90, 33, 64]))
LEFTS = sized([None, 0, 1, 15, 16, 17, 333, 399, 400, 4000], [None, 0, 1, 15, 16, 17, 31, 32, 70, 89, 90, 4000])


@pytest.mark.case(54)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("left", LEFTS)
def test_window_edges_by_their_visible_sets(runner, left, causal):
    """q = 0: the lse is ln(count) of visible keys, and out counts each block of 8 keys by one-hot values."""
    heads = runner.like(Heads(2, 1, 16, 256, torch.float32))
    base = random_sequences(WINDOW_QO, WINDOW_KV, heads)
    blocks = [torch.nn.functional.one_hot(torch.arange(n) // 8, 256).to(heads.dtype)[:, None] for n in WINDOW_KV]
    sequences = Sequences(heads, tuple(torch.zeros_like(q) for q in base.q), base.k, tuple(blocks))
    batch = runner.place(sequences, Placement("csr", 16))
    pair = Pair(al.variants.sliding_window(left), oracle.sliding_window(left))
    if causal:
        pair = Pair(pair.variant & al.variants.causal(), pair.functors & oracle.causal())
    results = check(runner, batch, pair, num_ctas=sized((1, 8, 132), (1, 8)))  # splits forced
    for i, request in enumerate(requests_of(batch)):
        seen = oracle.visible(request, pair.functors).transpose(0, 1)
        count, per_block, rows = seen.sum(-1), seen.float() @ blocks[i][:, 0].float(), batch.rows(i)
        for out, lse in results:
            assert torch.equal(lse[rows].cpu().exp().round().long(), count)
            assert torch.equal((out[rows].cpu().float() * count[..., None]).round(), per_block)


@pytest.mark.case(54)
@each_dtype
def test_windows_at_the_length_and_decode_far_out(runner, dtype):
    longest = sized(4096, 150)
    kv = [longest, sized(1000, 90), 17]
    sequences = random_sequences([1, 1, 1], kv, runner.fit(Heads.of(4, 2, 32, dtype)))
    batch = runner.place(sequences, Placement())
    for left in (0, 16, sized(511, 63), longest - 1, longest):
        pair = Pair(
            al.variants.sliding_window(left) & al.variants.causal(), oracle.sliding_window(left) & oracle.causal()
        )
        check(runner, batch, pair, num_ctas=(7,))


@pytest.mark.case(54)
@pytest.mark.parametrize("left", [-1, -100, 1.5, True, "3"])
def test_a_window_of_nonsense_is_refused(left):
    with pytest.raises(al.errors.InvalidArgument, match=r"left = .*integer >= 0"):
        al.variants.sliding_window(left)


def packed(masks: list[torch.Tensor]) -> torch.Tensor:
    """Little-endian, byte-aligned per request."""
    parts = []
    for mask in masks:
        bits = torch.nn.functional.pad(mask.reshape(-1).int(), (0, -mask.numel() % 8)).view(-1, 8)
        parts.append((bits * torch.tensor([1 << i for i in range(8)])).sum(1).to(torch.uint8))
    return torch.cat(parts)


@pytest.mark.case(57)
@crossed("seed", [0])
def test_packed_and_dense_masks_are_the_same_bitwise(runner, seed, placement, dtype):
    lengths = ([3, 7, 1, 37], [5, 9, 1, 54])
    lengths = sized(tuple([*n, 200] for n in lengths), lengths)
    sequences = random_sequences(*lengths, runner.like(Heads.of(4, 2, 32, dtype)))
    masks = random_masks(sequences, seed)
    batch = runner.place(sequences, placement)
    bits = packed(masks).to(runner.device)
    functors = oracle.custom_mask(masks)
    expected = expect(batch, functors)
    dense = check(
        runner, batch, Pair(al.variants.custom_mask(flat(masks).to(runner.device)), functors), expected=expected
    )
    for variant, params in (
        (al.variants.packed_mask(bits), None),
        (al.variants.packed_mask(), {"bits": bits}),
        (al.variants.custom_mask(), {"mask": flat(masks).to(runner.device)}),
    ):
        for given in (Pair(variant, functors, params), Pair(variant, functors, None, params)):
            other = check(runner, batch, given, expected=expected)
            assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(dense, other, strict=True))


@pytest.mark.case(57)
@pytest.mark.parametrize(("qo", "kv"), [(10, 15), (20, 11), (10, 25)])
def test_a_mask_of_another_size_is_refused(runner, launches, qo, kv):
    batch = runner.place(random_sequences([10], [20], runner.fit(Heads.of(4, 2, 32))), Placement())
    mask = torch.ones(qo * kv, dtype=torch.bool, device=runner.device)
    bits = torch.ones(-(-qo * kv // 8), dtype=torch.uint8, device=runner.device)
    for variant, params in ((al.variants.custom_mask, {"mask": mask}), (al.variants.packed_mask, {"bits": bits})):
        [value] = params.values()
        attn = runner.for_batch(batch, variant=variant(value))
        with pytest.raises(al.errors.ParamError, match=rf"{value.numel()}.*{200 if value is mask else 25}"):
            attn.plan(batch.qo_indptr, batch.kv)
        attn = runner.for_batch(batch, variant=variant())
        with pytest.raises(al.errors.ParamError, match=str(value.numel())):
            attn.plan(batch.qo_indptr, batch.kv, params=params)
        attn.plan(batch.qo_indptr, batch.kv)
        with pytest.raises(al.errors.ParamError, match=str(value.numel())):
            attn.run(batch.q, *batch.caches, params=params)
        with pytest.raises(al.errors.ParamError, match="no value"):
            attn.run(batch.q, *batch.caches)
    with pytest.raises(al.errors.ParamError, match="mask"):
        al.variants.custom_mask(mask.view(qo, kv))
    with pytest.raises(al.errors.ParamError, match="mask"):
        al.variants.custom_mask(mask.float())
    assert not launches


@pytest.mark.case(57)
@each_dtype
def test_all_of_the_prefix_and_a_small_tree(runner, dtype):
    """qo * qo bits a request, however long the prefix."""
    qo, kv = [4, 1, 13], [sized(700, 100), 30, 13]
    sequences = random_sequences(qo, kv, runner.fit(Heads.of(4, 2, 32, dtype)))
    generator = torch.Generator().manual_seed(2)
    trees = [(torch.rand(n, n, generator=generator) < 0.5) | torch.eye(n, dtype=torch.bool) for n in qo]
    masks = [torch.cat([torch.ones(n, m - n, dtype=torch.bool), t], 1) for n, m, t in zip(qo, kv, trees, strict=True)]
    functors = oracle.custom_mask(masks)
    batch = runner.place(sequences, Placement())
    check(runner, batch, Pair(al.variants.tree_mask(flat(trees).to(runner.device)), functors))
    check(runner, batch, Pair(al.variants.packed_tree_mask(packed(trees).to(runner.device)), functors))
    starts = torch.tensor([sum(n * n for n in qo[:i]) for i in range(len(qo))])

    def mask(kv_pos, q_idx, kv_len, qo_len, *, batch, tree, starts):
        column = torch.clamp(kv_pos - (kv_len - qo_len), min=0)
        return (kv_pos < kv_len - qo_len) | tree[starts[batch] + q_idx * qo_len + column]

    operands = {"tree": flat(trees), "starts": starts}
    variant = al.Variant(logits_mask=mask, params=moved(operands, runner.device))
    check(runner, batch, Pair(variant, functors))
    check(runner, batch, Pair(variant, Functors(mask=mask, params=operands)))


@pytest.mark.case(58)
@crossed("with_", ["alone", "window", "cap", "hole"])
def test_sinks(runner, placement, dtype, with_):
    """One logit a head, counted once however the keys are split; kv = 0 included."""
    lengths = sized(([1, 30, 2, 1, 40], [700, 30, 0, 5, 333]), ([1, 10, 2, 1, 20], [200, 10, 0, 5, 90]))
    sequences = random_sequences(*lengths, runner.like(Heads.of(4, 2, 32, dtype)))
    values = torch.tensor([-20.0, 0.0, 2.0, 30.0])

    until = sized(420, 140)

    def hole(kv_pos):
        return (kv_pos < 40) | (kv_pos > until)

    variant, functors = {
        "alone": (al.variants.causal(), oracle.causal()),
        "window": (
            al.variants.sliding_window(9) & al.variants.causal(),
            oracle.sliding_window(9) & oracle.causal(),
        ),
        "cap": (al.variants.soft_cap(3.0), oracle.soft_cap(3.0)),
        "hole": (al.Variant(logits_mask=hole), Functors(mask=hole)),
    }[with_]
    pair = Pair(variant & al.variants.sinks(values.to(runner.device)), functors & oracle.sinks(values))
    check(runner, runner.place(sequences, placement), pair, num_ctas=sized((1, 2, 16, 132), (1, 2, 16)))


@pytest.mark.case(58)
def test_the_first_tokens_always_visible_is_still_causal(runner):
    lengths = sized([50, 300], [20, 60])
    sequences = random_sequences(lengths, lengths, runner.fit(Heads.of(4, 2, 32)))

    def mask(q_pos, kv_pos):
        return (kv_pos <= q_pos) & ((kv_pos < 4) | (kv_pos >= q_pos - 16))

    batch = runner.place(sequences, Placement())
    for out, _ in check(runner, batch, Pair(al.Variant(logits_mask=mask), Functors(mask=mask))):
        assert torch.equal(out[0].cpu(), sequences.v[0][0].repeat_interleave(2, 0))
    with pytest.raises(al.errors.VariantError):
        al.variants.sinks(torch.zeros(4)) & al.variants.sinks(torch.ones(4)).rename(sinks="more")
    with pytest.raises(al.errors.VariantError):
        al.variants.sinks(torch.zeros(4)) & al.variants.sigmoid()
