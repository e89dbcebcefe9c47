"""A user's mistake raises a class of attnloom.errors that says what came and what is supported, before any launch."""

import inspect
import re

import pytest
import torch

import attnloom as al
from attnloom import errors
from attnloom.testing.inputs import Heads, Placement, random_sequences

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.AttnLoomError)]
BUILTIN = (ValueError, TypeError, RuntimeError, ImportError, NotImplementedError)


@pytest.mark.parametrize("cls", [c for c in CLASSES if c is not errors.AttnLoomError])
def test_each_class_is_also_a_builtin_and_has_a_template(cls):
    assert issubclass(cls, BUILTIN)
    assert "{" in cls.template
    assert cls.__doc__


def make(**options):
    defaults = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 64, "dtype": torch.bfloat16, "device": "cpu"}
    return al.BatchAttention(**{**defaults, **options})


def branch(logits):
    return logits if logits > 0 else -logits


def unknown_name(logits, slope):
    return logits * slope


# mistake -> (what is done, error class, texts that the message has)
CONSTRUCTION = {
    "variant not called": (lambda: make(variant=al.variants.causal), errors.InvalidArgument, ("variant", "causal()")),
    "layout": (lambda: make(kv_layout="NDH"), errors.InvalidArgument, ("kv_layout = 'NDH'", "'NHD' or 'HND'")),
    "page size": (lambda: make(page_size=0), errors.InvalidArgument, ("page_size = 0", "integer >= 1")),
    "planner": (lambda: make(planner="best"), errors.InvalidArgument, ("'best'", "'algorithm1'")),
    "implementation": (lambda: make(implementation="cuda"), errors.AttnLoomError, ("cuda", "cpu", "reference")),
    "implementation of another type": (lambda: make(implementation=["cpu"]), errors.InvalidArgument, ("['cpu']",)),
    "a scale beyond floats": (lambda: make(sm_scale=10**400), errors.InvalidArgument, ("sm_scale", "finite")),
    "cache of another kind": (
        lambda: make(kv_dtype=torch.int8), errors.InvalidArgument,
        ("kv_dtype = torch.int8", "torch.bfloat16 (that of q)", "float8_e4m3fn", "float8_e5m2"),
    ),
    "fp16 cache beside bf16": (
        lambda: make(kv_dtype=torch.float16), errors.InvalidArgument, ("torch.float16", "torch.bfloat16"),
    ),
    "fp8 cache beside fp32": (
        lambda: make(dtype=torch.float32, kv_dtype=torch.float8_e5m2), errors.InvalidArgument,
        ("kv_dtype = torch.float8_e5m2", "expected torch.float32", "fp16 and bf16"),
    ),
    "cache dtype of text": (lambda: make(kv_dtype="fp8"), errors.InvalidArgument, ("kv_dtype = 'fp8'",)),
    "control flow": (lambda: al.Variant(logits_transform=branch), errors.VariantError, ("test_errors.py", "where")),
    "unknown name": (lambda: al.Variant(logits_transform=unknown_name), errors.AttnLoomError, ("slope", "params")),
    "mask that is none": (
        lambda: al.Variant(logits_mask=lambda q_pos, kv_pos: kv_pos - q_pos), errors.VariantError, ("mask", "bool"),
    ),
    "two sinks": (
        lambda: al.variants.sinks(torch.ones(4)) & al.Variant(sink=lambda qo_head: 0.5 * qo_head),
        errors.VariantError, ("sink",),
    ),
    "sigmoid with a sink": (
        lambda: al.variants.sigmoid() & al.variants.sinks(torch.ones(4)), errors.VariantError, ("sink", "softmax"),
    ),
    "or with a transform": (lambda: al.variants.causal() | al.variants.soft_cap(3.0), errors.VariantError, ("|",)),
    "not of a transform": (lambda: ~al.variants.soft_cap(3.0), errors.VariantError, ("~",)),
    "reserved operand": (lambda: al.Variant(params={"q_pos": 1.0}), errors.ParamError, ("q_pos", "Reserved")),
    "operand of text": (lambda: al.Variant(params={"a": "x"}), errors.ParamError, ("'a'", "str")),
    "soft cap": (lambda: al.variants.soft_cap(-3.0), errors.InvalidArgument, ("cap = -3.0", "finite number >= 0")),
    "page size of PagedKV": (lambda: al.PagedKV([0], [], [], page_size=0), errors.AttnLoomError, ("page_size", "0")),
}  # fmt: skip


