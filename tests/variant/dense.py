"""Masks by definition: the user's own function on dense position tensors, and bands counted pair by pair."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from attnloom.variant import Variant
from attnloom.variant.bounds import Bands, compile_bounds

Functor = Callable[..., Any]


def positions(qo_len: int, kv_len: int, *, batch: int = 0, q_pos: torch.Tensor | None = None) -> dict[str, Any]:
    """What a mask may ask for, as tensors [qo_len, kv_len] (lengths and batch as numbers)."""
    q_idx = torch.arange(qo_len)[:, None].expand(qo_len, kv_len)
    kv_pos = torch.arange(kv_len)[None, :].expand(qo_len, kv_len)
    q = q_idx + kv_len - qo_len if q_pos is None else q_pos[:, None].expand(qo_len, kv_len)
    return {"q_idx": q_idx, "kv_pos": kv_pos, "q_pos": q, "qo_len": qo_len, "kv_len": kv_len, "batch": batch}


def call(functor: Functor, env: Mapping[str, Any]) -> torch.Tensor:
    """The functor on dense tensors, broadcast to all pairs."""
    value = functor(**{name: env[name] for name in inspect.signature(functor).parameters})
    return torch.as_tensor(value).expand(env["kv_pos"].shape)


def in_bands(bands: np.ndarray, env: Mapping[str, Any]) -> torch.Tensor:
    """Which pairs lie in the union of bands [n, 6]."""
    kv, q = env["kv_pos"], env["q_pos"]
    found = torch.zeros(kv.shape, dtype=torch.bool)
    for kv_lo, kv_hi, q_lo, q_hi, d_lo, d_hi in bands.tolist():
        d = kv - q
        found |= (kv_lo <= kv) & (kv <= kv_hi) & (q_lo <= q) & (q <= q_hi) & (d_lo <= d) & (d <= d_hi)
    return found


def host(value: object) -> object:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def bands_of(
    variant: Variant, lengths: list[tuple[int, int]], params: Mapping[str, Any] | None = None, default: bool = True
) -> Bands:
    """Bands for (qo_len, kv_len) pairs; params default to the variant's own values."""
    values = {name: host(one.default) for name, one in variant.params.items()} if params is None else params
    qo, kv = (np.array(column, dtype=np.int64) for column in zip(*lengths, strict=True))
    return compile_bounds(variant.program).bands(qo, kv, values, default)


def row(table: np.ndarray, request: int) -> np.ndarray:
    """The bands of one request, whether all share a row or not."""
    return table[0 if table.shape[0] == 1 else request]


def assert_exact(variant: Variant, functor: Functor, lengths: list[tuple[int, int]], params: Mapping[str, Any]) -> None:
    """Bands hold exactly the visible pairs, and exactly the masked ones, of the function itself."""
    bands = bands_of(variant, lengths, {name: host(value) for name, value in params.items()})
    for request, (qo_len, kv_len) in enumerate(lengths):
        env = positions(qo_len, kv_len, batch=request)
        seen = call(functor, {**env, **params})
        assert torch.equal(in_bands(row(bands.may, request), env), seen)
        assert torch.equal(in_bands(row(bands.not_must, request), env), ~seen)
