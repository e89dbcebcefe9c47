"""Variants twice over: as the engine gets them, and as plain functions for the oracle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import oracle
import torch
from oracle import Functors

import attnloom as al
from attnloom.testing.inputs import Sequences


@dataclasses.dataclass(frozen=True)
class Pair:
    """variant for the engine, functors for the oracle, operands that the engine gets at plan or run."""

    variant: al.Variant | None
    functors: Functors
    plan_params: Mapping[str, Any] | None = None
    run_params: Mapping[str, Any] | None = None


def slopes(count: int) -> torch.Tensor:
    return torch.linspace(0.02, 0.6, count)


def sink_values(count: int) -> torch.Tensor:
    return torch.tensor([-20.0, 0.0, 2.0, 30.0]).repeat(-(-count // 4))[:count]


def random_masks(s: Sequences, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(qo, kv, generator=generator) < 0.4 for qo, kv in zip(s.qo_len, s.kv_len, strict=True)]


def flat(masks: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([m.reshape(-1) for m in masks]) if masks else torch.zeros(0, dtype=torch.bool)


def full(s: Sequences, device: str) -> Pair:
    return Pair(None, Functors())


def causal(s: Sequences, device: str) -> Pair:
    return Pair(al.variants.causal(), oracle.causal())


def window(s: Sequences, device: str) -> Pair:
    return Pair(al.variants.causal() & al.variants.sliding_window(13), oracle.causal() & oracle.sliding_window(13))


def cap_alibi(s: Sequences, device: str) -> Pair:
    values = slopes(s.heads.num_qo)
    return Pair(
        al.variants.causal() & al.variants.soft_cap(2.0) & al.variants.alibi(values.to(device)),
        oracle.causal() & oracle.soft_cap(2.0) & oracle.alibi(values),
    )


def sinks(s: Sequences, device: str) -> Pair:
    values = sink_values(s.heads.num_qo)
    return Pair(al.variants.causal() & al.variants.sinks(values.to(device)), oracle.causal() & oracle.sinks(values))


def sigmoid(s: Sequences, device: str) -> Pair:
    return Pair(al.variants.causal() & al.variants.sigmoid(-1.5), oracle.causal() & oracle.sigmoid(-1.5))


def custom_mask(s: Sequences, device: str) -> Pair:
    masks = random_masks(s)
    return Pair(al.variants.custom_mask(flat(masks).to(device)), oracle.custom_mask(masks))


def document(s: Sequences, device: str) -> Pair:
    generator = torch.Generator().manual_seed(5)
    q_ids, kv_ids = (torch.randint(0, 3, (sum(n),), generator=generator).int() for n in (s.qo_len, s.kv_len))
    return Pair(
        al.variants.document_mask(q_ids.to(device), kv_ids.to(device)) & al.variants.causal(),
        oracle.document_mask(q_ids, kv_ids, s.qo_len, s.kv_len) & oracle.causal(),
    )


def prefix_lm(s: Sequences, device: str) -> Pair:
    prefix = torch.tensor([(3 * i) % 11 for i in range(len(s.qo_len))], dtype=torch.int32)
    return Pair(al.variants.prefix_lm(prefix.to(device)), oracle.prefix_lm(prefix))


def user(s: Sequences, device: str) -> Pair:
    """Two tensors and a scalar, every kind of id, names in an order of the user's own."""
    generator = torch.Generator().manual_seed(9)
    params = {
        "gain": 0.75,
        "bias": torch.randn(s.heads.num_qo, generator=generator),
        "far": torch.randint(0, 40, (max(len(s.qo_len), 1),), generator=generator).int(),
    }

    def transform(bias, kv_head, logits, *, qo_head, gain, kv_pos, q_pos):
        return logits * gain + bias[qo_head] - 0.01 * kv_head * (q_pos - kv_pos)

    def mask(kv_len, far, kv_pos, *, batch, q_idx, qo_len, q_pos):
        near = (kv_pos <= q_pos) & (kv_pos % 3 != 1)
        return near | (kv_pos * 2 + far[batch] < kv_len - qo_len + q_idx)

    def output(x, pos, head, bias):
        return x * torch.where(pos % 2 == 0, 1.5, -1.0) * (head + 1) + x * bias[head]

    on_device = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in params.items()}
    return Pair(
        al.Variant(logits_transform=transform, logits_mask=mask, output_transform=output, params=on_device),
        Functors(logits=(transform,), mask=mask, output=(output,), params=params),
    )


VARIANTS: dict[str, Callable[[Sequences, str], Pair]] = {
    f.__name__: f for f in (full, causal, window, cap_alibi, sinks, sigmoid, custom_mask, document, prefix_lm, user)
}
