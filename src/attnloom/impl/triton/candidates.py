"""What a tuner may try: every tile that fits, beside the shipped classes that it does not replace."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from attnloom.impl.triton.configs import ClassConfig, TritonConfig
from attnloom.impl.triton.tables import Family, family_of
from attnloom.spec import AttentionSpec
from attnloom.target import Target

TILES_Q = (1, 16, 32, 64, 128)
TILES_KV = (32, 64, 128)
_WARPS = {1: (2, 4), 16: (2, 4), 32: (4,), 64: (4, 8), 128: (4, 8)}
_STAGES = (1, 2, 3, 5)
_FEW_ROWS = 32


def candidates(spec: AttentionSpec, default: TritonConfig, target: Target) -> Iterator[TritonConfig]:
    """The default with its first class (up to 32 rows) or its last (more) exchanged for each tile that fits."""
    family = family_of(target.arch)
    few, many = default.classes[0], default.classes[-1]
    for tile in tiles(spec, family, target.shared_memory):
        if tile.tile_q <= _FEW_ROWS and tile.tile_q < many.tile_q:
            yield TritonConfig((tile, many))
        elif tile.tile_q > few.tile_q:
            yield TritonConfig((few, tile))


def tiles(spec: AttentionSpec, family: Family, shared_memory: int) -> Iterator[ClassConfig]:
    """Every tile class that fits a CTA, with as many CTAs an SM as its shared memory holds, four at most."""
    for tile_q, tile_kv, stages in itertools.product(TILES_Q, TILES_KV, _STAGES):
        for num_warps in _WARPS[tile_q]:
            one = ClassConfig(tile_q, tile_kv, num_warps, stages)
            needed = one.shared_memory(spec, wgmma=family.wgmma)
            if needed <= shared_memory:
                ctas = min(4, family.per_sm // (needed + 1024)) or 1
                yield ClassConfig(tile_q, tile_kv, num_warps, stages, ctas)
