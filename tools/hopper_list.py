"""What CI and `make compile-all` compile of the Hopper kernels: a list that crosses all that a kernel depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import attnloom as al
from attnloom.compile.request import Request
from attnloom.impl.base import LaunchTensors
from attnloom.impl.gluon_sm90.configs import ClassConfig, GluonSm90Config
from attnloom.impl.gluon_sm90.requests import attention_request
from attnloom.impl.gluon_sm90.tables import Row, Spills, row_of
from attnloom.impl.triton.warm import Shape, plan_of, tensors_of
from attnloom.spec import AttentionSpec
from attnloom.variant import Variant

SM90 = ("cuda", 90, 32)
NO_SPILLS = Spills(0)
DIMS = ((128, 128), (64, 64), (192, 128), (256, 256), (80, 80), (192, 192), (96, 96), (112, 112))
ROUNDS = 3
_KV_HEADS, _PAGES = 8, 4


def _tilted() -> Variant:
    return al.Variant(output_transform=lambda x, lse, head: x * (1 + 0 * lse) + head)


VARIANTS: dict[str, Callable[[], Variant]] = {
    "causal": al.variants.causal,
    "window, soft cap": lambda: al.variants.sliding_window(100) & al.variants.soft_cap(30.0),
    "full": lambda: al.variants.causal() | ~al.variants.causal(),
    "causal, alibi": lambda: al.variants.causal() & al.variants.alibi(),
    "causal, sinks": lambda: al.variants.causal() & al.variants.sinks(),
    "causal, sigmoid": lambda: al.variants.causal() & al.variants.sigmoid(),
    "custom mask, output": lambda: al.variants.custom_mask() & _tilted(),
}

# where k and v lie: page size (None: ragged), elements between rows that belong to nobody
CACHES: dict[str, tuple[int | None, int]] = {
    "page 16": (16, 0),
    "ragged": (None, 0),
    "page 1": (1, 0),
    "page 64": (64, 0),
    "page 24": (24, 0),
    "page 8": (8, 0),
    "page 256": (256, 0),
    "page 4, rows 8 bytes apart": (4, 4),
    "ragged, rows 2 bytes apart": (None, 1),
    "page 192": (192, 0),
    "page 16, rows 4 bytes apart": (16, 2),
}
GROUPS = (4, 1, 8, 5, 16, 2)
FLAGS = ("", "lse", "raw state", "positions", "fp16")


@dataclass(frozen=True)
class Case:
    """One kernel; spills: what its row declares of the tile."""

    dims: tuple[int, int]
    tile: ClassConfig
    variant: str = "causal"
    cache: str = "page 16"
    group: int = 4
    flag: str = ""
    spills: Spills = NO_SPILLS

    @property
    def words(self) -> str:
        """The case in a line of the table."""
        facts = ", ".join(filter(None, (self.variant, self.cache, f"group {self.group}", self.flag)))
        return f"{self.dims!s:<11}{self.tile.words}: {facts}"

    def request(self) -> Request:
        """What a launch would ask for."""
        page_size, gap = CACHES[self.cache]
        dtype = torch.float16 if self.flag == "fp16" else torch.bfloat16
        spec = AttentionSpec.create(
            num_qo_heads=_KV_HEADS * self.group,
            num_kv_heads=_KV_HEADS,
            head_dim=self.dims[0],
            head_dim_vo=self.dims[1],
            dtype=dtype,
            page_size=page_size,
        )
        k, v = (_cache(page_size or 1, dim, gap, dtype) for dim in self.dims)
        shape = Shape(k, v, paged=page_size is not None, with_lse=self.flag in ("lse", "raw state"))
        program = VARIANTS[self.variant]().program
        if self.flag in ("lse", "raw state") and not program.use_softmax:
            shape = dataclasses.replace(shape, with_lse=False)
        plan = plan_of(spec, GluonSm90Config((self.tile,)), shape)
        tensors = self._flagged(tensors_of(spec, program, plan, shape))
        return attention_request(plan, tensors, 0, (self.tile, SM90))

    def _flagged(self, t: LaunchTensors) -> LaunchTensors:
        if self.flag == "raw state":
            return dataclasses.replace(t, raw_state=True, out=t.out.float())
        if self.flag == "positions":
            numbers = torch.empty(16, dtype=torch.int32, device="meta")
            return dataclasses.replace(t, q_pos=numbers, kv_pos=numbers)
        return t


def _cache(page_size: int, dim: int, gap: int, dtype: torch.dtype) -> torch.Tensor:
    """A cache on the meta device with `gap` elements behind each token's rows."""
    token = _KV_HEADS * dim + gap
    shape, strides = (_PAGES, page_size, _KV_HEADS, dim), (page_size * token, token, dim, 1)
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def covering() -> Iterator[Case]:
    """Every shipped tile for every head dims, `ROUNDS` times with other facts each time."""
    number = 0
    for _ in range(ROUNDS):
        for dims in DIMS:
            row = _row(dims)
            for tile in row.classes:
                yield Case(
                    dims,
                    tile,
                    list(VARIANTS)[number % len(VARIANTS)],
                    list(CACHES)[number % len(CACHES)],
                    GROUPS[number % len(GROUPS)],
                    FLAGS[(number + number // len(row.classes)) % len(FLAGS)],
                    row.spills_of(tile.tile_q),
                )
                number += 1


def _row(dims: tuple[int, int]) -> Row:
    row = row_of(*dims)
    if row is None:
        raise LookupError(dims)
    return row
