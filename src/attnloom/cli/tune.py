"""`attnloom tune`: try an implementation's configs for a spec on this GPU, and keep the quickest in a file."""

from __future__ import annotations

import argparse
import datetime
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from attnloom.bench import arguments
from attnloom.bench.case import Case, make_engine
from attnloom.errors import InvalidArgument

if TYPE_CHECKING:
    from attnloom.api import BatchAttention

_EPILOG = """\
examples:
  attnloom tune --workload constant_64x4096 uniform_16x1024 --mode decode
  attnloom tune --workload constant_32x4096 --rows 2 4 8
  attnloom tune --workload constant_16x1024 --mode prefill --heads 32/8 --head-dim 128 --seconds 300

Each class of tiles that the workloads use is exchanged for every other that fits; the three quickest meet the default
in rounds, and replace it where they are 1 % faster. Results are checked. The file serves every engine with these head
dims, types and query heads per kv head on a GPU of this name.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    parser.add_argument("--workload", nargs="+", required=True, metavar="NAME", help="such as constant_64x4096")
    parser.add_argument(
        "--mode", nargs="+", choices=("decode", "prefill", "mixed"), default=["decode"], help="default: decode"
    )
    parser.add_argument(
        "--rows", nargs="+", type=arguments.positive, metavar="N", help="query rows of each request, in place of --mode"
    )
    parser.add_argument("--heads", type=arguments.heads, default=(32, 8), metavar="QO/KV", help="default: 32/8")
    parser.add_argument("--head-dim", type=arguments.positive, default=128, metavar="D", help="default: 128")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="default: bf16")
    parser.add_argument("--kv-dtype", choices=tuple(arguments.KV_DTYPES), help="default: --dtype")
    parser.add_argument(
        "--page-size", type=arguments.page_size, default=16, metavar="N", help="or 'ragged'; default: 16"
    )
    parser.add_argument("--implementation", metavar="NAME", help="default: the one that runs")
    parser.add_argument("--device", type=arguments.device, default="cuda", help="default: cuda")
    parser.add_argument(
        "--seconds", type=arguments.positive_seconds, metavar="S", help="try nothing new after this long"
    )
    parser.add_argument(
        "--where",
        choices=("package", "cache"),
        default="package",
        help="write beside the shipped configs (the default) or into the cache directory, which comes first",
    )


def run(args: argparse.Namespace) -> int:
    """Search, print what was gained, write the file where anything was."""
    from attnloom.bench.gpu import tune
    from attnloom.bench.gpu.clock import CudaClock
    from attnloom.impl import tuning
    from attnloom.impl.dispatch import registry

    cases = [case for workload in args.workload for case in _cases(args, workload)]
    attn = make_engine(cases[0])
    implementation = registry()[attn.implementation]
    default, *candidates = implementation.candidate_configs(attn.spec, attn.variant.program, attn.target)
    _check(attn, default)
    print(f"{attn.implementation} on {attn.target.name}: {len(candidates)} configs beside the default")
    timing = tune.DeviceTiming(cases, attn.implementation, CudaClock(attn.device), print)
    if args.seconds:
        timing.deadline = time.perf_counter() + args.seconds
    found = tune.search(default, candidates, timing)
    lines = list(tune.described(found, cases))
    print("\n".join(lines) or "Nothing is faster than the default.")
    if found:
        folder = tuning.SHIPPED if args.where == "package" else tuning.written()
        path = tuning.file_of(folder, attn.target.name, attn.implementation)
        classes = tuple(asdict(one) for one in tune.combined(default, found))
        tuning.write(path, tuning.Key.of(attn.spec), classes, f"{_today()}: {' | '.join(lines)}")
        print(f"Written: {path}")
    return 0


def _cases(args: argparse.Namespace, workload: str) -> list[Case]:
    """A workload in every mode, or with every number of rows."""
    from attnloom.testing import cases

    batch = len(cases.workload(workload).kv_lens)
    rows: list[tuple[str, tuple[int, ...] | None]] = [("append", (one,) * batch) for one in args.rows or ()]
    return [
        Case(
            workload,
            mode,
            args.dtype,
            args.page_size,
            args.heads,
            args.head_dim,
            args.implementation,
            args.device,
            kv_dtype=args.kv_dtype,
            qo_lens=qo_lens,
        )
        for mode, qo_lens in rows or [(mode, None) for mode in args.mode]
    ]


def _check(attn: BatchAttention, default: object) -> None:
    """Raises InvalidArgument for what has nothing to tune."""
    if attn.device.type != "cuda" or not hasattr(default, "classes"):
        raise InvalidArgument(
            name="implementation",
            given=f"{attn.implementation} on {attn.device}",
            supported="gluon_sm90 or triton on a GPU",
            fix="See `attnloom info`.",
        )


def _today() -> str:
    import triton

    return f"{datetime.datetime.now(datetime.UTC).date()}, torch {torch.__version__}, triton {triton.__version__}"
