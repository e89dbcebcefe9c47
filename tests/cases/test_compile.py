"""torch.compile: one graph for many objects, plans and lengths; eager calls never enter the operator."""

import copy
import dataclasses
import pickle
import shutil

import oracle
import pytest
import torch
from harness import Scales, compare, expect
from torch._dynamo.utils import counters

import attnloom as al
from attnloom.api import operator
from attnloom.testing.inputs import Heads, Placement, Sequences, random_sequences

pytestmark = pytest.mark.not_interpreted("torch.compile traces around the launch, which is the same in every process")

HEADS = Heads.of(4, 2, 32, torch.float32)
# No row count equals a head count, dim or page count: torch would take equal sizes of the first call for one size.
LENGTHS = (([1, 6], [30, 7]), ([1, 8, 2], [64, 8, 130]), ([40], [40]))


def another(dtype: torch.dtype) -> torch.dtype:
    return torch.bfloat16 if dtype == torch.float16 else torch.float16


def engines(runner, count: int, variant: al.Variant) -> list[al.BatchAttention]:
    return [runner.attention(runner.like(HEADS), page_size=16, variant=variant) for _ in range(count)]


def test_twelve_objects_and_three_plans_are_one_graph(runner):
    """As a model with an engine object per layer: fullgraph, dynamic shapes, the default compiler."""
    assert shutil.which("g++"), "the default compiler of torch needs a C++ compiler"
    torch._dynamo.reset()
    counters.clear()
    objects = engines(runner, 12, al.variants.causal())

    def layer(attn, q, k, v):
        return attn.run(q * 2, k, v) * 2

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for qo, kv in LENGTHS:
        sequences = random_sequences(qo, kv, runner.like(HEADS))
        batch = runner.place(sequences, Placement())
        for attn in objects:
            attn.plan(batch.qo_indptr, batch.kv)
            with torch.no_grad():
                given = compiled(attn, batch.q, *batch.caches)
            assert torch.equal(given, layer(attn, batch.q, *batch.caches))
        doubled = Sequences(sequences.heads, tuple(q * 2 for q in sequences.q), sequences.k, sequences.v)
        compare(batch, given / 2, None, expect(runner.place(doubled, Placement()), oracle.causal()))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["recompiles"]
    assert not counters["graph_break"]
    assert counters["inductor"], "inductor did not compile"


class Layer(torch.nn.Module):
    """As models hold it: the engine is an attribute of each layer."""

    def __init__(self, attn: al.BatchAttention) -> None:
        super().__init__()
        self.attn = attn

    def forward(self, q, k, v):
        return q + self.attn.run(q, k, v)


@pytest.fixture
def integers_vary():
    """Before torch 2.12 dynamo compiles again for each integer that it meets behind a module: see docs/DESIGN.md."""
    if torch.__version__ >= (2, 12):
        yield
        return
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        yield


@pytest.mark.usefixtures("integers_vary")
@pytest.mark.parametrize("scope", ["each layer", "the model"])
def test_engines_inside_modules_are_one_graph_too(runner, scope):
    torch._dynamo.reset()
    counters.clear()
    layers = [Layer(attn) for attn in engines(runner, 12, al.variants.causal())]

    def forward(q, k, v):
        for layer in layers:
            q = layer(q, k, v)
        return q

    options = {"fullgraph": True, "dynamic": True, "backend": "aot_eager"}
    compiled = torch.compile(forward, **options) if scope == "the model" else forward
    for qo, kv in LENGTHS:
        batch = runner.place(random_sequences(qo, kv, runner.like(HEADS)), Placement())
        for layer in layers:
            layer.attn.plan(batch.qo_indptr, batch.kv)
        wanted = forward(batch.q, *batch.caches)
        if scope == "each layer":
            for layer in layers:
                layer.compile(**options)
        with torch.no_grad():
            assert torch.equal(compiled(batch.q, *batch.caches), wanted)
        for layer in layers:
            layer._compiled_call_impl = None
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["recompiles"]


