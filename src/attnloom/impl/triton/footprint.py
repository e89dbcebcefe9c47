"""Shared memory that Triton gives an attention kernel, computed from what the kernel allocates.

Never less than Triton 3.6's own number, and at most 4 KB more for the shipped tiles, 12 KB with fp8 caches
(tests/triton_compile; `make compile-all` prints both). A kernel holds q, copies of
k and v on their way (`depth`), page ids on theirs, and for a moment the weights of one tile or a reduction's scratch;
after the loop the accumulator changes its layout in the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_FLOAT = 4
_WARP_SCRATCH = 128  # bytes a warp, for reductions across warps
_CONVERSION_SCRATCH = 2048  # bytes a warp at most, where one row's keys and values are converted
_WGMMA_ALIGNMENT = 1024
_WGMMA_ROWS = 64
_WGMMA_WARPS = 4


def pieces(dim: int) -> tuple[int, int]:
    """Two power-of-two widths that cover a head dim, the second 0 or at least 16 (it may reach past the dim).

    >>> pieces(128), pieces(192), pieces(80), pieces(576)
    ((128, 0), (128, 64), (64, 16), (512, 64))
    """
    first = 1 << (dim.bit_length() - 1)
    rest = dim - first
    return first, (max(16, 1 << math.ceil(math.log2(rest))) if rest else 0)


@dataclass(frozen=True)
class Tiles:
    """What decides the footprint besides the GPU; widths are those of k and v rows.

    element, cached: bytes of a number of q, and of k and v, which are converted after their copy where they are fewer.
    """

    tile_q: int
    tile_kv: int
    num_warps: int
    stages: int
    head_dim_qk: int
    head_dim_vo: int
    element: int
    cached: int

    def bytes(self, *, wgmma: bool, paged: bool) -> int:
        """Bytes of shared memory of a CTA; wgmma: the GPU has Hopper's products (compute capability 9.0)."""
        if self.tile_q == 1:
            return self._one_row(paged)
        # products straight from shared memory, weights staying in registers
        direct = wgmma and self.element < _FLOAT and self.tile_q >= _WGMMA_ROWS and self.num_warps % _WGMMA_WARPS == 0
        k, v = self._tile(self.element)
        q = self.element * self.tile_q * sum(pieces(self.head_dim_qk))
        moment = max(0 if direct else self._weights(), _WARP_SCRATCH * self.num_warps)
        if self.stages == 1:
            loop = q + max(k, v + moment)
        else:
            pages = _FLOAT * self.tile_kv * depth(self.stages, paged=True) if paged and self.stages > 2 else 0
            if direct and pages:
                moment = max(moment, _WGMMA_ALIGNMENT)
            copies = depth(self.stages, paged=paged)
            if self.cached < self.element:  # products straight from shared memory need a converted tile there
                loop = q + copies * sum(self._tile(self.cached)) + pages + max(moment, direct * max(k, v))
            else:
                loop = q + (copies + direct) * (k + v) + pages + moment
        return max(loop, _FLOAT * self.tile_q * pieces(self.head_dim_vo)[0])

    def _tile(self, element: int) -> tuple[int, int]:
        """Bytes of a tile of k and of v."""
        k, v = (element * self.tile_kv * sum(pieces(dim)) for dim in (self.head_dim_qk, self.head_dim_vo))
        return k, v

    def _one_row(self, paged: bool) -> int:
        """Without products q stays in registers, and page ids do not shorten the pipeline."""
        ids = _FLOAT * self.tile_kv if paged else 0
        scratch = _FLOAT * self.num_warps * pieces(self.head_dim_vo)[0]
        if self.cached < self.element:  # converted numbers change hands
            scratch = max(scratch, _CONVERSION_SCRATCH * self.num_warps)
        return (self.stages - 1) * (sum(self._tile(self.cached)) + ids) + scratch

    def _weights(self) -> int:
        """The tile's weights, where the two products spread rows over warps differently and they pass through."""
        if self.element == _FLOAT:  # no tensor cores: always, rows one number apart
            return _FLOAT * self.tile_q * (self.tile_kv + 1)
        alike = self.tile_q >= max(self.tile_kv, pieces(self.head_dim_vo)[0])
        return 0 if alike else self.element * self.tile_q * self.tile_kv


def depth(stages: int, *, paged: bool) -> int:
    """Tiles of k and v in flight: a page id must arrive before its rows, so that two stages make one tile of depth.

    >>> [depth(stages, paged=True) for stages in (2, 3, 4, 5)], depth(3, paged=False)
    ([1, 1, 1, 2], 2)
    """
    return max(1, (stages - 1) // 2) if paged else stages - 1
