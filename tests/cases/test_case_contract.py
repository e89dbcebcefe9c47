"""Cases 39, 40, 41, 42, 43, 45: plan and run, what they promise each other, and the workspace."""

import itertools

import oracle
import pytest
import torch
from harness import NUM_CTAS, Pair, Positions, check, compare, dirty, each_dtype, expect, run
from interpreted import sized
from oracle import Functors

import attnloom as al
from attnloom.testing.inputs import Batch, Heads, Placement, random_sequences

HEADS = Heads.of(4, 2, 64)


def batches(runner, dtype: torch.dtype = torch.bfloat16) -> tuple[Batch, Batch]:
    heads = Heads.of(4, 2, 64, dtype)
    lengths = sized(
        (([1, 40, 3], [300, 40, 77]), ([2, 1, 1, 130], [5, 600, 64, 130])),
        (([1, 7, 3], [70, 7, 45]), ([2, 1, 1, 20], [5, 100, 32, 20])),
    )
    first = runner.place(random_sequences(*lengths[0], heads, seed=1), Placement())
    second = runner.place(random_sequences(*lengths[1], heads, seed=2), Placement("table", 5))
    return first, second


@pytest.mark.case(39)
@each_dtype
def test_back_to_back_plans_and_arrays_that_change_under_them(runner, dtype):
    """The caller's arrays are overwritten as soon as plan returns; on a GPU the stream is busy meanwhile."""
    variant = al.variants.causal()
    first, second = batches(runner, dtype)
    buffer = None
    expected = [expect(b, oracle.causal()) for b in (first, second)]
    for shared in (False, True):
        attns = [runner.for_batch(b, variant=variant, page_size=None) for b in (first, second)]
        if shared:
            buffer = torch.empty(attns[0].workspace_size(132), dtype=torch.uint8, device=runner.device)
            attns = [runner.for_batch(b, variant=variant, page_size=None, workspace=buffer) for b in (first, second)]
        else:
            attns[1] = attns[0]
        if runner.device != "cpu":
            torch.cuda._sleep(100_000_000)
        results = []
        for turn in range(4):
            attn, batch = attns[turn % 2], (first, second)[turn % 2]
            qo_indptr, kv = batch.qo_indptr.clone(), clone_of(batch)
            attn.plan(qo_indptr, kv, num_ctas=132)
            qo_indptr.fill_(99)
            for array in vars(kv).values():
                if isinstance(array, torch.Tensor):
                    array.fill_(-7)
            results.append((batch, attn.run(batch.q, *batch.caches, return_lse=True), turn % 2))
        for batch, (out, lse), which in results:
            compare(batch, out, lse, expected[which])


def clone_of(batch: Batch):
    arrays = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in vars(batch.kv).items()}
    if batch.placement.storage == "table":
        return al.PagedKV.from_block_table(arrays["block_table"], arrays["seq_lens"], arrays["page_size"])
    return al.PagedKV(**arrays)


@pytest.mark.case(39)
def test_operands_of_a_plan_are_copied(runner):
    batch, _ = batches(runner)
    values = torch.tensor([0.5, -1.0, 2.0, 4.0], device=runner.device)
    expected = expect(batch, oracle.causal() & oracle.sinks(values.cpu().clone()))
    attn = runner.for_batch(batch, variant=al.variants.causal() & al.variants.sinks())
    attn.plan(batch.qo_indptr, batch.kv, params={sink_name(attn): values})
    values.fill_(1e4)
    compare(batch, *run(attn, batch), expected)


def sink_name(attn: al.BatchAttention) -> str:
    [name] = attn.variant.program.params
    return name


@pytest.mark.case(40)
@pytest.mark.parametrize("option", ["variant", "soft_cap", "window_left", "sm_scale", "causal", "num_ctas", "q_pos"])
def test_options_given_to_run_are_refused(runner, launches, option):
    batch, _ = batches(runner)
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    with pytest.raises(TypeError, match=option):
        attn.run(batch.q, *batch.caches, **{option: 50})
    with pytest.raises(al.errors.ParamError, match=f"{option}.*declare"):
        attn.run(batch.q, *batch.caches, params={option: 50})
    with pytest.raises(al.errors.ParamError, match=f"{option}.*declare"):
        attn.plan(batch.qo_indptr, batch.kv, params={option: 50})
    assert not launches