def test_operands_lse_and_states_pass_through_a_graph(runner):
    """params at run, return_lse, return_state, out=: equal to eager."""
    torch._dynamo.reset()
    attn = runner.attention(runner.like(HEADS), page_size=16, variant=al.variants.causal() & al.variants.sinks())
    batch = runner.place(random_sequences([1, 5, 2], [64, 5, 130], runner.like(HEADS)), Placement())
    [name] = attn.variant.params
    attn.plan(batch.qo_indptr, batch.kv)

    def layer(q, k, v, sinks, out):
        plain = attn.run(q, k, v, params={name: sinks})
        both = attn.run(q, k, v, params={name: sinks}, return_lse=True)
        state = attn.run(q, k, v, params={name: sinks}, return_state=True)
        written = attn.run(q, k, v, params={name: sinks}, out=out)
        return plain, *both, *state, written

    values = torch.tensor([-1.0, 0.0, 2.0, 3.0], device=runner.device)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    out = torch.full_like(batch.q, float("nan"))
    given = compiled(batch.q, *batch.caches, values, out)
    wanted = layer(batch.q, *batch.caches, values, torch.empty_like(out))
    assert len(given) == len(wanted) == 6
    assert all(torch.equal(a, b) for a, b in zip(given, wanted, strict=True))
    assert torch.equal(out, wanted[0])
    compare(batch, given[1], given[2], expect(batch, oracle.causal() & oracle.sinks(values.cpu())))


@pytest.mark.case(61)
def test_scales_of_an_fp8_cache(runner):
    """Numbers and tensors; a tensor's new value needs no other graph."""
    heads = dataclasses.replace(runner.fit(HEADS), dtype=torch.float16, kv_dtype=torch.float8_e4m3fn)
    batch = runner.place(random_sequences([3, 1], [9, 40], heads), Placement())
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)

    def layer(q, k, v, k_scale):
        out, lse = attn.run(q, k, v, k_scale=k_scale, v_scale=0.5, return_lse=True)
        return out, lse, attn.run(q, k, v, v_scale=k_scale)

    compiled = torch.compile(layer, fullgraph=True)
    k_scale = torch.tensor([0.25, 3.0], device=runner.device)
    for new in ([0.25, 3.0], [1.0, 0.1]):
        k_scale.copy_(torch.tensor(new))
        given = compiled(batch.q, *batch.caches, k_scale)
        assert all(torch.equal(a, b) for a, b in zip(given, layer(batch.q, *batch.caches, k_scale), strict=True))
        compare(batch, *given[:2], expect(batch, oracle.Functors(), scales=Scales(k_scale, 0.5)))


def test_the_fake_kernel_agrees_with_the_real_one(runner):
    """Shapes, strides and dtypes, for every kind of result."""
    heads = runner.fit(Heads(4, 2, 64, 32))
    batch = runner.place(random_sequences([3, 1], [9, 40], heads), Placement(q_padding=2))
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)
    for with_lse in (True, False):
        for raw in (True, False):
            torch.library.opcheck(
                torch.ops.attnloom.run.default,
                (attn._handle, batch.q, *batch.caches),
                {"names": [], "values": [], "with_lse": with_lse, "raw": raw},
                test_utils=("test_schema", "test_faketensor"),
            )


def test_eager_calls_bypass_the_operator(runner, monkeypatch):
    batch = runner.place(random_sequences([3, 1], [9, 40], runner.like(HEADS)), Placement())
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)

    def entered(*args, **kwargs):
        raise AssertionError("an eager call entered the operator")

    monkeypatch.setattr(operator, "traced_run", entered)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        attn.run(batch.q, *batch.caches)
    assert not [e for e in profile.key_averages() if "attnloom" in e.key]


@pytest.mark.parametrize("wrong", ["rows", "dtype"])
def test_errors_reach_the_caller_of_a_graph(runner, wrong):
    torch._dynamo.reset()
    batch = runner.place(random_sequences([3, 1], [9, 40], runner.like(HEADS)), Placement())
    attn = runner.for_batch(batch)
    attn.plan(batch.qo_indptr, batch.kv)

    def layer(q, k, v):
        return attn.run(q, k, v) * 2

    q = batch.q[:-1] if wrong == "rows" else batch.q.to(another(batch.q.dtype))
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    with pytest.raises(al.errors.AttnLoomError, match="q"):
        compiled(q, *batch.caches)


