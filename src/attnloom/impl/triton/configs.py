"""Tiles, warps and stages per head dim; each row carries the measurement behind it, or says that there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attnloom.impl.base import Config
from attnloom.schedule.work import TileClass
from attnloom.spec import AttentionSpec


@dataclass(frozen=True)
class ClassConfig:
    """One tile class: tile sizes, warps, depth of the copy pipeline, CTAs that an SM holds, register cap."""

    tile_q: int
    tile_kv: int
    num_warps: int
    stages: int
    ctas_per_sm: int = 1
    maxnreg: int | None = None

    def options(self) -> dict[str, Any]:
        """Keyword options of the Triton launch."""
        return {"num_warps": self.num_warps} | ({"maxnreg": self.maxnreg} if self.maxnreg else {})

    def shared_memory(self, spec: AttentionSpec) -> int:
        """Bytes that the tiles take: q, and stages of k and v; what else Triton needs is a few hundred more."""
        element = torch.finfo(spec.dtype).bits // 8
        return element * (
            self.tile_q * spec.head_dim_qk + self.stages * self.tile_kv * (spec.head_dim_qk + spec.head_dim_vo)
        )


@dataclass(frozen=True)
class TritonConfig(Config):
    """The classes of one spec, ascending in tile_q."""

    classes: tuple[ClassConfig, ...]

    def tile_classes(self, num_ctas: int) -> tuple[TileClass, ...]:
        """num_ctas counts SMs: each class has as many CTAs on each as an SM holds of it."""
        return tuple(TileClass(one.tile_q, one.tile_kv, num_ctas * one.ctas_per_sm) for one in self.classes)


@dataclass(frozen=True)
class Row:
    """Classes for 16-bit types up to a head dim, and the measurement that justifies them (empty: none yet)."""

    head_dim: int
    classes: tuple[ClassConfig, ...]
    measured: str = ""


ROWS = (
    Row(64, (ClassConfig(16, 64, 2, 3, 4), ClassConfig(128, 64, 8, 3, 2, 128))),
    Row(
        128,
        (ClassConfig(16, 64, 2, 3, 4), ClassConfig(128, 64, 8, 2, 2, 128)),
        "H200, 2026-11-30, page 16, 32/8 heads: decode 64x4096 4.15 TB/s; causal prefill 4x4096 (prototype) "
        "411 TFLOP/s, (128, 128) with one CTA an SM 314, (64, 64) with two 324",
    ),
    Row(256, (ClassConfig(16, 64, 4, 2, 2), ClassConfig(128, 64, 8, 2, 1))),
    Row(576, (ClassConfig(16, 32, 4, 2, 1), ClassConfig(64, 32, 8, 2, 1))),
)
FP32_ROWS = (
    Row(128, (ClassConfig(16, 32, 4, 2, 2),)),
    Row(576, (ClassConfig(16, 16, 4, 1, 1),)),
)
INTERPRETED = TritonConfig((ClassConfig(16, 32, 1, 1), ClassConfig(32, 32, 1, 1)))


def config_of(spec: AttentionSpec) -> TritonConfig:
    """The row of a spec's wider head dim."""
    width = max(spec.head_dim_qk, spec.head_dim_vo)
    rows = FP32_ROWS if spec.dtype == torch.float32 else ROWS
    return TritonConfig(next(row.classes for row in rows if width <= row.head_dim))