@pytest.mark.case(40)
def test_planned_with_and_without_differ_and_neither_is_ignored(runner):
    batch, _ = batches(runner)
    results = {}
    for name, pair in {
        "plain": Pair(None, Functors()),
        "cap": Pair(al.variants.soft_cap(0.5), oracle.soft_cap(0.5)),
        "window": Pair(al.variants.sliding_window(8), oracle.sliding_window(8)),
    }.items():
        results[name] = check(runner, batch, pair, num_ctas=(7,))[0][0]
    for one, other in itertools.combinations(results.values(), 2):
        assert (one.float() - other.float()).abs().max() > 0.05


@pytest.mark.case(40)
def test_the_latest_operand_wins(runner):
    """Construction, plan, run: each value shows in the result; one engine, no new object."""
    batch, _ = batches(runner)

    def transform(logits, gain):
        return logits * gain

    attn = runner.for_batch(batch, variant=al.Variant(logits_transform=transform, params={"gain": 1.0}))

    def expected(gain: float):
        return expect(batch, Functors(logits=(transform,), params={"gain": gain}))

    for plan_gain, run_gain, wanted in ((None, None, 1.0), (0.5, None, 0.5), (0.5, 0.25, 0.25), (None, 2.0, 2.0)):
        attn.plan(batch.qo_indptr, batch.kv, params=None if plan_gain is None else {"gain": plan_gain})
        params = None if run_gain is None else {"gain": run_gain}
        compare(batch, *run(attn, batch, params=params), expected(wanted))
        compare(batch, *run(attn, batch), expected(1.0 if plan_gain is None else plan_gain))


@pytest.mark.case(40)
@pytest.mark.case(42)
def test_operands_that_shape_the_plan_may_come_with_run(runner):
    """The prefix decides which tiles are read: a run with another one must not read the plan's tiles."""
    lengths = sized(([300, 3], [300, 400]), ([70, 3], [70, 90]))
    batch = runner.place(random_sequences(*lengths, HEADS), Placement())
    short, long = (torch.tensor(x, dtype=torch.int32) for x in ([5, 20], sized([280, 399], [67, 89])))
    expected = {id(p): expect(batch, oracle.prefix_lm(p)) for p in (short, long)}
    attn = runner.for_batch(batch, variant=al.variants.prefix_lm())
    [name] = attn.variant.params
    for planned, runs in ((None, (short, long, short)), (short, (None, long, None)), (long, (None, short, None, long))):
        attn.plan(batch.qo_indptr, batch.kv, params=None if planned is None else {name: planned.to(runner.device)})
        for given in runs:
            params = None if given is None else {name: given.to(runner.device)}
            compare(batch, *run(attn, batch, params=params), expected[id(planned if given is None else given)])


def mismatches(batch: Batch) -> dict[str, tuple[tuple, str]]:
    """What run may be given wrongly: (arguments, what the message says)."""
    q, (k, v) = batch.q, batch.caches
    rows = q.shape[0]
    return {
        "one row fewer": ((q[:-1], k, v), f"{rows - 1} rows.*{rows}"),
        "dtype of q": ((q.float(), k, v), "q has dtype torch.float32, expected torch.bfloat16"),
        "dtype of k": ((q, k.float(), v), "k_cache has dtype torch.float32"),
        "dtype of v": ((q, k, v.half()), "v_cache has dtype torch.float16"),
        "query heads": ((q.repeat(1, 2, 1), k, v), rf"q.*\({rows}, 8, 64\).*num_qo_heads=4"),
        "head dim of q": ((q[..., :32], k, v), r"q.*32\).*head_dim=64"),
        "dims of q": ((q[None], k, v), "q.*num_qo_heads=4"),
        "kv heads": ((q, k[:, :, :1], v[:, :, :1]), "1 kv heads.*2 kv heads"),
        "head dim of v": ((q, k, v[..., :32]), "v_cache.*head_dim 32.*head_dim 64"),
        "page size": ((q, k[:, :8], v[:, :8]), "page_size 8.*page_size 16"),
        "ragged instead of paged": ((q, k[0], v[0]), "k_cache.*paged KV of page_size 16"),
        "packed of the wrong shape": ((q, k), "kv_cache has shape"),
        "too few pages": ((q, k[:2], v[:2]), "page ids.*2 pages"),
        "fewer pages of v than of k": ((q, k, v[:2]), "pages"),
        "no tensor": ((q.tolist(), k, v), "q has dtype list"),
        "device": ((q.to("meta"), k, v), "q is on meta"),
        "a gradient": ((q.detach().requires_grad_(), k, v), "q requires a gradient"),
        "a gradient of k": ((q, k.detach().requires_grad_(), v), "k_cache requires a gradient"),
    }


