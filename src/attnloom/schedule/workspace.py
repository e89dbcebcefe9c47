"""How the workspace is laid out: fp32 partial states of split items, a fixed number per tile class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from attnloom.schedule.work import TileClass

_FLOAT_BYTES = 4
_COUNTER_BYTES = 4


@dataclass(frozen=True)
class Region:
    """Partial states of one tile class; offsets and sizes in bytes, dtype fp32.

    out  [num_slots, tile_q, head_dim_vo] at out_offset
    lse  [num_slots, tile_q] at lse_offset
    counters  int32 [num_ctas] at counters_offset, -1 for a class whose CTAs do not count
    """

    num_slots: int
    tile_q: int
    head_dim_vo: int
    out_offset: int
    lse_offset: int
    counters_offset: int

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
    ends = list(
        accumulate((_FLOAT_BYTES * slots(tile) * tile.tile_q * (head_dim_vo + 1) for tile in classes), initial=0)
    )
    counters = list(accumulate((_COUNTER_BYTES * tile.num_ctas * tile.counted for tile in classes), initial=ends[-1]))
    regions = tuple(
        Region(
            num_slots=slots(tile),
            tile_q=tile.tile_q,
            head_dim_vo=head_dim_vo,
            out_offset=at,
            lse_offset=at + _FLOAT_BYTES * slots(tile) * tile.tile_q * head_dim_vo,
            counters_offset=counter if tile.counted else -1,
        )
        for tile, at, counter in zip(classes, ends, counters, strict=False)
    )
    return Layout(regions, ends[-1], counters[-1])


def workspace_bytes(classes: Sequence[TileClass], head_dim_vo: int) -> int:
    """Bytes for these classes, whatever the batch: the sum of 2 * num_ctas * tile_q * (head_dim_vo + 1) fp32.

    A class that counts adds num_ctas int32.
    """
    return layout(classes, head_dim_vo).total
