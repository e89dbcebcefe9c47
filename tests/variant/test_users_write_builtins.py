"""No built-in is privileged: each, written again by a user, is the same variant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from dense import host

from attnloom.variant import Variant, fast_tanh, library, param
from attnloom.variant.bounds import compile_bounds
from attnloom.variant.evaluate import evaluate

QO, KV = np.array([3, 7, 1, 40]), np.array([5, 9, 1, 54])
SLOPES = torch.tensor([0.5, 0.25, 0.75, 0.1])
PREFIX = torch.tensor([0, 4, 9, 20], dtype=torch.int32)
GENERATOR = torch.Generator().manual_seed(1)
FLAT = torch.rand(int((QO * KV).sum()), generator=GENERATOR) < 0.5
BITS = torch.randint(0, 256, (int(((QO * KV + 7) // 8).sum()),), generator=GENERATOR).to(torch.uint8)
TREE = torch.rand(int((QO * QO).sum()), generator=GENERATOR) < 0.5
TREE_BITS = torch.randint(0, 256, (int(((QO * QO + 7) // 8).sum()),), generator=GENERATOR).to(torch.uint8)
Q_IDS, KV_IDS = (torch.randint(0, 3, (int(n.sum()),), generator=GENERATOR).int() for n in (QO, KV))


@dataclass(frozen=True)
class Twin:
    """The built-in, what a user writes, and whether the text is so alike that the identity must be equal."""

    builtin: Variant
    functors: dict[str, Callable[..., Any]]
    params: dict[str, Any] = field(default_factory=dict)
    use_softmax: bool = True
    same_text: bool = True

    def users(self) -> Variant:
        return Variant(**self.functors, params=self.params, use_softmax=self.use_softmax)


def exclusive(counts):
    return np.cumsum(counts) - counts


def mask_start(qo_len, kv_len):
    return exclusive(qo_len * kv_len)


def bits_start(qo_len, kv_len):
    return exclusive((qo_len * kv_len + 7) // 8)


def custom(*, batch, mask_start, q_idx, kv_len, kv_pos, mask):
    return mask[mask_start[batch] + q_idx.long() * kv_len + kv_pos]


def custom_other_text(*, batch, mask_start, q_idx, kv_len, kv_pos, mask):
    return mask[kv_pos + (q_idx * kv_len + mask_start[batch])] == True  # noqa: E712


def packed(*, batch, bits_start, q_idx, kv_len, kv_pos, bits):
    place = q_idx.to(torch.int64) * kv_len + kv_pos
    return (bits[bits_start[batch] + place // 8] >> (place % 8)) % 2 == 1


def tree(*, batch, tree_start, q_idx, qo_len, kv_len, kv_pos, tree):
    column = torch.clamp(kv_pos - (kv_len - qo_len), min=0)
    return (kv_pos < kv_len - qo_len) | tree[tree_start[batch] + q_idx * qo_len + column]


def packed_tree(*, batch, tree_bits_start, q_idx, qo_len, kv_len, kv_pos, tree_bits):
    column = kv_pos + qo_len - kv_len
    place = q_idx.long() * qo_len + torch.where(column < 0, 0, column)
    byte = tree_bits[tree_bits_start[batch] + place // 8]
    return torch.where(column < 0, True, torch.bitwise_and(byte, 1 << (place % 8).int()) != 0)


def documents(*, batch, q_start, q_idx, kv_start, kv_pos, q_ids, kv_ids):
    return q_ids[q_start[batch] + q_idx] == kv_ids[kv_start[batch] + kv_pos]


TWINS = {
    "full": Twin(library.full(), {"logits_mask": lambda kv_pos: True}),
    "causal": Twin(library.causal(), {"logits_mask": lambda q_pos, kv_pos: kv_pos <= q_pos}),
    "causal, not": Twin(library.causal(), {"logits_mask": lambda q_pos, kv_pos: ~(q_pos < kv_pos)}),
    "causal, difference": Twin(
        library.causal(), {"logits_mask": lambda q_pos, kv_pos: q_pos - kv_pos >= 0}, same_text=False
    ),
    "window": Twin(library.sliding_window(4), {"logits_mask": lambda q_pos, kv_pos: kv_pos >= q_pos - 4}),
    "causal window": Twin(
        library.causal() & library.sliding_window(4),
        {"logits_mask": lambda q_pos, kv_pos: (q_pos - kv_pos >= 0) & (q_pos - kv_pos < 5)},
        same_text=False,
    ),
    "soft cap": Twin(library.soft_cap(3.0), {"logits_transform": lambda logits: 3.0 * torch.tanh(logits / 3.0)}),
    "fast soft cap": Twin(
        library.soft_cap(3.0, fast_math=True), {"logits_transform": lambda logits: 3.0 * fast_tanh(logits / 3.0)}
    ),
    "alibi": Twin(
        library.alibi(SLOPES),
        {
            "logits_transform": lambda qo_head, slopes, kv_pos, q_pos, logits: (
                logits + slopes[qo_head] * (kv_pos - q_pos)
            )
        },
        {"slopes": SLOPES},
    ),
    "sinks": Twin(library.sinks(SLOPES), {"sink": lambda sinks, qo_head: sinks[qo_head]}, {"sinks": SLOPES}),
    "sigmoid": Twin(
        library.sigmoid(0.5),
        {"logits_transform": lambda bias, logits: torch.sigmoid(logits + bias)},
        {"bias": 0.5},
        use_softmax=False,
    ),
    "prefix_lm": Twin(
        library.prefix_lm(5),
        {"logits_mask": lambda kv_pos, q_pos, prefix_len: (kv_pos <= q_pos) | (kv_pos < prefix_len)},
        {"prefix_len": 5},
    ),
    "prefix_lm of a batch": Twin(
        library.prefix_lm(PREFIX),
        {"logits_mask": lambda kv_pos, q_pos, prefix_len, batch: (q_pos >= kv_pos) | (prefix_len[batch] > kv_pos)},
        {"prefix_len": PREFIX},
    ),
    "custom_mask": Twin(
        library.custom_mask(FLAT),
        {"logits_mask": custom},
        {"mask": FLAT, "mask_start": param(torch.int64, from_lengths=mask_start)},
    ),
    "custom_mask, other text": Twin(
        library.custom_mask(FLAT),
        {"logits_mask": custom_other_text},
        {"mask": FLAT, "mask_start": param(torch.int64, from_lengths=mask_start)},
        same_text=False,
    ),
    "packed_mask": Twin(
        library.packed_mask(BITS),
        {"logits_mask": packed},
        {"bits": BITS, "bits_start": param(torch.int64, from_lengths=bits_start)},
        same_text=False,
    ),
    "tree_mask": Twin(
        library.tree_mask(TREE),
        {"logits_mask": tree},
        {"tree": TREE, "tree_start": param(torch.int64, from_lengths=lambda qo, kv: exclusive(qo * qo))},
    ),
    "packed_tree_mask": Twin(
        library.packed_tree_mask(TREE_BITS),
        {"logits_mask": packed_tree},
        {
            "tree_bits": TREE_BITS,
            "tree_bits_start": param(torch.int64, from_lengths=lambda qo, kv: exclusive((qo * qo + 7) // 8)),
        },
        same_text=False,
    ),
    "document_mask": Twin(
        library.document_mask(Q_IDS, KV_IDS),
        {"logits_mask": documents},
        {
            "q_ids": Q_IDS,
            "kv_ids": KV_IDS,
            "q_start": param(torch.int64, from_lengths=lambda qo, kv: exclusive(qo)),
            "kv_start": param(torch.int64, from_lengths=lambda qo, kv: exclusive(kv)),
        },
    ),
}


def operands(variant):
    values = {}
    for name, one in variant.params.items():
        values[name] = one.default if one.from_lengths is None else torch.from_numpy(one.from_lengths(QO, KV))
    return values


def test_every_builtin_has_a_twin():
    later = {"rope", "streaming_llm", "alibi_slopes"}
    written = {name.split(",")[0].replace("fast ", "").replace(" ", "_") for name in TWINS} | {"sliding_window"}
    assert set(library.__all__) - later <= written


@pytest.mark.parametrize("name", TWINS)
def test_the_same_bands(name):
    twin = TWINS[name]
    tables = []
    for variant in (twin.builtin, twin.users()):
        bounds = compile_bounds(variant.program)
        values = {key: host(value) for key, value in operands(variant).items()}
        tables.append((bounds.structural_params, bounds.bands(QO, KV, values, True)))
    (first_params, first), (second_params, second) = tables
    assert first_params == second_params
    assert np.array_equal(first.may, second.may)
    assert np.array_equal(first.not_must, second.not_must)


@pytest.mark.parametrize("name", TWINS)
def test_the_same_values(name):
    twin = TWINS[name]
    for request, (qo_len, kv_len) in enumerate(zip(QO.tolist(), KV.tolist(), strict=True)):
        env = {
            "q_idx": torch.arange(qo_len, dtype=torch.int32)[:, None],
            "q_pos": torch.arange(qo_len, dtype=torch.int32)[:, None] + kv_len - qo_len,
            "kv_pos": torch.arange(kv_len, dtype=torch.int32),
            "qo_head": torch.arange(4)[:, None, None],
            "logits": torch.randn(4, qo_len, kv_len, generator=torch.Generator().manual_seed(request)),
            "batch": request,
            "qo_len": qo_len,
            "kv_len": kv_len,
        }
        builtin, users = twin.builtin.program.expressions(), twin.users().program.expressions()
        for slot, expr in builtin.items():
            if expr is None:
                assert users[slot] is None
                continue
            first = evaluate(expr, {**env, **operands(twin.builtin)})
            second = evaluate(users[slot], {**env, **operands(twin.users())})
            assert first.dtype == second.dtype
            assert torch.equal(*torch.broadcast_tensors(first, second))


@pytest.mark.parametrize("name", TWINS)
def test_the_same_identity_where_the_text_is_the_same(name):
    twin = TWINS[name]
    equal = twin.builtin.program.identity == twin.users().program.identity
    assert equal == twin.same_text
