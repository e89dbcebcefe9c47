"""What a work item costs: one constant set per target, or per implementation on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from attnloom.errors import InvalidArgument


@dataclass(frozen=True)
class CostModel:
    """Time of one work item in microseconds: ``fixed + alpha * tile_q + beta * keys``.

    keys are those of the item's non-empty kv tiles, rounded up to TILE_KV; one kv head.

    fixed        starting an item and writing its result
    alpha        per packed row of the tile
    beta         per key
    merge_fixed  what any split costs: the merge phase exists
    merge_slot   reading one partial state while merging
    min_chunk    keys below which Algorithm 1 does not split
    measured     where the numbers come from; empty: not measured, estimated from the target's data sheet
    wider        (tile_q, model): classes of at least so many packed rows have constants of their own
    """

    fixed: float
    alpha: float
    beta: float
    merge_fixed: float = 0.0
    merge_slot: float = 0.0
    min_chunk: int = 128
    measured: str = ""
    wider: tuple[int, CostModel] | None = None

    def __post_init__(self) -> None:
        for field in fields(self)[:6]:
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0) or (field.name == "beta" and value == 0):
                raise InvalidArgument(
                    name=f"CostModel.{field.name}",
                    given=value,
                    supported="a finite number >= 0 (beta > 0)",
                    fix="Give microseconds per item, row or key.",
                )

    def item(self, tile_q: int, keys: int) -> float:
        """Microseconds of an item whose non-empty kv tiles hold ``keys`` (whole tiles)."""
        one = self.of(tile_q)
        return one.fixed + one.alpha * tile_q + one.beta * keys

    def of(self, tile_q: int) -> CostModel:
        """The constants of a tile class."""
        return self if self.wider is None or tile_q < self.wider[0] else self.wider[1]


COSTS: Mapping[str, CostModel] = MappingProxyType(
    {
        "cpu": CostModel(
            fixed=80.0,
            alpha=0.2,
            beta=0.15,
            merge_fixed=130.0,
            merge_slot=10.0,
            min_chunk=256,
            measured="AMD EPYC, one core, torch 2.13, head_dim 128, 4 query heads per kv head, fp32 and bf16, page 16: "
            "least thread time of decode runs over batch, kv_len and forced cuts; alpha from tiles of 128 rows",
        ),
        # Not measured: an SM's share of an H200's memory bandwidth is 33 kB/us, 512 bytes a key in bf16.
        "sm90": CostModel(fixed=1.5, alpha=0.005, beta=0.015, merge_fixed=3.0, merge_slot=0.1, min_chunk=256),
        # Not measured as a whole: decode reads 512 bytes a key through two CTAs an SM; 128 rows by 128 keys of
        # 128 dims are 2 us of products on an H200.
        "gluon_sm90 on sm90": CostModel(
            fixed=2.0,
            alpha=0.01,
            beta=0.031,
            merge_fixed=4.0,
            merge_slot=0.1,
            min_chunk=256,
            wider=(128, CostModel(fixed=1.5, alpha=0.005, beta=0.016, merge_fixed=6.0, merge_slot=0.4, min_chunk=256)),
        ),
        "gpu": CostModel(fixed=2.0, alpha=0.01, beta=0.03, merge_fixed=4.0, merge_slot=0.15, min_chunk=256),
    }
)


def cost_model(arch: str, implementation: str | None = None) -> CostModel:
    """The constants of an implementation on a target's arch ("cpu", "sm90", ...).

    One without constants of its own there has the arch's; a GPU without a row takes the row "gpu".
    """
    return COSTS.get(f"{implementation} on {arch}") or COSTS.get(arch, COSTS["gpu"])
