"""Bands of random masks against every pair, counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from dense import bands_of, call, in_bands, positions, row
from hypothesis import given, settings
from hypothesis import strategies as st

from attnloom.variant import Variant

Env = dict[str, Any]
Node = Callable[[Env], Any]

CONSTANTS = st.integers(-8, 14)
COMPARE: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
    lambda a, b: a == b,
    lambda a, b: a != b,
]


def lines(extra: bool) -> st.SearchStrategy[Node]:
    """Integer expressions that vary along one line of positions."""
    simple: list[Node] = [
        lambda e: e["kv_pos"],
        lambda e: e["q_pos"],
        lambda e: e["kv_pos"] - e["q_pos"],
        lambda e: e["q_pos"] - e["kv_pos"],
        lambda e: 2 * e["kv_pos"],
        lambda e: -3 * (e["kv_pos"] - e["q_pos"]),
        lambda e: abs(e["kv_pos"] - e["q_pos"]),
        lambda e: torch.clamp(e["kv_pos"], 2, 9),
        lambda e: torch.where(e["kv_pos"] < 5, e["q_pos"], e["kv_pos"] - e["q_pos"]),
        lambda e: (e["kv_pos"] - e["q_pos"]).float() * 0.5,
    ]
    if extra:
        simple.append(lambda e: e["q_idx"])
        simple.append(lambda e: e["kv_pos"] - e["q_idx"])
    return st.sampled_from(simple)


QUOTIENTS = st.sampled_from(
    [lambda e: e["kv_pos"] // 3, lambda e: 1 - (e["q_pos"] // 4), lambda e: 2 * (e["kv_pos"] // 2)]
)
WHOLE = st.one_of(
    CONSTANTS.map(lambda c: lambda e: c),
    st.sampled_from(["w", "qo_len", "kv_len"]).map(lambda name: lambda e: e[name]),
    CONSTANTS.map(lambda c: lambda e: e["ends"][e["batch"]] + c),
    CONSTANTS.map(lambda c: lambda e: e["kv_len"] // 2 - e["qo_len"] + c),
)
FRACTIONS = st.sampled_from([-0.5, 2.5, 3.0]).map(lambda c: lambda e: c) | st.just(lambda e: e["f"])
OPAQUE: list[Node] = [
    lambda e: (e["kv_pos"] + e["q_pos"]) % 3 == 0,
    lambda e: e["table"][e["kv_pos"]],
    lambda e: e["kv_pos"] // 2 <= e["q_pos"] // 2,
    lambda e: e["kv_pos"] * e["q_pos"] < 30,
    lambda e: torch.tanh(e["kv_pos"] * 0.1) < 0.5,
]


def masks(opaque: bool, q_idx: bool = True) -> st.SearchStrategy[Node]:
    def comparison(choice: tuple[Any, Node, Node]) -> Node:
        compare, a, b = choice
        return lambda e: compare(a(e), b(e))

    compare = st.sampled_from(COMPARE)
    leaf = st.tuples(compare, lines(q_idx), WHOLE | FRACTIONS) | st.tuples(compare, QUOTIENTS, WHOLE)
    leaf = leaf.map(comparison)
    if opaque:
        leaf = st.one_of(leaf, st.sampled_from(OPAQUE))

    def grow(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        def pair(choice: tuple[int, Node, Node]) -> Node:
            kind, a, b = choice
            return [lambda e: a(e) & b(e), lambda e: a(e) | b(e), lambda e: a(e) ^ b(e), lambda e: ~a(e)][kind]

        return st.tuples(st.integers(0, 3), inner, inner).map(pair)

    return st.recursive(leaf, grow, max_leaves=4)


def functor_of(node: Node) -> Callable[..., Any]:
    def functor(*, q_pos, kv_pos, q_idx, qo_len, kv_len, batch, w, f, ends, table):
        return node(locals())

    return functor


BATCHES = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 12), st.integers(-3, 15)), min_size=1, max_size=5)
PARAMS = st.fixed_dictionaries({"w": st.integers(-3, 9), "f": st.sampled_from([-2.5, 0.0, 1.0, 4.5, float("inf")])})


def operands(batch: list[tuple[int, int, int]], scalars: dict[str, Any]) -> Env:
    ends = torch.tensor([end for _, _, end in batch], dtype=torch.int32)
    return {**scalars, "ends": ends, "table": torch.arange(12) % 5 > 1}


def compared(node: Node, batch: list[tuple[int, int, int]], scalars: dict[str, Any]):
    """Per request: pairs seen by the function itself, pairs in may, pairs in not_must."""
    values = operands(batch, scalars)
    functor = functor_of(node)
    bands = bands_of(Variant(logits_mask=functor, params=values), [(qo, kv) for qo, kv, _ in batch])
    assert bands.may.shape[0] in (1, len(batch))
    for request, (qo_len, kv_len, _) in enumerate(batch):
        env = positions(qo_len, kv_len, batch=request)
        seen = call(functor, {**env, **values})
        yield seen, in_bands(row(bands.may, request), env), in_bands(row(bands.not_must, request), env)


@settings(max_examples=300, deadline=None)
@given(masks(opaque=False), BATCHES, PARAMS)
def test_understood_masks_are_exact(node, batch, scalars):
    for seen, may, not_must in compared(node, batch, scalars):
        assert torch.equal(may, seen)
        assert torch.equal(not_must, ~seen)


@settings(max_examples=200, deadline=None)
@given(masks(opaque=True), BATCHES, PARAMS)
def test_any_mask_is_bounded(node, batch, scalars):
    for seen, may, not_must in compared(node, batch, scalars):
        assert not (seen & ~may).any()
        assert not (~seen & ~not_must).any()


@settings(max_examples=100, deadline=None)
@given(masks(opaque=True), st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 10), PARAMS)
def test_given_positions_are_bounded(node, q_pos, kv_len, scalars):
    values = operands([(len(q_pos), kv_len, 4)], scalars)
    functor = functor_of(node)
    env = positions(len(q_pos), kv_len, q_pos=torch.tensor(q_pos))
    bands = bands_of(Variant(logits_mask=functor, params=values), [(len(q_pos), kv_len)], default=False)
    seen = call(functor, {**env, **values})
    assert not (seen & ~in_bands(bands.may[0], env)).any()
    assert not (~seen & ~in_bands(bands.not_must[0], env)).any()


@settings(max_examples=100, deadline=None)
@given(masks(opaque=False), BATCHES, PARAMS, st.sets(st.sampled_from(["w", "f", "ends"]), min_size=1))
def test_missing_values_are_bounded(node, batch, scalars, missing):
    values = operands(batch, scalars)
    functor = functor_of(node)
    known = {name: np.asarray(value) for name, value in values.items() if name not in missing}
    bands = bands_of(Variant(logits_mask=functor, params=values), [(qo, kv) for qo, kv, _ in batch], known)
    for request, (qo_len, kv_len, _) in enumerate(batch):
        env = positions(qo_len, kv_len, batch=request)
        seen = call(functor, {**env, **values})
        assert not (seen & ~in_bands(row(bands.may, request), env)).any()
        assert not (~seen & ~in_bands(row(bands.not_must, request), env)).any()
