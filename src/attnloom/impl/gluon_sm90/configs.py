"""How the Hopper kernels compute a spec: their tile classes and what these take of an SM."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal, get_args

from attnloom.errors import InvalidArgument
from attnloom.impl.base import Config
from attnloom.impl.triton.configs import ClassConfig as MergeConfig
from attnloom.schedule.work import TileClass

Kind = Literal["decode", "prefill"]
TILES_Q = {"decode": (8, 16, 32, 64), "prefill": (128,)}
TILES_KV = {"decode": (64,), "prefill": (64, 128)}  # decode with 128 keys gave wrong results on an H200

SECTION_KEYS = 1 << 15  # k and v of that many, 16 MB at head dim 128, stay in the L2
_MOST_STAGES = 8
_MOST_CTAS = 4


@dataclass(frozen=True)
class ClassConfig:
    """One tile class: which kernel, its tile, its pipeline, CTAs that an SM holds.

    kind         "decode" (keys lie along the rows of the products) or "prefill" (packed rows of q do)
    tile_q       packed rows of a CTA: 8, 16, 32, 64 for decode, 128 for prefill
    tile_kv      keys of a step
    stages       steps of k and v in flight
    ctas_per_sm  CTAs that an SM holds of it; the plan has as many workers
    maxnreg      registers of a thread at launch; None: what Triton gives
    k_stages     of keys, where prefill has more or fewer of them in flight than of values; None: as many
    q_stages     items whose rows of q are held at once: with 2 a prefill item begins under the end of the one before
    """

    kind: Kind
    tile_q: int
    tile_kv: int
    stages: int
    ctas_per_sm: int = 1
    maxnreg: int | None = None
    q_stages: int = 1
    k_stages: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("kind", get_args(Kind)),
            ("tile_q", TILES_Q.get(self.kind, ())),
            ("tile_kv", TILES_KV.get(self.kind, ())),
            ("stages", tuple(range(1, _MOST_STAGES + 1))),
            ("q_stages", (1, 2) if self.kind == "prefill" else (1,)),
            ("k_stages", (None, *range(1, _MOST_STAGES + 1)) if self.kind == "prefill" else (None,)),
            ("ctas_per_sm", tuple(range(1, _MOST_CTAS + 1))),
        ):
            if getattr(self, name) not in allowed:
                raise InvalidArgument(
                    name=f"ClassConfig.{name}",
                    given=getattr(self, name),
                    supported=", ".join(map(str, allowed)),
                    fix="Take a row of tables.py as an example.",
                )

    def options(self) -> dict[str, Any]:
        """Keyword options of the launch: warps of the first partition, the register cap."""
        return {"num_warps": 4} | ({"maxnreg": self.maxnreg} if self.maxnreg else {})

    @property
    def key_stages(self) -> int:
        """Steps of k in flight."""
        return self.k_stages or self.stages

    def value_stages(self, *, owns: bool) -> int:
        """Steps of v in flight; without `GluonConfig.OWNS` a kernel needs the memory of what is more than of k."""
        return self.stages if owns else min(self.stages, self.key_stages)

    @property
    def words(self) -> str:
        """The class in a line of a table."""
        cap = "" if self.maxnreg is None else f" <= {self.maxnreg} registers"
        stages = f"{self.stages} stages" if self.k_stages is None else f"{self.stages} stages ({self.k_stages} of k)"
        return f"{self.kind} {self.tile_q} x {self.tile_kv}, {stages}, {self.ctas_per_sm} CTAs/SM{cap}"


@dataclass(frozen=True)
class GluonSm90Config(Config):
    """The classes of one spec, ascending in tile_q."""

    classes: tuple[ClassConfig, ...]

    def tile_classes(self, num_ctas: int) -> tuple[TileClass, ...]:
        """num_ctas counts SMs: each class has as many CTAs on each as an SM holds of it.

        A prefill item names its kv head, so that a number of heads that does not divide the SMs leaves none idle.
        """
        return tuple(
            TileClass(one.tile_q, one.tile_kv, num_ctas * one.ctas_per_sm)
            if one.kind == "decode"
            else TileClass(one.tile_q, one.tile_kv, num_ctas * one.ctas_per_sm, False, SECTION_KEYS, True)
            for one in self.classes
        )

    @functools.cached_property
    def merging(self) -> tuple[MergeConfig, ...]:
        """How Triton's merge kernel sees the classes."""
        return tuple(MergeConfig(one.tile_q, 64, 4, 1) for one in self.classes)
