"""Tiles, warps and stages, and the measurements behind each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnloom.impl.base import Config
from attnloom.schedule.work import TileClass


@dataclass(frozen=True)
class ClassConfig:
    """One tile class: tile sizes, launch options, and how many CTAs of it an SM holds."""

    tile_q: int
    tile_kv: int
    num_warps: int
    stages: int
    ctas_per_sm: int = 1
    maxnreg: int | None = None

    def options(self) -> dict[str, Any]:
        """Keyword options of the Triton launch."""
        return {"num_warps": self.num_warps} | ({"maxnreg": self.maxnreg} if self.maxnreg else {})


@dataclass(frozen=True)
class TritonConfig(Config):
    """The classes of one implementation object, ascending in tile_q."""

    classes: tuple[ClassConfig, ...]

    def tile_classes(self, num_ctas: int) -> tuple[TileClass, ...]:
        """num_ctas counts SMs' worth of work: each class multiplies it by the CTAs that an SM holds."""
        return tuple(TileClass(one.tile_q, one.tile_kv, num_ctas * one.ctas_per_sm) for one in self.classes)
