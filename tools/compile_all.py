"""Compile the attention kernel of every shipped tile, without a GPU, and say what each takes of one.

Per family of GPUs, head dims and dtype: registers, stack (bytes a thread spills to local memory) and shared memory
beside what the launcher's formula says. Fails where Triton takes more shared memory than the formula, or a CTA has,
and where a row that carries a measurement spills more than the kernels that were measured.
``make compile-all``, or a part of it::

    python tools/compile_all.py --arch 90 --dtype bf16 --dims 128 192,128 --tile 64,64,4,3
    python tools/compile_all.py --arch 80 --dtype bf16 --kv-dtype e4m3 e5m2
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import attnloom as al
from attnloom.compile.cache import kernel_of
from attnloom.compile.resources import resources_of
from attnloom.impl.triton.configs import ClassConfig, TritonConfig
from attnloom.impl.triton.tables import config_of, family_of
from attnloom.impl.triton.warm import Shape, wanted
from attnloom.spec import AttentionSpec
from attnloom.target import Target

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
DIMS = (*((d, d) for d in (16, 32, 64, 80, 96, 112, 128, 192, 256, 512)), (192, 128), (576, 512))
ARCHS = (80, 86, 89, 90)

_QO_HEADS, _KV_HEADS, _PAGES = 32, 8, 4


@dataclass(frozen=True)
class Case:
    """One kernel: a tile class for an architecture, head dims and a dtype.

    page_size: None is ragged KV; fp8: the format of its cache, "" is none;
    stack: bytes a thread may keep in local memory; None where nothing was measured, and any number is only shown.
    """

    arch: int
    dims: tuple[int, int]
    dtype: str
    tile: ClassConfig
    page_size: int | None = 16
    stack: int | None = None
    fp8: str = ""

    @property
    def spec(self) -> AttentionSpec:
        """32 query heads on 8 kv heads."""
        return AttentionSpec.create(
            num_qo_heads=_QO_HEADS,
            num_kv_heads=_KV_HEADS,
            head_dim=self.dims[0],
            head_dim_vo=self.dims[1],
            dtype=DTYPES[self.dtype],
            kv_dtype=FP8.get(self.fp8),
            page_size=self.page_size,
        )

    @property
    def words(self) -> str:
        """The case in a line of the table."""
        one, where = self.tile, "ragged" if self.page_size is None else f"page {self.page_size}"
        cap = "" if one.maxnreg is None else f" <= {one.maxnreg} registers"
        tile = f"{one.tile_q} x {one.tile_kv}, {one.num_warps} warps, {one.stages} stages{cap}"
        return f"sm{self.arch:<4}{self.dims!s:<11}{self.dtype:<5}{self.fp8:<5}{where:<8} {tile}"


@dataclass(frozen=True)
class Taken:
    """Shared memory in bytes: Triton's and the formula's; registers and stack bytes of a thread."""

    shared: int
    formula: int
    registers: int
    stack: int


def compile_case(case: Case) -> Taken:
    """Compile a case for causal attention, or take it from the cache."""
    spec = case.spec
    tokens = case.page_size or 1
    k, v = (torch.empty(_PAGES, tokens, _KV_HEADS, dim, dtype=spec.kv_dtype, device="meta") for dim in case.dims)
    shape = Shape(k, v, paged=case.page_size is not None, with_lse=True)
    target = Target.of_arch(f"sm{case.arch}")
    _, request = next(wanted(spec, al.variants.causal().program, target, TritonConfig((case.tile,)), shape))
    kernel = kernel_of(request)
    taken = resources_of(kernel)
    if taken is None:
        raise RuntimeError("Triton's cuobjdump is missing or does not know the code that Triton makes")
    wgmma = family_of(case.arch).wgmma
    formula = case.tile.shared_memory(spec, wgmma=wgmma, paged=case.page_size is not None)
    return Taken(kernel.shared_memory, formula, taken.registers, taken.stack)


def shipped(
    arch: int, dims: tuple[int, int], dtype: str, page_size: int | None = 16, *, fp8: str = ""
) -> Iterator[Case]:
    """The tiles of a table's row."""
    family = family_of(arch)
    rows = family.fp32_rows if dtype == "fp32" else family.rows
    row = next(row for row in rows if max(dims) <= row.head_dim)
    probe = Case(arch, dims, dtype, row.classes[0], page_size, fp8=fp8)
    stack = row.stack if row.measured and max(dims) == row.head_dim and not fp8 else None
    for tile in config_of(probe.spec, family).classes:
        yield Case(arch, dims, dtype, tile, page_size, stack, fp8)


def faults(case: Case, taken: Taken) -> list[str]:
    """What must not be."""
    limit = Target.of_arch(f"sm{case.arch}").shared_memory
    found = []
    if taken.shared > taken.formula:
        found.append("more shared memory than the formula says")
    if taken.shared > limit:
        found.append(f"more shared memory than a CTA's {limit}")
    if case.stack is not None and taken.stack > case.stack:
        found.append(f"spills more than the {case.stack} bytes of the measured kernel")
    return found


def _dims(text: str) -> tuple[int, int]:
    parts = [int(part) for part in text.split(",")]
    return parts[0], parts[-1]


def _tile(text: str) -> ClassConfig:
    tile_q, tile_kv, num_warps, stages, *rest = (int(part) for part in text.split(","))
    return ClassConfig(tile_q, tile_kv, num_warps, stages, 1, rest[0] if rest else None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, nargs="+", default=ARCHS)
    parser.add_argument("--dtype", nargs="+", choices=tuple(DTYPES), default=("bf16", "fp16", "fp32"))
    parser.add_argument("--kv-dtype", nargs="+", choices=("same", *FP8), default=("same",), help="default: same")
    parser.add_argument("--dims", type=_dims, nargs="+", default=DIMS, metavar="D or DQK,DVO")
    parser.add_argument("--ragged", action="store_true", help="ragged KV instead of pages of 16")
    parser.add_argument(
        "--tile", type=_tile, nargs="+", metavar="Q,KV,WARPS,STAGES[,REGISTERS]", help="not the tables'"
    )
    return parser.parse_args()


def _cases(args: argparse.Namespace) -> Iterator[Case]:
    page_size = None if args.ragged else 16
    for arch, dtype, cache, dims in itertools.product(args.arch, args.dtype, args.kv_dtype, args.dims):
        fp8 = cache if cache in FP8 else ""
        if fp8 and dtype == "fp32":
            continue
        if args.tile:
            yield from (Case(arch, dims, dtype, tile, page_size, fp8=fp8) for tile in args.tile)
        else:
            yield from shipped(arch, dims, dtype, page_size, fp8=fp8)


def main() -> int:
    """Print the table; 1 where something is wrong."""
    args, wrong = _arguments(), 0
    torch.set_num_threads(1)
    for case in _cases(args):
        taken = compile_case(case)
        found = faults(case, taken)
        wrong += bool(found)
        numbers = f"shared {taken.shared:>6} (formula {taken.formula:>6})  registers {taken.registers:>3}"
        print(f"{case.words:<75} {numbers}  stack {taken.stack:>4}  {'; '.join(found)}", flush=True)
    print(f"{wrong} kernels at fault")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
