"""What functors may say, and that evaluating the traced expression gives what the function itself gives."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from attnloom.variant import Variant, build, fast_tanh
from attnloom.variant.evaluate import evaluate
from attnloom.variant.expr import const

LOGITS = torch.tensor([[-1e4, -3.5, -1.0, -0.25, 0.0], [0.25, 0.75, 1.0, 2.5, 1e4]])
KV = torch.tensor([[0, 1, 2, 3, 4]], dtype=torch.int32)
Q = torch.tensor([[7], [2]], dtype=torch.int32)

FLOAT_FUNCTIONS = {
    "exp": lambda logits: torch.exp(logits * 1e-3),
    "exp2": lambda logits: torch.exp2(logits * 1e-3),
    "expm1": lambda logits: torch.expm1(logits * 1e-3),
    "log": lambda logits: torch.log(logits * logits + 1),
    "log2": lambda logits: torch.log2(abs(logits) + 2.0),
    "log1p": lambda logits: logits.abs().log1p(),
    "sqrt": lambda logits: torch.sqrt(torch.abs(logits)),
    "rsqrt": lambda logits: (logits**2 + 0.5).rsqrt(),
    "tanh": lambda logits: 30.0 * torch.tanh(logits / 30.0),
    "fast_tanh": lambda logits: fast_tanh(logits / 2),
    "sigmoid": lambda logits: torch.sigmoid(logits / 2),
    "expit": lambda logits: torch.special.expit(logits / 2),
    "sin, cos": lambda logits: torch.sin(logits) + logits.cos(),
    "erf": lambda logits: torch.erf(logits / 2),
    "floor, ceil": lambda logits: torch.floor(logits) + torch.ceil(logits) * 10,
    "trunc, round": lambda logits: torch.trunc(logits) + torch.round(logits) * 10,
    "sign": lambda logits: torch.sign(logits) * logits,
    "reciprocal": lambda logits: torch.reciprocal(logits + 3.0),
    "relu": lambda logits: functional.relu(logits) - torch.relu(-logits),
    "silu": lambda logits: functional.silu(logits / 2),
    "gelu": lambda logits: functional.gelu(logits / 2),
    "softplus": lambda logits: functional.softplus(logits * 0.1),
    "logsigmoid": lambda logits: functional.logsigmoid(logits * 0.1),
    "clamp": lambda logits: torch.clamp(logits, -1.0, 2.0) + logits.clamp(min=0) + logits.clip(max=1.5),
    "clamp_min": lambda logits: torch.clamp_min(logits, 0.5) - torch.clamp_max(logits, 0.5),
    "minimum, maximum": lambda logits, q_pos: torch.minimum(logits, q_pos * 1.0) + torch.maximum(logits, -logits),
    "max, min of two": lambda logits: torch.max(logits, -logits) + torch.min(logits, logits * 2),
    "where": lambda logits, kv_pos: torch.where(kv_pos % 2 == 0, logits, -torch.inf),
    "where of numbers": lambda logits, kv_pos: logits + torch.where(kv_pos > 2, 0.1, -0.7),
    "where of integers": lambda logits, kv_pos: logits * torch.where(kv_pos > 2, kv_pos, 0.5),
    "where, nested": lambda logits: torch.where(logits > 1, 1.0, torch.where(logits < -1, -1.0, logits)),
    "full_like": lambda logits: torch.where(logits < 0, torch.full_like(logits, -2.0), torch.zeros_like(logits)),
    "add with alpha": lambda logits, kv_pos: torch.add(logits, kv_pos, alpha=2) - torch.sub(kv_pos, logits, alpha=0.5),
    "arithmetic by name": lambda logits: torch.mul(torch.sub(torch.add(logits, 1), 2), torch.div(logits, 4)),
    "reversed operators": lambda logits, kv_pos: 1 - logits + 2.0 / (kv_pos + 1) + 2 * logits,
    "integer division is a float": lambda logits, kv_pos: logits + kv_pos / 3,
    "powers": lambda logits, kv_pos: logits * 1e-3 + kv_pos**2 + (kv_pos + 1.0) ** 1.5 + (kv_pos * 1.0) ** 3,
    "powers of a number": lambda logits, kv_pos: logits + 2.0**kv_pos,
    "pow of halves": lambda logits: abs(logits) ** 0.5 + abs(logits).pow(2.0),
    "a mask as a number": lambda logits, q_pos, kv_pos: logits * (kv_pos <= q_pos) + 2.0 * (kv_pos == 3),
    "conversion": lambda logits, kv_pos: (logits * 0.01).to(torch.int32) + kv_pos.float() + logits.long() * 0,
    "type_as": lambda logits, kv_pos: kv_pos.type_as(logits) + logits.to(logits.dtype),
    "isnan": lambda logits: torch.where(torch.isnan(logits / 0 * 0), 0.0, 1.0) + torch.where(logits.isinf(), 1.0, 2.0),
    "isfinite": lambda logits: torch.where(torch.isfinite(1 / logits), logits, 9.0),
    "negation, position": lambda logits: -logits + +logits * 2 - torch.neg(logits),
    "numpy scalars": lambda logits: np.float32(0.5) * logits + np.int64(3) - np.float64(0.25),
    "square": lambda logits: torch.square(logits * 1e-2),
}  # fmt: skip

MASKS = {
    "floor division rounds down": lambda kv_pos, q_pos: (kv_pos - q_pos) // 3 == -2,
    "remainder has the divisor's sign": lambda kv_pos, q_pos: (kv_pos - q_pos) % 3 == 1,
    "remainder, negative divisor": lambda kv_pos, q_pos: (kv_pos - q_pos) % -3 == -1,
    "division by name": lambda kv_pos, q_pos: torch.floor_divide(kv_pos - q_pos, 2) < torch.remainder(q_pos, 3),
    "rounding_mode": lambda kv_pos, q_pos: torch.div(kv_pos - q_pos, 2, rounding_mode="floor") == -3,
    "float floor division": lambda kv_pos, q_pos: (kv_pos - q_pos * 1.0) // 2.0 == -3.0,
    "reversed quotients": lambda kv_pos: (7 // (kv_pos + 1) > 2) | (7 % (kv_pos + 1) == 1),
    "logic by name": lambda kv_pos, q_pos: torch.logical_and(kv_pos, ~torch.logical_or(kv_pos > 3, q_pos)),
    "logical_not": lambda kv_pos, q_pos: torch.logical_not(kv_pos - q_pos),
    "logical_xor": lambda kv_pos, q_pos: torch.logical_xor(kv_pos > 2, q_pos > 3),
    "operators": lambda kv_pos, q_pos: ~((kv_pos > 1) & (kv_pos < 4)) ^ (q_pos > 3) | (kv_pos == 2),
    "bits": lambda kv_pos, q_pos: ((kv_pos & 1) ^ (q_pos | 2)) != ~kv_pos,
    "bits by name": lambda kv_pos, q_pos: torch.bitwise_and(kv_pos, ~q_pos) == kv_pos.bitwise_xor(q_pos.bitwise_not()),
    "shifts": lambda kv_pos, q_pos: ((q_pos << 2) >> kv_pos) & 1 != 0,
    "reversed shifts": lambda kv_pos: (1 << kv_pos) > (64 >> kv_pos),
    "comparisons": lambda kv_pos, q_pos: (kv_pos < q_pos) | (kv_pos >= 3) & (q_pos != 7) | (q_pos <= 2) & (kv_pos > 3),
    "comparisons by name": lambda kv_pos, q_pos: torch.lt(kv_pos, 2) | torch.ge(kv_pos, q_pos) | kv_pos.eq(q_pos - 3),
    "comparisons as methods": lambda kv_pos, q_pos: kv_pos.lt(2).logical_or(kv_pos.ge(q_pos)).logical_and(kv_pos.ne(0)),
    "equal masks": lambda kv_pos, q_pos: ((kv_pos > 2) == (q_pos > 3)) & ((kv_pos > 3) != (q_pos > 3)),
    "choice of masks": lambda kv_pos, q_pos: torch.where(q_pos > 3, kv_pos <= 1, kv_pos >= 3),
    "mask of a mask": lambda kv_pos: (kv_pos % 2).bool() & (kv_pos > 0).to(torch.bool),
    "number against mask": lambda kv_pos: (kv_pos > 2) == 1,
    "booleans in bits": lambda kv_pos: ((kv_pos > 2) & kv_pos) != 0,
    "abs": lambda kv_pos, q_pos: abs(q_pos - kv_pos) <= torch.abs(kv_pos - 2),
    "a constant": lambda kv_pos: True,
    "all by keyword": lambda *, kv_pos, q_pos: kv_pos <= q_pos,
    "python loop over numbers": lambda kv_pos: functools.reduce(lambda a, b: a | b, [kv_pos == i for i in (1, 3)]),
}  # fmt: skip


def expected(functor, **values):
    import inspect

    return torch.as_tensor(functor(**{name: values[name] for name in inspect.signature(functor).parameters}))


@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
def test_transforms_compute_what_the_function_computes(name):
    functor = FLOAT_FUNCTIONS[name]
    program = Variant(logits_transform=functor).program
    value = evaluate(program.logits, {"logits": LOGITS, "kv_pos": KV, "q_pos": Q}) if program.logits else LOGITS
    right = expected(functor, logits=LOGITS, kv_pos=KV, q_pos=Q).to(torch.float32)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.expand(2, 5), right.expand(2, 5), rtol=2e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
def test_double_precision_is_carried_through(name):
    functor = FLOAT_FUNCTIONS[name]
    program = Variant(logits_transform=functor).program
    env = {"logits": LOGITS.double(), "kv_pos": KV.long(), "q_pos": Q.long()}
    value = evaluate(program.logits, env, torch.float64) if program.logits else LOGITS.double()
    with_default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        right = expected(functor, **env).double()
    finally:
        torch.set_default_dtype(with_default)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value.expand(2, 5), right.expand(2, 5), rtol=1e-13, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_masks_compute_what_the_function_computes(name, dtype):
    functor = MASKS[name]
    program = Variant(logits_mask=functor).program
    kv, q = KV.to(dtype), Q.to(dtype)
    value = torch.tensor(True) if program.mask is None else evaluate(program.mask, {"kv_pos": kv, "q_pos": q})
    assert value.dtype == torch.bool
    assert torch.equal(value.expand(2, 5), expected(functor, kv_pos=kv, q_pos=q).expand(2, 5))


def test_results_do_not_depend_on_the_default_dtype():
    program = Variant(
        logits_transform=lambda logits, kv_pos: logits + kv_pos / 3 + torch.where(kv_pos > 1, 0.1, 0.2)
    ).program
    env = {"logits": LOGITS, "kv_pos": KV}
    before = evaluate(program.logits, env)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(evaluate(program.logits, env), before)
    finally:
        torch.set_default_dtype(torch.float32)


def test_comparisons_of_numbers_alone():
    program = Variant(
        logits_transform=lambda logits, scale: logits + torch.where(scale > 2, 1.0, 0.0), params={"scale": 3.0}
    )
    assert evaluate(program.program.logits, {"logits": torch.zeros(1), "scale": 3.0}).tolist() == [1.0]
    less = build.compare("lt", const(0), const(-1))  # before simplification
    assert not evaluate(less, {})
    assert evaluate(build.where(less, const(1), const(2.5)), {}) == 2.5


def test_numbers_stand_for_tensors():
    program = Variant(
        logits_transform=lambda logits, batch, qo_len, scale: (
            torch.where(batch > qo_len, logits, batch * scale) + batch / qo_len
        ),
        params={"scale": 0.5},
    ).program
    value = evaluate(program.logits, {"logits": LOGITS, "batch": 3, "qo_len": 4, "scale": 0.5})
    assert torch.equal(value, torch.full((2, 5), 1.5 + 0.75))


def test_parameters_tensors_and_scalars():
    table = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))

    def functor(scale, table, qo_head, logits, kv_pos):  # any order
        return logits * scale + table[qo_head, kv_pos % 3] - table[qo_head][2]

    variant = Variant(logits_transform=functor, params={"table": table, "scale": 2.0, "unused": 1})
    heads = torch.arange(4)[:, None, None]
    env = {"logits": LOGITS, "kv_pos": KV, "qo_head": heads, "table": table}
    want = LOGITS * 2.0 + table[heads, KV.long() % 3] - table[heads, 2]
    for scale in (
        2.0,
        torch.tensor(2.0),
        torch.tensor(2.0, dtype=torch.bfloat16),
        torch.tensor(2.0, dtype=torch.float64),
    ):
        assert torch.equal(evaluate(variant.program.logits, {**env, "scale": scale}), want)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_narrow_integers_are_widened_before_arithmetic(dtype):
    table = torch.tensor([100, 120, 7], dtype=dtype)
    variant = Variant(logits_mask=lambda kv_pos, t: t[kv_pos] * 4 - 300 > 2 * t[kv_pos], params={"t": table})
    value = evaluate(variant.program.mask, {"kv_pos": torch.arange(3), "t": table})
    assert value.tolist() == [100 * 2 > 300, 120 * 2 > 300, 7 * 2 > 300]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_floats_are_widened_before_arithmetic(dtype):
    table = torch.tensor([1.0, 1.5], dtype=dtype)
    variant = Variant(logits_transform=lambda logits, qo_head, t: logits + t[qo_head] / 3, params={"t": table})
    value = evaluate(variant.program.logits, {"logits": torch.zeros(2), "qo_head": torch.arange(2), "t": table})
    assert torch.equal(value, torch.tensor([1.0, 1.5]) / 3)


def test_an_index_past_two_to_the_31_does_not_wrap():
    variant = Variant(
        logits_mask=lambda q_idx, kv_pos, kv_len, t: t[(q_idx * kv_len + kv_pos) % 1_000_003],
        params={"t": torch.zeros(1_000_003, dtype=torch.bool)},
    )
    table = torch.zeros(1_000_003, dtype=torch.bool)
    table[(70_000 * 100_000 + 5) % 1_000_003] = True
    env = {
        "q_idx": torch.tensor(70_000, dtype=torch.int32),
        "kv_pos": torch.tensor(5, dtype=torch.int32),
        "kv_len": torch.tensor(100_000, dtype=torch.int32),
        "t": table,
    }
    assert bool(evaluate(variant.program.mask, env))


def test_captured_numbers_defaults_and_partials_are_constants():
    width = 3
    closures = Variant(logits_mask=lambda q_pos, kv_pos: kv_pos >= q_pos - width)
    defaults = Variant(logits_mask=lambda q_pos, kv_pos, width=width: kv_pos >= q_pos - width)

    def general(q_pos, kv_pos, size):
        return kv_pos >= q_pos - size

    partial = Variant(logits_mask=functools.partial(general, size=3))
    assert closures.program.mask is defaults.program.mask is partial.program.mask


def test_methods_and_callable_objects_are_functors():
    class Window:
        def __init__(self, left):
            self.left = left

        def __call__(self, q_pos, kv_pos):
            return kv_pos >= q_pos - self.left

        def mask(self, q_pos, kv_pos):
            return self(q_pos, kv_pos)

    by_call, by_method = Variant(logits_mask=Window(2)), Variant(logits_mask=Window(2).mask)
    assert by_call.program.mask is by_method.program.mask


@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
def test_nothing_of_the_callers_is_overwritten_and_calls_repeat(name):
    program = Variant(logits_transform=FLOAT_FUNCTIONS[name]).program
    if program.logits is None:
        return
    env = {"logits": LOGITS.clone(), "kv_pos": KV.clone(), "q_pos": Q.clone()}
    first = evaluate(program.logits, env).clone()
    second = evaluate(program.logits, env)
    torch.testing.assert_close(second, first, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(env["logits"], LOGITS)
    assert torch.equal(env["kv_pos"], KV)
    assert torch.equal(env["q_pos"], Q)


def test_a_value_read_twice_is_not_overwritten_between():
    def functor(logits, t):
        a = logits + 1
        b = torch.exp(a)
        c = b * a
        return c - b + a * t[0] + torch.tanh(t[0] * 1.0)

    table = torch.tensor([0.5])
    program = Variant(logits_transform=functor, params={"t": table}).program
    logits = torch.linspace(-1, 1, 5)
    got = evaluate(program.logits, {"logits": logits, "t": table})
    torch.testing.assert_close(got, functor(logits, table))
    assert table.tolist() == [0.5]


def test_output_and_sink_functors():
    gate, first = torch.tensor([0.5, 2.0]), torch.tensor([1.0, -1.0])
    variant = Variant(
        output_transform=lambda x, head, pos, batch, lse, *, gate: torch.where(
            lse > 0, x * gate[head], x + pos + batch
        ),
        sink=lambda qo_head, kv_head, batch, first: first[qo_head] + kv_head + batch,
        params={"gate": gate, "first": first},
    )
    x, head, lse = torch.ones(2, 3), torch.tensor([[0], [1]]), torch.tensor([[1.0], [-math.inf]])
    env = {"x": x, "head": head, "pos": torch.tensor(4), "batch": 2, "lse": lse, "gate": gate}
    assert evaluate(variant.program.output, env).tolist() == [[0.5] * 3, [7.0] * 3]
    env = {"qo_head": torch.arange(2), "kv_head": 0, "batch": 1, "first": first}
    assert evaluate(variant.program.sink, env).tolist() == [2.0, 0.0]


def test_expressions_read_like_python():
    variant = Variant(
        logits_transform=lambda logits, q_pos, kv_pos, qo_head, slopes: (
            (logits - 1) * slopes[qo_head] - (kv_pos - (q_pos - 2))
        ),
        logits_mask=lambda q_pos, kv_pos: ~((kv_pos <= q_pos) & (q_pos - kv_pos < 4)) | (kv_pos % 2 == -(kv_pos // 3)),
        params={"slopes": torch.ones(2)},
    )
    assert str(variant.program.logits) == "(logits - 1) * slopes[qo_head] - (kv_pos - (q_pos - 2))"
    assert str(variant.program.mask) == "~((kv_pos <= q_pos) & (q_pos - kv_pos < 4)) | (kv_pos % 2 == -(kv_pos // 3))"
    names = {"q_pos": Q, "kv_pos": KV}
    text = eval(str(variant.program.mask), {}, names)  # the text means the expression
    assert torch.equal(text, evaluate(variant.program.mask, names))


def test_large_shared_expressions_are_listed_not_repeated():
    def functor(logits):
        for _ in range(40):
            logits = logits * logits + 1
        return logits

    text = str(Variant(logits_transform=functor).program.logits)
    assert len(text.splitlines()) == 80
    assert text.splitlines()[:2] == ["%0 = logits * logits", "%1 = %0 + 1"]
