"""Composition: transforms left to right, masks intersected, united and inverted, operands joined."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from dense import assert_exact, call, positions

from attnloom.errors import ParamError, VariantError
from attnloom.variant import Variant, library, param
from attnloom.variant.evaluate import evaluate

LOGITS = torch.linspace(-5, 5, 12).reshape(3, 4)
SLOPES = torch.tensor([0.5, 0.25])


def value(variant, **env):
    return evaluate(variant.program.logits, {"logits": LOGITS, **env})


def test_transforms_run_left_to_right():
    double = Variant(logits_transform=lambda logits: logits * 2)
    add = Variant(logits_transform=lambda logits: logits + 1)
    assert torch.equal(value(double & add), LOGITS * 2 + 1)
    assert torch.equal(value(add & double), (LOGITS + 1) * 2)
    assert torch.equal(value(add & double & add), (LOGITS + 1) * 2 + 1)


def test_cap_then_bias_is_not_bias_then_cap():
    q, k, head = torch.tensor([[4], [5], [6]]), torch.arange(4), torch.tensor(1)
    env = {"q_pos": q, "kv_pos": k, "qo_head": head, "slopes": SLOPES}
    cap, bias = library.soft_cap(2.0), library.alibi(SLOPES)
    capped = 2.0 * torch.tanh(LOGITS / 2.0) + 0.25 * (k - q)
    torch.testing.assert_close(value(cap & bias, **env), capped)
    torch.testing.assert_close(value(bias & cap, **env), 2.0 * torch.tanh((LOGITS + 0.25 * (k - q)) / 2.0))


def test_a_chained_value_is_used_wherever_the_second_reads_it():
    square = Variant(logits_transform=lambda logits: logits * logits)
    add = Variant(logits_transform=lambda logits: logits + 1)
    assert torch.equal(value(add & square), (LOGITS + 1) * (LOGITS + 1))


def test_outputs_chain_and_read_the_same_lse():
    first = Variant(output_transform=lambda x, lse: x * lse)
    second = Variant(output_transform=lambda x, lse: x + lse)
    env = {"x": LOGITS, "lse": torch.tensor(3.0)}
    assert torch.equal(evaluate((first & second).program.output, env), LOGITS * 3 + 3)


def _window_of_three(q_pos, kv_pos):
    return (kv_pos <= q_pos) & (q_pos - kv_pos < 3)


MASKS = {
    "and": (library.causal() & library.sliding_window(2), _window_of_three),
    "or": (library.causal() | library.prefix_lm(3), lambda q_pos, kv_pos: (kv_pos <= q_pos) | (kv_pos < 3)),
    "not": (~library.causal(), lambda q_pos, kv_pos: kv_pos > q_pos),
    "mixed": (
        ~(library.causal() & ~library.sliding_window(1)) | library.sliding_window(0),
        lambda q_pos, kv_pos: ~((kv_pos <= q_pos) & ~(kv_pos >= q_pos - 1)) | (kv_pos >= q_pos),
    ),
    "with full": (library.full() & library.causal(), lambda q_pos, kv_pos: kv_pos <= q_pos),
    "full or": (library.full() | library.causal(), lambda kv_pos: kv_pos >= 0),
    "not full": (~library.full(), lambda kv_pos: kv_pos < 0),
    "unlimited window": (library.causal() & library.sliding_window(None), lambda q_pos, kv_pos: kv_pos <= q_pos),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    variant, functor = MASKS[name]
    env = positions(4, 7)
    params = {"prefix_len": 3} if "prefix_len" in variant.params else {}
    seen = call(functor, env)
    mask = variant.program.mask
    assert torch.equal(seen if mask is None else evaluate(mask, {**env, **params}).expand(4, 7), seen)
    assert mask is not None or seen.all()
    bare = Variant(logits_mask=functor)
    assert_exact(variant, functor, [(4, 7), (7, 3)], params) if not params else None
    assert_exact(bare, functor, [(4, 7), (7, 3)], {})


@pytest.mark.parametrize(
    "other", [library.soft_cap(3.0), library.sinks(), library.sigmoid(), Variant(output_transform=lambda x: x * 2)]
)
def test_union_and_complement_are_for_masks_alone(other):
    for operation in (lambda: other | library.causal(), lambda: library.causal() | other, lambda: ~other):
        with pytest.raises(VariantError, match="defined for masks only"):
            operation()


def test_two_sinks_and_sigmoid_with_a_sink_raise():
    with pytest.raises(VariantError, match="both have a sink"):
        library.sinks(SLOPES) & library.sinks(SLOPES)
    for pair in ((library.sigmoid(), library.sinks()), (library.sinks(), library.sigmoid())):
        with pytest.raises(VariantError, match="does not use softmax"):
            pair[0] & pair[1]


def test_sigmoid_with_a_mask():
    variant = library.causal() & library.sigmoid(0.5)
    assert not variant.program.use_softmax
    assert variant.program.mask is library.causal().program.mask
    torch.testing.assert_close(value(variant, bias=0.5), torch.sigmoid(LOGITS + 0.5))


def test_operands_join_and_the_same_operand_may_be_shared():
    one = Variant(logits_transform=lambda logits, qo_head, slopes: logits * slopes[qo_head], params={"slopes": SLOPES})
    joined = one & library.alibi(SLOPES) & library.custom_mask()
    assert set(joined.params) == {"slopes", "mask", "mask_start"}
    assert joined.params["slopes"].default is SLOPES
    shared = param(torch.float32, 1)
    left = Variant(logits_transform=lambda logits, qo_head, s: logits + s[qo_head], params={"s": shared})
    right = Variant(sink=lambda qo_head, s: s[qo_head], params={"s": shared})
    assert set((left & right).params) == {"s"}
    assert set((library.custom_mask() | library.custom_mask()).params) == {"mask", "mask_start"}
    assert set((library.sigmoid(0.5) & library.sigmoid(0.5)).params) == {"bias"}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (library.alibi(SLOPES), library.alibi(SLOPES.clone())),
        (library.alibi(SLOPES), library.alibi()),
        (library.prefix_lm(3), library.prefix_lm(4)),
        (library.prefix_lm(3), library.prefix_lm()),
        (Variant(params={"w": 1}), Variant(params={"w": 1.0})),
        (Variant(params={"w": param(torch.int32, 1)}), Variant(params={"w": param(torch.int32, 2)})),
    ],
)
def test_one_name_for_two_operands_asks_to_rename(left, right):
    with pytest.raises(ParamError, match=r"declared twice.*variant\.rename\("):
        left & right


def test_rename():
    both = library.prefix_lm(3) & library.prefix_lm(5).rename(prefix_len="second_prefix")
    assert {name: one.default for name, one in both.params.items()} == {"prefix_len": 3, "second_prefix": 5}
    env = positions(3, 8)
    got = evaluate(both.program.mask, {**env, "prefix_len": 3, "second_prefix": 5})
    assert torch.equal(got, (env["kv_pos"] <= env["q_pos"]) | (env["kv_pos"] < 3))
    renamed = library.alibi(SLOPES).rename(slopes="gains")
    assert str(renamed.program.logits) == "logits + gains[qo_head] * (kv_pos - q_pos)"
    with pytest.raises(ParamError, match="Did you mean 'prefix_len'"):
        library.prefix_lm(3).rename(prefix="p")
    with pytest.raises(ParamError, match="two parameters"):
        library.custom_mask().rename(mask="mask_start")
    with pytest.raises(ParamError, match="the engine supplies"):
        library.prefix_lm(3).rename(prefix_len="kv_len")


def test_variants_are_immutable_and_describe_themselves():
    variant = library.causal() & library.soft_cap(3.0)
    with pytest.raises(AttributeError, match="immutable"):
        variant.name = "other"
    with pytest.raises(TypeError):
        variant.params["x"] = 1
    assert variant.name == "(causal & soft_cap(3.0))"
    assert repr(library.causal()) == "Variant('causal', mask: kv_pos <= q_pos)"
    assert repr(Variant()) == "Variant(full attention)"
    assert "no softmax" in repr(library.sigmoid())
    assert Variant(logits_mask=lambda kv_pos: kv_pos > 2).name == "Variant(mask: 2 < kv_pos)"
    for combine in (lambda: variant & 3, lambda: library.causal() | None):
        with pytest.raises(TypeError):
            combine()


def test_copies_keep_the_expression_itself():
    mask = library.causal().program.mask
    assert copy.deepcopy(mask) is copy.copy(mask) is mask
    for expr in (
        mask,
        library.alibi().program.logits,
        library.packed_mask().program.mask,
        library.soft_cap(3.0).program.logits,
    ):
        assert pickle.loads(pickle.dumps(expr)) is expr
