"""The tiles that ship: per head dims, with the measurement behind each row or a word that none is."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from attnloom.impl.gluon_sm90.configs import ClassConfig, GluonSm90Config

HEAD_DIMS = (64, 80, 96, 112, 128, 192, 256)


@dataclass(frozen=True)
class Spills:
    """Instructions in the loops of a tile's kernels that move registers to and from local memory; more are a fault.

    plain: where every key belongs to its request and no functor changes logits; others: elsewhere; gather: of either
    kind where rows of k and v are gathered.
    """

    tile_q: int
    plain: int = 0
    others: int = 0
    gather: int = 0


@dataclass(frozen=True)
class Row:
    """Classes up to head dims (qk, vo), and the measurement that justifies them (empty: none yet).

    spills: of the tiles that have any.
    """

    head_dims: tuple[int, int]
    classes: tuple[ClassConfig, ...]
    measured: str = ""
    spills: tuple[Spills, ...] = ()

    def spills_of(self, tile_q: int) -> Spills:
        """The declared spills of a tile."""
        return next((one for one in self.spills if one.tile_q == tile_q), Spills(tile_q))


def _decode(tile_kv: int, stages: int) -> tuple[ClassConfig, ...]:
    """Two CTAs an SM share its registers; 64 rows need the state's for themselves."""
    few = tuple(ClassConfig("decode", rows, tile_kv, stages, 2, 128) for rows in (8, 16, 32))
    return (*few, ClassConfig("decode", 64, tile_kv, stages + 1, 1))


ROWS = (
    Row(
        (64, 64),
        (*_decode(64, 4), ClassConfig("prefill", 128, 128, 4, 1, 168, q_stages=2)),
        measured="H200, 2026-12-01, ragged 16x1024, 32/8 heads: prefill 1.04 x FA3 causal, 1.10 x not; else untried",
        spills=(Spills(128, others=200),),
    ),
    Row(
        (128, 128),
        (*_decode(64, 3), ClassConfig("prefill", 128, 128, 3, 1, 168, q_stages=2, k_stages=2)),
        measured="H200, 2026-12-01, 32/8 heads: decode 64x4096, pages of 16, 4.40 TB/s (2 stages 4.40, 3 CTAs an SM "
        "4.42); causal prefill 16x1024, 4x4096, 1x16384, ragged, 450 / 590 / 640 TFLOP/s (2 stages of both 449 / 585 / "
        "621, three of k 450 / 588 / 634)",
        spills=(Spills(64, others=12, gather=8), Spills(128, plain=2, others=310, gather=740)),
    ),
    Row(
        (192, 128),
        (*_decode(64, 2), ClassConfig("prefill", 128, 64, 3, 1, 168, q_stages=2)),
        spills=(Spills(32, others=8, gather=8), Spills(64, others=12, gather=8), Spills(128, others=20)),
    ),
    Row(
        (192, 192),
        (*_decode(64, 2), ClassConfig("prefill", 128, 64, 3, 1, 168, q_stages=2, k_stages=2)),
        spills=(Spills(32, gather=4), Spills(64, others=30), Spills(128, others=90, gather=12)),
    ),
    Row(
        (256, 256),
        (
            *(ClassConfig("decode", rows, 64, 3) for rows in (8, 16, 32)),
            ClassConfig("decode", 64, 64, 2),
            ClassConfig("prefill", 128, 64, 3, 1, 168, k_stages=2),
        ),
        measured="H200, 2026-12-01, ragged 16x1024, 32/8 heads: prefill 0.90 x FA3 causal, 0.92 x not; else untried",
        spills=(Spills(64, plain=40, others=40, gather=45), Spills(128, plain=2, others=150, gather=20)),
    ),
)


def row_of(head_dim_qk: int, head_dim_vo: int) -> Row | None:
    """The first row that is wide enough; None for head dims that no kernel takes."""
    if head_dim_qk not in HEAD_DIMS or head_dim_vo not in HEAD_DIMS:
        return None
    return next(row for row in ROWS if head_dim_qk <= row.head_dims[0] and head_dim_vo <= row.head_dims[1])


@functools.lru_cache(maxsize=256)
def config_of(head_dim_qk: int, head_dim_vo: int, group_size: int) -> GluonSm90Config | None:
    """The row's classes without those that a request of one token is too large for."""
    row = row_of(head_dim_qk, head_dim_vo)
    if row is None:
        return None
    largest = max(one.tile_q for one in row.classes)
    return GluonSm90Config(tuple(one for one in row.classes if one.tile_q >= min(group_size, largest)))