def test_out_under_a_graph_means_what_it_means_in_eager(runner):
    """Rows past the plan stay, strided buffers are filled, a wrong dtype or a broadcast is refused."""
    torch._dynamo.reset()
    batch = runner.place(random_sequences([3, 1], [9, 40], runner.like(HEADS)), Placement(q_padding=2))
    attn = runner.for_batch(batch, variant=al.variants.causal())
    attn.plan(batch.qo_indptr, batch.kv)
    rows, total_q = batch.q.shape[0], int(batch.qo_indptr[-1])
    compiled = torch.compile(
        lambda q, k, v, out, lse: attn.run(q, k, v, out=out, lse=lse), fullgraph=True, backend="eager"
    )
    for out in (torch.full_like(batch.q, 7.0), batch.q.new_full((4, rows, batch.q.shape[-1]), 7.0).transpose(0, 1)):
        lse = torch.full((rows, 4), 7.0, device=runner.device)
        compiled(batch.q, *batch.caches, out, lse)
        assert (out[total_q:] == 7.0).all()
        assert (lse[total_q:] == 7.0).all()
        compare(batch, out, lse, expect(batch, oracle.causal()))
    lse = torch.empty(rows, 4, device=runner.device)
    for wrong in (torch.empty_like(batch.q, dtype=another(batch.q.dtype)), batch.q.new_empty(2, *batch.q.shape)):
        with pytest.raises(al.errors.AttnLoomError, match="out"):
            compiled(batch.q, *batch.caches, wrong, lse)


@pytest.mark.parametrize("which", range(4))
def test_gradients_are_refused_under_a_graph_too(runner, which):
    torch._dynamo.reset()
    attn = runner.attention(runner.like(HEADS), page_size=16, variant=al.variants.sinks())
    batch = runner.place(random_sequences([3, 1], [9, 40], runner.like(HEADS)), Placement())
    attn.plan(batch.qo_indptr, batch.kv)
    compiled = torch.compile(
        lambda q, k, v, sinks: attn.run(q, k, v, params={"sinks": sinks}), fullgraph=True, backend="aot_eager"
    )
    tensors = [batch.q, *batch.caches, torch.zeros(4, device=runner.device)]
    tensors[which] = tensors[which].detach().clone().requires_grad_()
    with pytest.raises(Exception, match="requires a gradient, and attnloom computes forward only"):
        compiled(*tensors)
    with torch.no_grad():
        compare(batch, compiled(*tensors), None, expect(batch, oracle.sinks(torch.zeros(4))))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copied_engine_is_one_of_its_own(runner, duplicate):
    """Its plan and its workspace are not the original's, in eager and in a graph."""
    torch._dynamo.reset()
    one = random_sequences([3, 1], [9, 400], runner.like(HEADS))
    two = random_sequences([2, 6], [70, 30], runner.like(HEADS))
    first, second = runner.place(one, Placement()), runner.place(two, Placement())
    attn = runner.attention(runner.like(HEADS), page_size=16, variant=al.variants.causal())
    attn.plan(first.qo_indptr, first.kv)
    layer = duplicate(Layer(attn)) if duplicate is copy.deepcopy else Layer(duplicate(attn))
    assert torch.equal(layer.attn.run(first.q, *first.caches), attn.run(first.q, *first.caches))
    layer.attn.plan(second.qo_indptr, second.kv)

    def alone(q, k, v):
        return layer.attn.run(q, k, v)

    compiled = torch.compile(alone, fullgraph=True, backend="eager")
    compare(second, compiled(second.q, *second.caches), None, expect(second, oracle.causal()))
    compare(first, attn.run(first.q, *first.caches), None, expect(first, oracle.causal()))


def test_engines_and_variants_refuse_to_be_pickled_by_name(runner):
    for one in (runner.attention(runner.like(HEADS), page_size=16), al.variants.causal()):
        with pytest.raises(al.errors.NotYetSupported, match="pickling"):
            pickle.dumps(one)
