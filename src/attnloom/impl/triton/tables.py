"""The tiles that ship: per family of GPUs and head dim, with the measurement behind each row or a word that none is."""

from __future__ import annotations

from dataclasses import dataclass

from attnloom.impl.triton.configs import ClassConfig, TritonConfig
from attnloom.spec import AttentionSpec


@dataclass(frozen=True)
class Row:
    """Classes up to a head dim (the wider of both), and the measurement that justifies them (empty: none yet).

    stack: bytes that a thread of the measured kernels keeps in local memory; with more it is another kernel.
    """

    head_dim: int
    classes: tuple[ClassConfig, ...]
    measured: str = ""
    stack: int = 0


@dataclass(frozen=True)
class Family:
    """GPUs that share tiles.

    name      for people
    shared    bytes of shared memory that a CTA may have on the smallest of them
    per_sm    bytes that an SM has for all its CTAs, each of which costs 1 KB more than it asks for
    wgmma     products of 64 rows and more read shared memory asynchronously, one more copy of k and v being in flight
    rows      for 16-bit types, ascending in head_dim
    fp32_rows for fp32, whose products are IEEE and do without tensor cores
    fp8_rows  in place of the row of the same head_dim where k and v are fp8: their conversion takes registers
    """

    name: str
    shared: int
    per_sm: int
    wgmma: bool
    rows: tuple[Row, ...]
    fp32_rows: tuple[Row, ...]
    fp8_rows: tuple[Row, ...] = ()


# IEEE products without tensor cores, unmeasured; chosen among what compiles with few spills (make compile-all).
_FP32_NARROW = (
    Row(64, (ClassConfig(16, 32, 4, 2, 2), ClassConfig(64, 32, 8, 2))),
    Row(128, (ClassConfig(16, 32, 8, 2, 2), ClassConfig(64, 16, 8, 2))),
)
_FP32 = (
    *_FP32_NARROW,
    Row(256, (ClassConfig(16, 16, 8, 2, 2), ClassConfig(64, 16, 8, 2))),
    Row(576, (ClassConfig(16, 16, 8, 1),)),
)

# Ampere and Ada, unmeasured; chosen among what compiles with few spills.
SM80 = Family(
    name="sm80",
    shared=166_912,
    per_sm=167_936,
    wgmma=False,
    rows=(
        Row(64, (ClassConfig(16, 64, 4, 3, 3), ClassConfig(128, 64, 8, 2))),
        Row(128, (ClassConfig(16, 64, 4, 3, 2), ClassConfig(128, 64, 8, 2))),
        Row(256, (ClassConfig(16, 32, 4, 2, 2), ClassConfig(64, 32, 8, 2))),
        Row(576, (ClassConfig(16, 32, 8, 2), ClassConfig(32, 16, 8, 2))),
    ),
    fp32_rows=_FP32,
    fp8_rows=(Row(128, (ClassConfig(16, 64, 4, 3, 2), ClassConfig(128, 32, 8, 2))),),
)

SM86 = Family(
    name="sm86",
    shared=101_376,
    per_sm=102_400,
    wgmma=False,
    rows=(
        Row(64, (ClassConfig(16, 64, 4, 3, 2), ClassConfig(128, 64, 8, 2))),
        Row(128, (ClassConfig(16, 64, 4, 3), ClassConfig(128, 64, 8, 2))),
        Row(256, (ClassConfig(16, 32, 4, 2, 2), ClassConfig(64, 32, 8, 2))),
        Row(576, (ClassConfig(16, 32, 8, 2), ClassConfig(32, 16, 8, 2))),
    ),
    fp32_rows=(
        *_FP32_NARROW,
        Row(256, (ClassConfig(16, 16, 8, 2), ClassConfig(32, 16, 8, 2))),
        Row(576, (ClassConfig(16, 16, 8, 1),)),
    ),
    fp8_rows=(Row(128, (ClassConfig(16, 64, 4, 3), ClassConfig(128, 32, 8, 2))),),
)

