"""Errors teach: the user's own line, the construct, and how to write it."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch

from attnloom.errors import NotYetSupported, VariantError
from attnloom.variant import Variant, param

TABLE = torch.ones(4)
TWO_D = torch.ones(4, 3)


def choose_with_if(logits, kv_pos):
    if kv_pos > 2:
        return logits
    return logits + 1


def choose_with_ternary(logits, kv_pos):
    return logits if kv_pos > 2 else logits + 1


def python_and(q_pos, kv_pos):
    return kv_pos <= q_pos and kv_pos > 2


def python_not(kv_pos):
    return not kv_pos > 2


def chained(kv_pos):
    return 0 <= kv_pos < 4


def python_max(logits):
    return max(logits, 0.0)


def python_range(logits, qo_len):
    return sum((logits for _ in range(qo_len)), 0.0)


def membership(kv_pos):
    return kv_pos in (1, 2)


def iteration(logits):
    return sum(one for one in logits)


def math_exp(logits):
    return math.exp(logits)


def as_int(kv_pos):
    return int(kv_pos) > 2


def as_float(kv_pos):
    return float(kv_pos) > 2


def rounded(logits):
    return round(logits)


def length(logits):
    return logits * len(logits)


def dict_key(logits, qo_head):
    return logits + {0: 1.0}[qo_head]


def list_index(logits, qo_head):
    return logits + [1.0, 2.0][qo_head]


def tensor_index(logits, qo_head):
    return logits + TABLE[qo_head]


def tensor_arithmetic(logits):
    return TABLE + logits


def tensor_function(logits):
    return torch.maximum(logits, TABLE)


def tensor_zero_d(logits):
    return logits * torch.tensor(2.0)


def array_arithmetic(logits):
    return np.ones(3) * logits


def array_index(logits, qo_head):
    return logits + np.ones(3)[qo_head]


def string_operand(logits):
    return logits + "1"


def softmax(logits):
    return torch.softmax(logits, -1)


def masked_fill(logits, kv_pos):
    return logits.masked_fill(kv_pos > 2, -math.inf)


def item(logits):
    return logits.item()


def shape(logits):
    return logits * logits.shape[0]


def misspelt_method(logits):
    return logits.sigmiod()


def half(logits):
    return logits.half()


def narrow(logits):
    return logits.to(torch.float16)


def reduction(logits):
    return torch.max(logits)


def attribute(logits):
    logits.scale = 3
    return logits


def assignment(logits):
    logits[0] = 3
    return logits


def index_a_number(logits):
    return logits[0]


def bool_sum(q_pos, kv_pos):
    return (kv_pos > 2) + (q_pos > 2)


def bool_negation(kv_pos):
    return -(kv_pos > 2)


def bool_order(q_pos, kv_pos):
    return (kv_pos > 2) < (q_pos > 1)


def precedence(q_pos, kv_pos):
    return (kv_pos <= q_pos) & (kv_pos * 1.0)


def invert_float(logits):
    return ~logits


def shift_float(logits):
    return logits << 2


def where_number(logits, kv_pos):
    return torch.where(kv_pos, logits, 0.0)


def bool_power(logits, kv_pos):
    return logits + 2 ** (-kv_pos)


def truncating_division(q_pos, kv_pos):
    return torch.div(q_pos, kv_pos, rounding_mode="trunc") > 2


def out_argument(logits):
    return torch.exp(logits, out=logits)


def wrong_arguments(logits):
    return logits.clamp(1, 2, 3)


def own_bug(logits):
    return logits + undefined_name  # noqa: F821


def list_result(logits):
    return [logits]


def no_result(logits):
    logits + 1


INSIDE = {
    choose_with_if: "torch.where",
    choose_with_ternary: "torch.where",
    python_and: "&",
    python_not: "~",
    chained: r"\(0 <= x\) & \(x < n\)",
    python_max: "torch.maximum",
    python_range: "a number fixed when the variant is built",
    membership: r"\(condition, a, b\)",
    iteration: "loop over a number fixed beforehand",
    math_exp: "torch.exp instead of math.exp",
    as_int: r"to\(torch.int32\)",
    as_float: r"\.float\(\)",
    rounded: "torch.round",
    length: "qo_len and kv_len",
    dict_key: r"table\[symbol\]",
    list_index: r"params=\{",
    tensor_index: r"params=\{",
    tensor_arithmetic: r"params=\{",
    tensor_function: r"params=\{",
    tensor_zero_d: "plain number",
    array_arithmetic: r"params=\{",
    array_index: r"params=\{",
    string_operand: "a str in arithmetic",
    softmax: "engine applies the softmax",
    masked_fill: "torch.where",
    item: "no value while",
    shape: "qo_len and kv_len",
    misspelt_method: "Did you mean sigmoid",
    half: "fp32",
    narrow: "torch.float32",
    reduction: "over a dimension",
    attribute: "immutable",
    assignment: "Functors only read",
    index_a_number: "Only tensors declared",
    bool_sum: "&",
    bool_negation: "~mask",
    bool_order: "order between two booleans",
    precedence: "parentheses",
    invert_float: "boolean mask",
    shift_float: "Shifts take integers",
    where_number: "x != 0",
    bool_power: "1 << y",
    truncating_division: "rounds down",
    out_argument: "Functors only read",
    wrong_arguments: "elementwise form",
    own_bug: "undefined_name",
}


def slot_of(functor):
    return "logits_transform" if "logits" in inspect.signature(functor).parameters else "logits_mask"


@pytest.mark.parametrize("functor", INSIDE, ids=lambda functor: functor.__name__)
def test_the_message_names_the_users_line_and_the_fix(functor):
    with pytest.raises(VariantError, match=INSIDE[functor]) as caught:
        Variant(**{slot_of(functor): functor})
    lines, first = inspect.getsourcelines(functor)
    places = [f"{__file__}:{first + offset}: {line.strip()}" for offset, line in enumerate(lines)]
    assert any(str(caught.value).startswith(place) for place in places[1:])


@pytest.mark.parametrize(("functor", "message"), [(list_result, "returned a list"), (no_result, "returned None")])
def test_results_that_are_no_expression_name_the_function(functor, message):
    with pytest.raises(VariantError, match=message) as caught:
        Variant(logits_transform=functor)
    assert f"{__file__}:{functor.__code__.co_firstlineno}" in str(caught.value)


def test_unknown_names_list_what_exists():
    with pytest.raises(VariantError, match="Did you mean 'kv_pos'") as caught:
        Variant(logits_mask=lambda q_pos, kv_po: kv_po <= q_pos, params={"width": 3})
    for name in ("q_pos", "kv_head", "qo_len", "width"):
        assert name in str(caught.value)
    with pytest.raises(VariantError, match="Did you mean 'slopes'"):
        Variant(logits_transform=lambda logits, slope: logits, params={"slopes": TABLE})
    with pytest.raises(VariantError, match="Declare it in params"):
        Variant(logits_transform=lambda logits, temperature: logits * temperature)


def test_a_default_near_a_known_name_is_a_mistake_not_a_constant():
    with pytest.raises(VariantError, match="Did you mean 'slopes'"):
        Variant(logits_transform=lambda logits, slope=1.0: logits * slope, params={"slopes": TABLE})


@pytest.mark.parametrize(
    ("slot", "functor", "message"),
    [
        ("logits_mask", lambda logits: logits > 0, "logits_transform instead"),
        ("sink", lambda kv_pos: kv_pos * 1.0, "one logit per query head"),
        ("sink", lambda logits: logits, "one logit per query head"),
        ("output_transform", lambda x, q_pos: x + q_pos, "pos, head, batch, lse"),
        ("logits_transform", lambda *args: args[0], r"\*args"),
        ("logits_transform", lambda **kwargs: kwargs["logits"], r"\*\*kwargs"),
        ("logits_transform", torch.tanh, "Give a Python function"),
        ("logits_transform", 3, "Give a Python function"),
    ],
)
def test_signatures_that_cannot_be_served(slot, functor, message):
    with pytest.raises(VariantError, match=message):
        Variant(**{slot: functor})


@pytest.mark.parametrize(
    ("slot", "functor", "message"),
    [
        ("logits_mask", lambda kv_pos: kv_pos & 1, r"\(\.\.\.\) != 0"),
        ("logits_mask", lambda kv_pos: 1.0, "must be a boolean"),
        ("logits_transform", lambda logits: logits > 0, "torch.where"),
        ("logits_transform", lambda logits, kv_pos: kv_pos, r"x\.float\(\)"),
        ("output_transform", lambda x: x > 0, "must be a float"),
        ("sink", lambda qo_head: qo_head, "must be a float"),
    ],
)
def test_result_types(slot, functor, message):
    with pytest.raises(VariantError, match=message):
        Variant(**{slot: functor})


@pytest.mark.parametrize(
    ("functor", "message"),
    [
        (lambda logits, t: logits + t, r"for example t\[qo_head, q_idx\]"),
        (lambda logits, t, qo_head: logits + t[qo_head], "used with 1 of its dimensions not indexed"),
        (lambda logits, t, qo_head: logits + t[qo_head, 0, 0], "gets 3 indices"),
        (lambda logits, t, qo_head: logits + t[qo_head, 0.5], "indexed with a float"),
        (lambda logits, t, qo_head, kv_pos: logits + t[qo_head, kv_pos > 2], "indexed with a bool"),
        (lambda logits, t, qo_head: logits + t[qo_head, -1], "negative indices do not wrap"),
        (lambda logits, t, qo_head: logits + t[qo_head, :2], "a slice of t"),
        (lambda logits, t, qo_head: logits + t[..., qo_head], "a slice of t"),
        (lambda logits, t, qo_head: logits + t[:, None], "a slice of t"),
        (lambda logits, t: torch.sum(t) + logits, "sum is not in the variant language|not indexed"),
        (lambda logits, s: logits + s[0], "one number"),
    ],
)
def test_indexing(functor, message):
    with pytest.raises(VariantError, match=message):
        Variant(logits_transform=functor, params={"t": TWO_D, "s": 1.0})


@pytest.mark.parametrize("slot", ["query_transform", "key_transform", "value_transform"])
def test_vector_functors_come_later(slot):
    with pytest.raises(NotYetSupported, match=slot):
        Variant(**{slot: lambda x: x})


def test_without_softmax_there_is_no_lse():
    with pytest.raises(VariantError, match="there is none"):
        Variant(output_transform=lambda x, lse: x * lse, use_softmax=False)
    with pytest.raises(VariantError, match="denominator"):
        Variant(sink=lambda qo_head, s: s[qo_head], params={"s": param()}, use_softmax=False)


def test_the_error_is_a_value_error_with_fields():
    with pytest.raises(ValueError, match="must be a boolean") as caught:
        Variant(logits_mask=lambda kv_pos: kv_pos)
    assert set(caught.value.fields) == {"where", "reason", "fix"}