@pytest.mark.case(41)
def test_run_refuses_what_disagrees_with_the_plan(runner, launches):
    batch, _ = batches(runner)
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    for arguments, message in mismatches(batch).values():
        with pytest.raises(al.errors.AttnLoomError, match=message):
            attn.run(*arguments)
    assert not launches
    run(attn, batch)
    assert len(launches) == 1


@pytest.mark.case(41)
def test_run_needs_a_plan_that_succeeded(runner, launches):
    batch, _ = batches(runner)
    attn = runner.for_batch(batch)
    with pytest.raises(al.errors.PlanRequired, match="not been called"):
        attn.run(batch.q, *batch.caches)
    attn.plan(batch.qo_indptr, batch.kv)
    failing = [
        lambda: attn.plan(batch.qo_indptr, "a table"),
        lambda: attn.plan([0, 3, 2], batch.kv),
        lambda: attn.plan(batch.qo_indptr, batch.kv, num_ctas=0),
        lambda: attn.plan(batch.qo_indptr, batch.kv, params={"none": 1}),
        lambda: attn.plan(batch.qo_indptr, batch.kv, q_pos=[1]),
        lambda: attn.plan(batch.qo_indptr, batch.kv, share_prefixes=True),
    ]
    for fail in failing:
        with pytest.raises(al.errors.AttnLoomError):
            fail()
        with pytest.raises(al.errors.PlanRequired, match="failed"):
            attn.run(batch.q, *batch.caches)
        with pytest.raises(al.errors.PlanRequired):
            attn.explain()
    assert not launches


@pytest.mark.case(42)
def test_a_new_plan_leaves_nothing_of_the_old(runner):
    """Plans with masks, positions, other lengths, tables and worker counts, in every order."""
    first, second = batches(runner)
    positions = torch.arange(first.total_q) % 9 + 3

    def mask(q_pos, kv_pos, reach):
        return kv_pos <= q_pos + reach

    variant = al.Variant(logits_mask=mask, params={"reach": 0})

    def functors(reach: int) -> Functors:
        return Functors(mask=mask, params={"reach": reach})

    kinds = {
        "default": (first, {}, expect(first, functors(0))),
        "operand": (first, {"params": {"reach": 30}}, expect(first, functors(30))),
        "positions": (first, {"q_pos": positions}, expect(first, functors(0), positions=Positions(positions))),
        "other batch": (second, {"num_ctas": 132}, expect(second, functors(0))),
        "one worker": (second, {"num_ctas": 1, "params": {"reach": -40}}, expect(second, functors(-40))),
    }
    fresh = {}
    for name, (batch, options, expected) in kinds.items():
        attn = runner.for_batch(batch, variant=variant, page_size=None)
        attn.plan(batch.qo_indptr, batch.kv, **options)
        fresh[name] = run(attn, batch)
        compare(batch, *fresh[name], expected, name)
    attn = runner.for_batch(first, variant=variant, page_size=None)
    for order in itertools.permutations(kinds, sized(3, 2)):
        for name in order:
            batch, options, _ = kinds[name]
            attn.plan(batch.qo_indptr, batch.kv, **options)
            assert all(torch.equal(a, b) for a, b in zip(run(attn, batch), fresh[name], strict=True)), order


@pytest.mark.case(43)
@each_dtype
def test_one_plan_serves_all_layers(runner, launches, dtype):
    """Four layers with their own caches and sinks on one plan."""
    heads = Heads.of(4, 2, 64, dtype)
    lengths = sized(([1, 40, 3], [300, 40, 77]), ([1, 7, 3], [70, 7, 45]))
    layers = [runner.place(random_sequences(*lengths, heads, seed=s), Placement()) for s in range(4)]
    attn = runner.for_batch(layers[0], variant=al.variants.causal() & al.variants.sinks())
    attn.plan(layers[0].qo_indptr, layers[0].kv)
    plan = attn.current_plan
    for i, layer in enumerate(layers):
        values = torch.linspace(-2, 3, 4) * i
        out, lse = run(attn, layer, params={sink_name(attn): values.to(runner.device)})
        compare(layer, out, lse, expect(layer, oracle.causal() & oracle.sinks(values)))
        assert attn.current_plan is plan
    assert len(launches) == 4


@pytest.mark.case(43)
@pytest.mark.gpu
@pytest.mark.parametrize("storage", ["ragged", "csr", "table"])
def test_host_and_device_metadata_give_the_same(runner, storage):
    if runner.device == "cpu":
        pytest.skip("no CUDA device")
    sequences = random_sequences([1, 40, 3], [300, 40, 77], HEADS)
    results = []
    for where in ("cpu", runner.device):
        batch = runner.place(sequences, Placement(storage, index_device=where))
        attn = runner.for_batch(batch, variant=al.variants.causal())
        mode = "error" if where == "cpu" else "warn"
        torch.cuda.set_sync_debug_mode(mode)
        try:
            attn.plan(batch.qo_indptr, batch.kv)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        results.append(run(attn, batch))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.case(43)