@pytest.mark.parametrize("mistake", CONSTRUCTION)
def test_mistakes_at_construction(mistake, launches):
    act, cls, texts = CONSTRUCTION[mistake]
    with pytest.raises(cls) as raised:
        act()
    assert isinstance(raised.value, errors.AttnLoomError)
    for text in texts:
        assert text in str(raised.value)
    assert not launches


def plain_batch(runner):
    return runner.place(random_sequences([2, 1], [30, 7], Heads.of(4, 2, 64)), Placement())


# mistake -> (arguments of plan, error class, texts)
PLANS = {
    "kv of the wrong kind": ({"kv": [0, 1]}, errors.InvalidArgument, ("kv = 'list'", "PagedKV")),
    "workers": ({"num_ctas": 0}, errors.InvalidArgument, ("num_ctas = 0", ">= 1")),
    "workers that are no number": ({"num_ctas": "all"}, errors.InvalidArgument, ("num_ctas = 'all'",)),
    "another batch": ({"qo_indptr": [0, 1]}, errors.InvalidMetadata, ("kv_indptr", "3", "2")),
    "q_pos": ({"q_pos": [1, 2]}, errors.InvalidMetadata, ("q_pos", "2 elements", "3")),
    "kv_pos": ({"kv_pos": [2**40] * 37}, errors.InvalidMetadata, ("kv_pos", "int32")),
    "operands that are no mapping": ({"params": [1.0]}, errors.InvalidArgument, ("params = 'list'", "mapping")),
    "undeclared operand": ({"params": {"gian": 1.0}}, errors.ParamError, ("gian", "'gain'")),
    "operand of other dims": ({"params": {"gain": torch.ones(3)}}, errors.ParamError, ("gain", "(3,)", "scalar")),
    "operand of another kind": (
        {"params": {"gain": torch.tensor(True)}},
        errors.ParamError,
        ("bool", "float32"),
    ),
    "sharing": ({"share_prefixes": False}, errors.NotYetSupported, ("share_prefixes",)),
}


@pytest.mark.parametrize("mistake", PLANS)
def test_mistakes_at_plan(runner, launches, mistake):
    changes, cls, texts = PLANS[mistake]
    batch = plain_batch(runner)
    variant = al.Variant(logits_transform=lambda logits, gain: logits * gain, params={"gain": 1.0})
    attn = runner.for_batch(batch, variant=variant)
    with pytest.raises(cls) as raised:
        attn.plan(**{"qo_indptr": batch.qo_indptr, "kv": batch.kv, **changes})
    for text in texts:
        assert text in str(raised.value)
    assert not launches


def test_a_page_size_other_than_the_constructors(runner):
    batch = plain_batch(runner)
    attn = runner.attention(batch.sequences.heads, page_size=8)
    with pytest.raises(errors.InvalidArgument, match=r"page_size = 16.*8"):
        attn.plan(batch.qo_indptr, batch.kv)


def test_append_refuses_what_does_not_fit(launches):
    pool = runner_free_pool()
    k = torch.ones(2, 2, 64, dtype=torch.bfloat16)
    slots = torch.tensor([0, 1])
    before = pool.k_nhd.clone()
    wrong = {
        "a slot past the pool": ((k, k, torch.tensor([0, 10**6])), "slots.*1000000"),
        "a negative slot": ((k, k, torch.tensor([0, -2])), "slots.*-2"),
        "float slots": ((k, k, slots.float()), "slots.*float32"),
        "too few slots": ((k, k, slots[:1]), r"slots.*\(1,\).*\[2\]"),
        "heads": ((k[:, :1], k[:, :1], slots), r"\(2, 1, 64\)"),
        "dtype": ((k.float(), k.float(), slots), "k_cache has dtype torch.bfloat16, expected torch.float32"),
        "rows of v": ((k, k[:1], slots), r"v.*\(1, 2, 64\)"),
    }
    for (rows_k, rows_v, where), message in wrong.values():
        with pytest.raises(errors.AttnLoomError, match=message):
            al.append_kv(rows_k, rows_v, pool.k_nhd, pool.v_nhd, where)
    with pytest.raises(errors.InvalidArgument, match="kv_layout = 'DHN'"):
        al.append_kv(k, k, pool.k_nhd, pool.v_nhd, slots, kv_layout="DHN")
    assert torch.equal(pool.k_nhd.nan_to_num(), before.nan_to_num())
    assert not launches


