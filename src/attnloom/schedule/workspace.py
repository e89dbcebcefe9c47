"""How the workspace is laid out: fp32 partial states of split items, a fixed number per tile class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from attnloom.schedule.work import TileClass

_FLOAT_BYTES = 4
_COUNTER_BYTES = 0  # nothing counts yet: a merge folded into the attention launch will, one int32 per merged tile


@dataclass(frozen=True)
class Region:
    """Partial states of one tile class; offsets and sizes in bytes, dtype fp32.

    out  [num_slots, tile_q, head_dim_vo] at out_offset
    lse  [num_slots, tile_q] at lse_offset
    """

    num_slots: int
    tile_q: int
    head_dim_vo: int
    out_offset: int
    lse_offset: int

    @property
    def end(self) -> int:
        """Offset of the first byte behind the region."""
        return self.lse_offset + self.num_slots * self.tile_q * _FLOAT_BYTES


@dataclass(frozen=True)
class Layout:
    """One region per tile class, in the order of the classes, then the counters; total is `workspace_bytes`."""

    regions: tuple[Region, ...]
    counters_offset: int
    total: int


def slots(tile: TileClass) -> int:
    """Partial states that a class's launch can have: a CTA holds at most two parts of cut tiles."""
    return 2 * tile.num_ctas


def layout(classes: Sequence[TileClass], head_dim_vo: int) -> Layout:
    """Where each class's partial states lie in the workspace."""
    return _layout(tuple(classes), head_dim_vo)


@lru_cache(maxsize=256)
def _layout(classes: tuple[TileClass, ...], head_dim_vo: int) -> Layout:
    regions = []
    at = 0
    for tile in classes:
        num_slots = slots(tile)
        lse_offset = at + num_slots * tile.tile_q * head_dim_vo * _FLOAT_BYTES
        regions.append(Region(num_slots, tile.tile_q, head_dim_vo, at, lse_offset))
        at = regions[-1].end
    return Layout(tuple(regions), at, at + _COUNTER_BYTES)


def workspace_bytes(classes: Sequence[TileClass], head_dim_vo: int) -> int:
    """Bytes for these classes, whatever the batch: the sum of 2 * num_ctas * tile_q * (head_dim_vo + 1) fp32."""
    return layout(classes, head_dim_vo).total