@pytest.mark.parametrize("storage", ["ragged", "csr", "table"])
def test_every_form_of_the_metadata_gives_the_same_plan(runner, storage):
    sequences = random_sequences([1, 40, 3], [300, 40, 77], HEADS)
    results = []
    for dtype in (torch.int32, torch.int64):
        batch = runner.place(sequences, Placement(storage, index_dtype=dtype))
        attn = runner.for_batch(batch, variant=al.variants.causal())
        attn.plan(batch.qo_indptr, batch.kv, num_ctas=7)
        results.append((run(attn, batch), [c.items.cpu() for c in attn.current_plan.classes]))
    (first, items), (second, other_items) = results
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(items, other_items, strict=True))


@pytest.mark.case(45)
@each_dtype
@pytest.mark.parametrize("num_ctas", NUM_CTAS)
def test_the_exact_workspace_suffices_and_a_byte_less_does_not(runner, launches, num_ctas, dtype):
    batch, _ = batches(runner, dtype)
    size = runner.for_batch(batch).workspace_size(num_ctas)
    memory = dirty(torch.empty(size + 64, dtype=torch.uint8, device=runner.device))
    attn = runner.for_batch(batch, variant=al.variants.causal(), workspace=memory[:size])
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
    compare(batch, *run(attn, batch), expect(batch, oracle.causal()))
    assert (memory[size:] == 0xFF).all()
    launches.clear()
    short = runner.for_batch(batch, variant=al.variants.causal(), workspace=memory[: size - 1])
    with pytest.raises(al.errors.BufferTooSmall, match=rf"workspace.*{size - 1}.*{size}") as refused:
        short.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
    assert "workspace_size" in str(refused.value)
    assert not launches


@pytest.mark.case(45)
@pytest.mark.parametrize(("num_qo", "num_kv"), [(64, 4), (8, 8), (1, 1)])
@pytest.mark.parametrize("rows", [1, 8])
def test_the_workspace_does_not_grow_with_the_batch(runner, num_qo, num_kv, rows):
    """B up to 1024 at head dim 256: planned in the size asked for beforehand; two tiles for each CTA of each class."""
    heads = Heads.of(num_qo, num_kv, 256)
    attn = runner.attention(heads)
    for num_ctas in (2, 132):
        size = attn.workspace_size(num_ctas)
        # of a class, triton launches as many CTAs for each worker as an SM holds of it
        classes = getattr(attn._config, "classes", None) or attn._config.tile_classes(1)
        ctas = [(one.tile_q, num_ctas * getattr(one, "ctas_per_sm", 1)) for one in classes]
        assert size <= 2 * sum(tile_q * count for tile_q, count in ctas) * 257 * 4 + 64 * num_ctas + 4096
        assert [(t.tile_q, t.num_ctas) for t in attn._config.tile_classes(num_ctas)] == ctas
        memory = torch.empty(size, dtype=torch.uint8, device=runner.device)
        given = runner.attention(heads, workspace=memory)
        for count in (1, 64, 1024):
            lengths = torch.randint(1, 3000, (count,), generator=torch.Generator().manual_seed(count))
            kv_indptr = [0, *lengths.cumsum(0).tolist()]
            given.plan([i * rows for i in range(count + 1)], al.RaggedKV(kv_indptr), num_ctas=num_ctas)


@pytest.mark.case(45)
@pytest.mark.parametrize(
    ("workspace", "message"),
    [
        (torch.empty(64), "workspace.*float32.*1-D uint8"),
        (torch.empty(8, 8, dtype=torch.uint8), "workspace.*2-D.*1-D uint8"),
        (torch.empty(128, dtype=torch.uint8)[::2], "workspace.*stride 2.*contiguous"),
        (torch.empty(128, dtype=torch.uint8)[1:], "workspace.*aligned"),
        (b"bytes", "workspace.*bytes.*uint8"),
        (torch.empty(64, dtype=torch.uint8, device="meta"), "workspace is on meta"),
    ],
)
def test_what_is_no_workspace_is_refused(workspace, message):
    with pytest.raises(al.errors.AttnLoomError, match=message):
        al.BatchAttention(
            num_qo_heads=4, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16, device="cpu", workspace=workspace
        )