SM90 = Family(
    name="sm90",
    shared=232_448,
    per_sm=233_472,
    wgmma=True,
    rows=(
        Row(64, (ClassConfig(16, 64, 2, 3, 4), ClassConfig(128, 64, 8, 3, 2, 128, one_loop=True))),
        Row(
            128,
            (ClassConfig(16, 64, 2, 3, 4), ClassConfig(128, 64, 8, 2, 2, 128, one_loop=True)),
            "H200, 2026-11-30, page 16, 32/8 heads: decode 64x4096 4.18 TB/s, causal prefill 16x1024, 4x4096, 1x16384 "
            "321 / 450 / 477 TFLOP/s, with (128, 32) at most 266 / 370 / 407, (64, 32) with four CTAs 244 / 347 / 376",
            stack=80,
        ),
        Row(256, (ClassConfig(16, 64, 4, 2, 2), ClassConfig(128, 64, 8, 2, 1))),
        Row(576, (ClassConfig(16, 32, 8, 2, 1), ClassConfig(64, 32, 8, 2, 1))),
    ),
    fp32_rows=_FP32,
)

# Datacentre Blackwell, unmeasured: Hopper's tiles without its register cap.
SM100 = Family(
    name="sm100",
    shared=232_448,
    per_sm=233_472,
    wgmma=True,
    rows=(
        Row(128, (ClassConfig(16, 64, 4, 3, 2), ClassConfig(128, 64, 8, 2))),
        Row(256, (ClassConfig(16, 32, 4, 2, 2), ClassConfig(128, 32, 8, 2))),
        Row(576, (ClassConfig(16, 32, 8, 2), ClassConfig(64, 32, 8, 2))),
    ),
    fp32_rows=_FP32,
)

# AMD (gfx90a, gfx942: 64 KB of LDS), unmeasured; widths in fp32 beyond 256 have no tile that fits.
AMD = Family(
    name="AMD",
    shared=65_536,
    per_sm=65_536,
    wgmma=False,
    rows=(
        Row(64, (ClassConfig(16, 64, 4, 2, 2), ClassConfig(128, 64, 4, 2))),
        Row(128, (ClassConfig(16, 64, 4, 2), ClassConfig(64, 32, 4, 2))),
        Row(256, (ClassConfig(16, 32, 4, 2), ClassConfig(32, 32, 4, 1))),
        Row(576, (ClassConfig(16, 16, 4, 1),)),
    ),
    fp32_rows=(
        Row(64, (ClassConfig(16, 32, 4, 2), ClassConfig(64, 32, 8, 2))),
        Row(128, (ClassConfig(16, 32, 4, 2), ClassConfig(64, 16, 8, 1))),
        Row(256, (ClassConfig(16, 16, 4, 2),)),
        Row(576, (ClassConfig(16, 16, 4, 1),)),
    ),
)

FAMILIES = (SM80, SM86, SM90, SM100, AMD)


def family_of(arch: int | None) -> Family:
    """The family of a compute capability (``10 * major + minor``), None being AMD.

    >>> [family_of(arch).name for arch in (80, 87, 86, 89, 90, 100, 120, None)]
    ['sm80', 'sm80', 'sm86', 'sm86', 'sm90', 'sm100', 'sm86', 'AMD']
    """
    if arch is None:
        return AMD
    if arch in (80, 87):
        return SM80
    if arch == 90:
        return SM90
    return SM100 if 100 <= arch < 120 else SM86


def config_of(spec: AttentionSpec, family: Family) -> TritonConfig:
    """The family's row of a spec's wider head dim."""
    width = max(spec.head_dim_qk, spec.head_dim_vo)
    rows = family.fp32_rows if spec.dtype.itemsize == 4 else family.rows
    row = next(row for row in rows if width <= row.head_dim)
    if spec.kv_fp8:
        row = next((other for other in family.fp8_rows if other.head_dim == row.head_dim), row)
    return TritonConfig(row.classes)
