"""The options of `attnloom bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from attnloom.bench.arguments import DTYPES, device, heads, implementation, page_size, positive, positive_seconds
from attnloom.bench.gpu.presets import GPU_PRESETS
from attnloom.bench.presets import PRESETS
from attnloom.bench.timing import MIN_ROUNDS

COMMANDS = ("attention", "plan", "draw", "jit")

_EPILOG = """\
examples:
  attnloom bench --workload sharegpt_64 --mode decode --dtype bf16
  attnloom bench --workload zipf_16x1024 uniform_16x1024 --mode prefill --page-size ragged
  attnloom bench --preset cpu-figures
  attnloom bench --preset issue-3 --device cuda --peers all --rounds 7 --json out.json --chart out.png
  attnloom bench --preset issue-4 --device cuda --implementation auto --seconds 500   # or issue-4-decode, ...

Attention is causal; the ratio is the peer's time / AttnLoom's. Planning is not part of it.
On a CPU: each result is first compared with torch SDPA, within a tolerance derived from torch's own error in a wider
type. Then both run in interleaved rounds; torch is called request by request on K and V gathered beforehand, at its
faster memory layout.
On a GPU: results are compared with attention by hand and with FA2, and every setting of every peer with AttnLoom's;
the quickest setting of each peer and AttnLoom run in interleaved rounds with a cold L2, decode as a replayed CUDA
graph. Peers that are not installed or do not fit are listed with the reason. With --seconds, samples are shortened
where the cases would not fit, down to 3 ms, and then the last cases left out.
To measure as on a CPU without AVX-512: ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 attnloom bench ...
"""


def complete(words: list[str]) -> list[str]:
    """`bench` alone, or followed by options, means `bench attention`."""
    at = words.index("bench") + 1
    named = at < len(words) and (words[at] in COMMANDS or words[at] in ("-h", "--help"))
    return words if named else [*words[:at], "attention", *words[at:]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`bench attention`, `bench plan`, `bench draw` and `bench jit` with their options."""
    from attnloom.bench import draw, jit, plan

    commands = parser.add_subparsers(dest="bench_command", required=True, metavar="[attention | plan | draw | jit]")
    attention = commands.add_parser(
        "attention",
        help="attention beside torch SDPA, on a GPU beside every peer (the default)",
        description="Time attention beside torch SDPA, on a GPU beside every peer that is installed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _attention_arguments(attention)
    planner = commands.add_parser("plan", help="the planner alone", description="Time the planner.")
    plan.add_arguments(planner)
    planner.set_defaults(bench=plan.run)
    compiling = commands.add_parser("jit", help="the first call of a variant", description="Time first calls.")
    jit.add_arguments(compiling)
    compiling.set_defaults(bench=jit.run)
    drawn = commands.add_parser("draw", help="table and chart of a GPU run's JSON", description="Draw a run again.")
    draw.add_arguments(drawn)
    drawn.set_defaults(bench=draw.run)


def _attention_arguments(parser: argparse.ArgumentParser) -> None:
    from attnloom.bench import command

    what = parser.add_argument_group("what is run (every combination)")
    what.add_argument("--workload", nargs="+", metavar="NAME", help="named batches; default: uniform_16x1024")
    what.add_argument("--mode", nargs="+", choices=("decode", "prefill", "mixed"), help="default: decode")
    what.add_argument("--dtype", nargs="+", choices=tuple(DTYPES), help="default: bf16")
    what.add_argument("--page-size", nargs="+", type=page_size, metavar="N", help="or 'ragged'; default: 16")
    what.add_argument("--heads", type=heads, metavar="QO/KV", help="default: 32/8")
    what.add_argument("--head-dim", type=positive, metavar="D", help="default: 128")
    what.add_argument("--preset", choices=(*PRESETS, *GPU_PRESETS), help="instead of these: a fixed list, with targets")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--implementation", type=implementation, metavar="NAME", help="see `attnloom info`; default: auto, the first"
    )
    how.add_argument("--device", type=device, default="cpu", help="default: cpu")
    how.add_argument("--num-ctas", type=positive, metavar="N", help="default: the implementation's own")
    how.add_argument("--threads", type=positive, metavar="N", help="torch threads; default: torch's, a preset's own")
    how.add_argument("--rounds", type=positive, default=9, metavar="N", help=f"at least {MIN_ROUNDS}; default: 9")
    how.add_argument("--output-dir", type=Path, default=Path("out/bench"), metavar="DIR", help="default: out/bench")
    _gpu_arguments(parser.add_argument_group("on a GPU"))
    parser.set_defaults(bench=command.run)


def _gpu_arguments(gpu: argparse._ArgumentGroup) -> None:
    gpu.add_argument("--peers", nargs="+", default=["all"], metavar="ID", help="or 'none', 'flashinfer'; default: all")
    gpu.add_argument("--skip-peer", nargs="+", default=[], metavar="ID", help="all but these")
    gpu.add_argument("--seconds", type=positive_seconds, metavar="S", help="start no case that would run past this")
    gpu.add_argument("--json", type=Path, metavar="FILE", help="default: PRESET.json in --output-dir")
    gpu.add_argument("--chart", type=Path, metavar="FILE", help="PNG and SVG beside it; default: beside the JSON")
