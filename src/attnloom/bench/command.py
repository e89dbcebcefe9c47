"""`attnloom bench attention`: run the cases, print the table, write JSON and chart."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from attnloom.bench import chart, machine, show
from attnloom.bench.attention import Result, measure
from attnloom.bench.case import Case
from attnloom.bench.gpu.presets import GPU_PRESETS
from attnloom.bench.presets import PRESETS
from attnloom.bench.timing import MIN_ROUNDS
from attnloom.errors import InvalidArgument

WRONG_RESULT = 1

_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "workload": ("uniform_16x1024",),
        "mode": ("decode",),
        "dtype": ("bf16",),
        "page_size": (16,),
        "heads": (32, 8),
        "head_dim": 128,
    }
)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, or 1 when a result is not within tolerance (then nothing of that case is timed)."""
    if args.rounds < MIN_ROUNDS:
        raise InvalidArgument(
            name="--rounds", given=args.rounds, supported=f"an integer from {MIN_ROUNDS}", fix="Quartiles need them."
        )
    if torch.device(args.device).type == "cuda":
        return _run_on_gpu(args)
    _refuse_gpu_options(args)
    cases, threads = _preset(args) if args.preset else (_cases(args), None)
    torch.set_num_threads(args.threads or threads or torch.get_num_threads())
    facts = machine.facts(args.device)
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    results: list[Result] = []
    try:
        wrong = _measure_all(cases, args.rounds, results)
    finally:  # what an interrupted run has measured is shown too
        if results:
            _report(args, results, facts)
    return WRONG_RESULT if wrong else 0


def _run_on_gpu(args: argparse.Namespace) -> int:
    from attnloom.bench.gpu import command
    from attnloom.bench.gpu.case import GpuCase

    if args.preset in PRESETS:
        raise InvalidArgument(
            name="--device", given=args.device, supported=f"cpu with --preset {args.preset}", fix="Leave it out."
        )
    if not args.preset:
        return command.run(args, [GpuCase(case) for case in _cases(args)])
    _refuse_beside_preset(args)
    chosen = _chosen(args)
    cases = [
        dataclasses.replace(each, case=dataclasses.replace(each.case, device=args.device, **chosen))
        for each in GPU_PRESETS[args.preset]()
    ]
    return command.run(args, cases)


def _refuse_gpu_options(args: argparse.Namespace) -> None:
    """What only a GPU run knows raises on the CPU."""
    given = {
        "--preset": args.preset if args.preset in GPU_PRESETS else None,
        "--peers": None if args.peers == ["all"] else args.peers,
        "--skip-peer": args.skip_peer or None,
        "--seconds": args.seconds,
        "--json": args.json,
        "--chart": args.chart,
    }
    for name, value in given.items():
        if value is not None:
            raise InvalidArgument(name=name, given=value, supported="nothing on a CPU", fix="Add --device cuda.")


def _report(args: argparse.Namespace, results: Sequence[Result], facts: Mapping[str, Any]) -> None:
    print(f"\n{show.table(results)}\n")
    print("ratio: torch's time / AttnLoom's, above 1 AttnLoom is faster; plan is not part of either.")
    documents = {"json": show.as_json(results, facts), "svg": chart.draw(results, facts, args.rounds)}
    print("wrote", ", ".join(map(str, show.write(args.output_dir, args.preset or "attention", documents))))


def _preset(args: argparse.Namespace) -> tuple[tuple[Case, ...], int]:
    """The preset's cases and threads; only how they run may be chosen beside it."""
    _refuse_beside_preset(args)
    preset = PRESETS[args.preset]
    chosen = _chosen(args)
    return tuple(dataclasses.replace(case, device=args.device, **chosen) for case in preset.cases()), preset.threads


def _refuse_beside_preset(args: argparse.Namespace) -> None:
    fixed = [name for name in _DEFAULTS if getattr(args, name) is not None]
    if fixed:
        raise InvalidArgument(
            name=f"--{fixed[0].replace('_', '-')}",
            given=getattr(args, fixed[0]),
            supported="nothing beside --preset, which fixes the cases",
            fix="Leave out one of them.",
        )


def _chosen(args: argparse.Namespace) -> dict[str, Any]:
    """How a preset's cases run, where the command line says so."""
    return {name: getattr(args, name) for name in ("implementation", "num_ctas") if getattr(args, name) is not None}


def _cases(args: argparse.Namespace) -> tuple[Case, ...]:
    """Every combination of what was asked for."""
    asked = {
        name: default if getattr(args, name) is None else getattr(args, name) for name, default in _DEFAULTS.items()
    }
    combinations = itertools.product(asked["mode"], asked["dtype"], asked["page_size"], asked["workload"])
    return tuple(
        Case(
            workload=workload,
            mode=mode,
            dtype=dtype,
            page_size=page_size,
            heads=asked["heads"],
            head_dim=asked["head_dim"],
            implementation=args.implementation,
            device=args.device,
            num_ctas=args.num_ctas,
        )
        for mode, dtype, page_size, workload in combinations
    )


def _measure_all(cases: Sequence[Case], rounds: int, results: list[Result]) -> int:
    """Append a result for each case; returns how many were wrong."""
    wrong = 0
    for i, case in enumerate(cases):
        print(f"[{i + 1}/{len(cases)}] {case.name}", end=" ... ", file=sys.stderr, flush=True)
        try:
            results.append(measure(case, rounds))
            print(f"{results[-1].ratio.median:.2f} x torch", file=sys.stderr)
        except AssertionError as error:
            wrong += 1
            print(f"WRONG RESULT: {error}", file=sys.stderr)
        except BaseException:
            print(file=sys.stderr)
            raise
    return wrong
