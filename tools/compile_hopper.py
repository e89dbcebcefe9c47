"""Compile the Hopper kernels' list for sm_90a, without a GPU, and say what each takes.

Fails where a kernel spills in the loops around its products more than its row of tables.py declares, takes more shared
memory than a CTA or, times the CTAs that an SM shall hold, than an SM has, or another number than the footprint says::

    python tools/compile_hopper.py --cases 40 --processes 2
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Literal

import torch
import triton

from attnloom.compile.cache import kernel_of
from attnloom.compile.resources import resources_of
from attnloom.compile.sass import spills_of
from attnloom.impl.gluon_sm90.footprint import CTA_LIMIT, CTA_OVERHEAD, MARGIN, SM_LIMIT, shared_memory
from tools.hopper_list import Case, covering

_SM_REGISTERS = 65_536
_WARP = 32


@dataclass(frozen=True)
class Taken:
    """Shared memory and the footprint's figure in bytes, registers of a thread at launch and warps, spills, seconds.

    kind: whose declaration counts, see `tables.Spills`.
    """

    shared: int
    footprint: int
    registers: int
    warps: int
    spills: int
    spills_in_loops: int
    seconds: float
    kind: Literal["plain", "others", "gather"]


def compile_case(case: Case) -> Taken | str:
    """Compile a case or take it from the cache; what the compiler said where it refuses."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        request = case.request()
        cfg = request.constants["cfg"]
        kernel = kernel_of(request)
    except Exception as error:  # noqa: BLE001 - one line of the table
        return f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"
    taken, spills = resources_of(kernel), spills_of(kernel)
    if taken is None or spills is None:
        raise RuntimeError("Triton's cuobjdump is missing or does not know the code that Triton makes")
    return Taken(
        kernel.shared_memory,
        shared_memory(case.tile, *case.dims, owns=cfg.OWNS, gather=cfg.GATHER),
        taken.registers,
        int(kernel.facts["num_warps"]),
        spills.total,
        spills.in_loops,
        time.perf_counter() - start,
        "gather" if cfg.GATHER else "plain" if cfg.OWNS and request.constants["LOGITS"] is None else "others",
    )


def faults(case: Case, taken: Taken | str, *, exact: bool = True) -> list[str]:
    """What must not be; not exact, under another version of Triton, spills and the footprint are only shown."""
    if isinstance(taken, str):
        return [taken]
    found, ctas = [], case.tile.ctas_per_sm
    if exact and not 0 <= taken.footprint - taken.shared <= MARGIN:
        found.append(f"shared memory is not what the footprint says (up to {MARGIN} less)")
    if taken.shared > CTA_LIMIT:
        found.append(f"more shared memory than a CTA's {CTA_LIMIT}")
    if ctas * (taken.shared + CTA_OVERHEAD) > SM_LIMIT:
        found.append(f"{ctas} CTAs take more shared memory than an SM's {SM_LIMIT}")
    if ctas * taken.registers * taken.warps * _WARP > _SM_REGISTERS:
        found.append(f"{ctas} CTAs take more registers than an SM's {_SM_REGISTERS}")
    declared = {"plain": case.spills.plain, "others": case.spills.others, "gather": case.spills.gather}[taken.kind]
    if exact and taken.spills_in_loops > declared:
        found.append(f"{taken.spills_in_loops} spills in loops, {declared} declared")
    return found


def compile_all(cases: Sequence[Case], processes: int) -> Iterator[tuple[Case, Taken | str]]:
    """Every case with what it takes, in their order."""
    if processes == 1:
        yield from ((case, compile_case(case)) for case in cases)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from zip(cases, pool.map(compile_case, cases), strict=True)


def main() -> int:
    """Print the table; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=None, metavar="N", help="the first N of the list; default: all")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--expect", metavar="VERSION", help="another version of Triton than the shipped one")
    args, wrong = parser.parse_args(), 0
    if args.expect not in (None, triton.__version__):
        parser.error(f"Triton is {triton.__version__} from {triton.__file__}")
    for case, taken in compile_all(list(covering())[: args.cases], args.processes):
        found, numbers = faults(case, taken, exact=args.expect is None), ""
        if isinstance(taken, Taken):
            numbers = f"shared {taken.shared:>6} ({taken.footprint:>6})  registers {taken.registers:>3}  "
            numbers += f"spills {taken.spills:>3} ({taken.spills_in_loops} in loops)  {taken.seconds:4.1f} s"
        wrong += bool(found)
        print(f"{case.words:<110} {numbers}  {'; '.join(found)}", flush=True)
    print(f"{wrong} kernels at fault")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
