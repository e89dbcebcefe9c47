"""Simplification: shorter, and never another value."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from attnloom.variant import Variant
from attnloom.variant.evaluate import Compiled
from attnloom.variant.expr import Dtype, symbol
from attnloom.variant.simplify import simplify
from attnloom.variant.symbolic import Sym
from attnloom.variant.trace import SYMBOLS

MASKS = {
    lambda q_pos, kv_pos: ~~(kv_pos <= q_pos): "kv_pos <= q_pos",
    lambda q_pos, kv_pos: ~(kv_pos > q_pos): "kv_pos <= q_pos",
    lambda q_pos, kv_pos: ~(kv_pos == q_pos): "kv_pos != q_pos",
    lambda q_pos, kv_pos: (kv_pos <= q_pos) & True: "kv_pos <= q_pos",
    lambda q_pos, kv_pos: False | (kv_pos <= q_pos): "kv_pos <= q_pos",
    lambda q_pos, kv_pos: (kv_pos <= q_pos) ^ True: "q_pos < kv_pos",
    lambda q_pos, kv_pos: (kv_pos <= q_pos) & (kv_pos <= q_pos): "kv_pos <= q_pos",
    lambda q_pos, kv_pos: (kv_pos <= q_pos) & False: "False",
    lambda q_pos, kv_pos: (kv_pos <= q_pos) & (kv_pos > q_pos): "False",
    lambda q_pos, kv_pos: torch.where(kv_pos > q_pos, False, True): "kv_pos <= q_pos",
    lambda q_pos, kv_pos: kv_pos + 0 <= 1 * q_pos - (5 - 2 - 3): "kv_pos <= q_pos",
    lambda kv_pos: kv_pos // 1 + kv_pos % 1 + kv_pos * 0 > 2**3: "8 < kv_pos",
    lambda kv_pos: kv_pos - kv_pos == kv_pos: "0 == kv_pos",
    lambda kv_pos: torch.neg(-kv_pos) > 4 + 2 * 3 // 4: "5 < kv_pos",
    lambda q_pos, kv_pos: kv_pos - torch.neg(q_pos) > 0: "0 < kv_pos + q_pos",
    lambda kv_pos: torch.lt(kv_pos, kv_pos): "False",
}
LOGITS = {
    lambda logits: logits + 0: None,
    lambda logits: logits * 1.0 / 1: None,
    lambda logits: torch.where(logits > 0, logits, logits): None,
    lambda logits: torch.where(~(logits > 0), 0.0, logits): "where(0 < logits, logits, 0.0)",
    lambda logits: logits * (2.0 * math.pi): f"logits * {2 * math.pi}",
    lambda logits: logits * torch.tanh(torch.zeros_like(logits)): "logits * 0.0",
    lambda logits: logits - logits: "logits - logits",
    lambda logits: logits * 0: "logits * 0",
    lambda logits, kv_pos: logits + kv_pos * 1.0: "logits + float(kv_pos)",
}


@pytest.mark.parametrize("functor", MASKS, ids=list(MASKS.values()))
def test_masks_become(functor):
    assert str(Variant(logits_mask=functor).program.mask) == MASKS[functor]


@pytest.mark.parametrize("functor", LOGITS, ids=map(str, LOGITS.values()))
def test_transforms_become(functor):
    program = Variant(logits_transform=functor).program
    assert (None if program.logits is None else str(program.logits)) == LOGITS[functor]


def test_an_always_true_mask_is_no_mask():
    assert Variant(logits_mask=lambda kv_pos: True).program.mask is None
    assert Variant(logits_mask=lambda q_pos: torch.le(q_pos, q_pos)).program.mask is None


def test_not_of_a_float_comparison_keeps_nan():
    program = Variant(
        logits_transform=lambda logits: torch.where(~(logits < 1.0) & ~(logits >= 1.0), 7.0, logits)
    ).program
    value = Compiled(program.logits, torch.float32)({"logits": torch.tensor([math.nan, 0.0, 1.0])})
    assert value.tolist() == [7.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "functor",
    [
        lambda logits: logits + (Sym(symbol("logits", Dtype.FLOAT)) * 0 + 1.0) / 0,
        lambda logits, kv_pos: logits * (1.0 / (kv_pos * 0.0)),
        lambda logits: torch.log(torch.zeros_like(logits)) + logits,
        lambda logits: torch.exp(torch.full_like(logits, 1e4)) - logits,
    ],
)
def test_what_python_cannot_fold_is_left_to_the_device(functor):
    program = Variant(logits_transform=functor).program
    value = Compiled(program.logits, torch.float32)({"logits": torch.tensor([1.0]), "kv_pos": torch.tensor([2])})
    assert not torch.isfinite(value).any()


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> Any:
    """A random functor over kv_pos, q_pos and logits, as a Python callable."""
    number = st.sampled_from([lambda e: e["kv_pos"], lambda e: e["q_pos"], lambda e: e["logits"]]) | st.sampled_from(
        [0, 1, 2, -1, 0.0, 1.0, 0.5, -2.0]
    ).map(lambda c: lambda e: c)
    truth = st.sampled_from([lambda e: e["kv_pos"] <= e["q_pos"], lambda e: e["logits"] > 0.0])

    def grow(kind: str, left: int) -> Any:
        if left == 0:
            return draw(number if kind == "number" else truth)
        if kind == "truth":
            choice = draw(st.integers(0, 4))
            if choice == 4:
                c, d = grow("number", left - 1), grow("number", left - 1)
                compare = draw(st.sampled_from(["__lt__", "__le__", "__eq__", "__ne__"]))
                return lambda e: getattr(_t(c(e)), compare)(_t(d(e)))
            a, b = grow("truth", left - 1), grow("truth", left - 1)
            return [lambda e: a(e) & b(e), lambda e: a(e) | b(e), lambda e: a(e) ^ b(e), lambda e: ~a(e)][choice]
        a, b = grow("number", left - 1), grow("number", left - 1)
        choice = draw(st.integers(0, 6))
        if choice == 3:
            c = grow("truth", left - 1)
            return lambda e: torch.where(c(e), _t(a(e)), _t(b(e)))
        return [
            lambda e: _t(a(e)) + b(e),
            lambda e: _t(a(e)) - b(e),
            lambda e: _t(a(e)) * b(e),
            None,
            lambda e: -_t(a(e)),
            lambda e: torch.minimum(_t(a(e)), _t(b(e))),
            lambda e: abs(_t(a(e))),
        ][choice]

    return grow("number", depth)


def _t(value: Any) -> Any:
    """Numbers become constants, so that every operation meets a symbol."""
    from attnloom.variant.symbolic import as_expr

    return Sym(as_expr(value))


@settings(max_examples=300, deadline=None)
@given(expressions())
def test_simplified_expressions_have_the_same_value(functor):
    known = SYMBOLS["logits_transform"]
    expr = functor({name: Sym(symbol(name, known[name])) for name in ("kv_pos", "q_pos", "logits")})
    expr = _t(expr)._expression()
    env = {
        "kv_pos": torch.arange(6, dtype=torch.int32),
        "q_pos": torch.tensor([[0], [3]], dtype=torch.int32),
        "logits": torch.tensor([[0.0, -1.5, math.inf, -math.inf, math.nan, 2.0]]),
    }
    note(f"{expr}   becomes   {simplify(expr)}")
    before = Compiled(expr, torch.float32)(env)
    after = Compiled(simplify(expr), torch.float32)(env)
    before, after = torch.broadcast_tensors(before, after)
    torch.testing.assert_close(after.double(), before.double(), rtol=1e-5, atol=1e-6, equal_nan=True)