def runner_free_pool():
    from attnloom.testing.inputs import place

    return place(random_sequences([1], [30], Heads.of(4, 2, 64)), Placement()).pool


def test_attention_refuses_what_does_not_fit(launches):
    q, k, three = torch.zeros(5, 4, 64), torch.zeros(9, 2, 64), torch.zeros(9, 3, 64)
    wrong = {
        "dims": ((q[0], k, k, {}), errors.ShapeMismatch, r"q has shape \(4, 64\)"),
        "k and v": ((q, k, k[:5], {}), errors.ShapeMismatch, r"\(9, 2, 64\).*\(5, 2, 64\)"),
        "one indptr": ((q, k, k, {"qo_indptr": [0, 5]}), errors.InvalidArgument, "kv_indptr"),
        "heads": (
            (q, three, three, {}),
            errors.InvalidArgument,
            "num_qo_heads = 4",
        ),
        "k's dim": ((q, k[..., :32], k, {}), errors.AttnLoomError, "head_dim"),
        "dtypes": ((q, k.half(), k, {}), errors.DtypeMismatch, "k.* torch.float16, expected torch.float32"),
        "gradients": ((q.clone().requires_grad_(), k, k, {}), errors.GradientRequired, "q"),
        "no tensor": (([1], k, k, {}), errors.AttnLoomError, "q"),
    }
    for (*tensors, options), cls, message in wrong.values():
        with pytest.raises(cls, match=message):
            al.attention(*tensors, **options)
    assert not launches


def test_merging_refuses_what_is_no_state():
    out, lse = torch.zeros(3, 4, 64), torch.zeros(3, 4)
    with pytest.raises(errors.ShapeMismatch, match=r"lse \(3, 5\)"):
        al.merge_state(out, lse, out, torch.zeros(3, 5))
    with pytest.raises(errors.ShapeMismatch, match=r"\(2, 4, 64\)"):
        al.merge_state(out, lse, out[:2], lse[:2])
    with pytest.raises(errors.StateError, match="without lse"):
        al.merge_state(out, None, out, lse)
    with pytest.raises(errors.StateError, match="2 outs and 1 lses"):
        al.merge_states([out, out], [lse])
    with pytest.raises(errors.DtypeMismatch, match="lse has dtype int"):
        al.merge_state(out, 1, out, lse)
    with pytest.raises(errors.DtypeMismatch, match="out has dtype list"):
        al.merge_state(out, lse, out.tolist(), lse)
    with pytest.raises(errors.StateError, match="without lse"):
        al.merge_states([out], None)
    with pytest.raises(errors.DeviceMismatch, match="out is on meta"):
        al.merge_state(out, lse, out.to("meta"), lse)
    with pytest.raises(errors.GradientRequired, match="out"):
        al.merge_state(out.clone().requires_grad_(), lse, out, lse)
    with pytest.raises(errors.InvalidArgument, match="variant = 5"):
        al.finish_state(out, lse, variant=5)
    with pytest.raises(errors.DtypeMismatch, match="out has dtype int"):
        al.finish_state(5, lse)
    with pytest.raises(errors.ShapeMismatch, match="H, D"):
        al.finish_state(out[0, 0], lse[0, 0])


def test_an_operand_shorter_than_its_functor_reads(runner):
    """How far a computed index goes is known when it is read: refused then, or the last element is read instead."""
    bias = al.Variant(logits_transform=lambda logits, kv_pos, bias: logits + bias[kv_pos], params={"bias": al.param()})
    attn = runner.attention(runner.fit(Heads.of(4, 2, 32)), variant=bias)
    batch = runner.place(random_sequences([2], [40], runner.fit(Heads.of(4, 2, 32))), Placement("ragged"))
    attn.plan(batch.qo_indptr, batch.kv)
    steps = torch.arange(39, device=runner.device, dtype=torch.float32) / 8
    try:
        short = attn.run(batch.q, *batch.caches, params={"bias": steps})
    except al.errors.ParamError as refused:
        assert re.search(r"'bias'.*shape \(39,\)", str(refused))  # noqa: PT017  refused, or read within the tensor
        return
    assert torch.equal(short, attn.run(batch.q, *batch.caches, params={"bias": torch.cat([steps, steps[-1:]])}))
