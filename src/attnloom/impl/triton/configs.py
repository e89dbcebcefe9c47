"""How the triton implementation computes a spec: its tile classes and what they take of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnloom.impl.base import Config
from attnloom.impl.triton.footprint import Tiles
from attnloom.schedule.work import TileClass
from attnloom.spec import AttentionSpec


@dataclass(frozen=True)
class ClassConfig:
    """One tile class: tile sizes, warps, depth of the copy pipeline, CTAs that an SM holds, register cap.

    tile_q 1 is one packed row without tensor cores; otherwise tiles are powers of two of at least 16. Page ids travel
    the pipeline before the rows that they lead to, so that stages 3 and 4 are one tile of depth on paged KV, 5 two.
    one_loop: full and masked tiles share a loop where the mask allows it, with a branch in it: copies never pause, but
    before Hopper the branch makes weights pass through shared memory.
    """

    tile_q: int
    tile_kv: int
    num_warps: int
    stages: int
    ctas_per_sm: int = 1
    maxnreg: int | None = None
    one_loop: bool = False

    def options(self) -> dict[str, Any]:
        """Keyword options of the Triton launch."""
        return {"num_warps": self.num_warps} | ({"maxnreg": self.maxnreg} if self.maxnreg else {})

    def shared_memory(self, spec: AttentionSpec, *, wgmma: bool, paged: bool | None = None) -> int:
        """Bytes of shared memory of a CTA, never less than Triton takes; paged None: the larger of paged and ragged.

        wgmma: the family's products, see `tables.Family`.
        """
        tiles = Tiles(
            self.tile_q,
            self.tile_kv,
            self.num_warps,
            self.stages,
            spec.head_dim_qk,
            spec.head_dim_vo,
            spec.dtype.itemsize,
            spec.kv_dtype.itemsize,
        )
        return max(tiles.bytes(wgmma=wgmma, paged=one) for one in ((True, False) if paged is None else (paged,)))


@dataclass(frozen=True)
class TritonConfig(Config):
    """The classes of one spec, ascending in tile_q."""

    classes: tuple[ClassConfig, ...]

    def tile_classes(self, num_ctas: int) -> tuple[TileClass, ...]:
        """num_ctas counts SMs: each class has as many CTAs on each as an SM holds of it."""
        return tuple(TileClass(one.tile_q, one.tile_kv, num_ctas * one.ctas_per_sm) for one in self.classes)

    def shared_memory(self, spec: AttentionSpec, *, wgmma: bool) -> int:
        """Bytes of the class that takes most."""
        return max(one.shared_memory(spec, wgmma=wgmma) for one in self.classes)


INTERPRETED = TritonConfig((ClassConfig(16, 32, 1, 1), ClassConfig(32, 32, 1, 1, one_loop=True)))
