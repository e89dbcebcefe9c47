"""`attnloom bench attention`: run the cases, print the table, write JSON and chart."""

from __future__ import annotations

import argparse
import itertools
import sys

import torch

from attnloom.bench import chart, machine, show
from attnloom.bench.attention import Result, measure
from attnloom.bench.case import Case
from attnloom.bench.presets import CPU_THREADS, cpu_figures
from attnloom.bench.timing import MIN_ROUNDS
from attnloom.errors import AttnLoomError, InvalidArgument

WRONG_RESULT = 1


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, or 1 when a result is not within tolerance (then nothing of that case is timed)."""
    if args.rounds < MIN_ROUNDS:
        raise InvalidArgument(
            name="--rounds", given=args.rounds, supported=f"an integer from {MIN_ROUNDS}", fix="Quartiles need them."
        )
    threads = args.threads or (CPU_THREADS if args.preset else torch.get_num_threads())
    torch.set_num_threads(threads)
    cases = _cases(args)
    facts = machine.facts(args.device)
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    results, wrong = _measure_all(cases, args.rounds)
    if results:
        stem = args.preset or "attention"
        print(f"\n{show.table(results)}\n")
        print("ratio: torch's time / AttnLoom's, above 1 AttnLoom is faster; plan is not part of either.")
        documents = {
            "json": show.as_json(results, facts),
            "svg": chart.draw(results, facts, args.rounds),
        }
        print("wrote", ", ".join(map(str, show.write(args.output_dir, stem, documents))))
    return WRONG_RESULT if wrong else 0


def _cases(args: argparse.Namespace) -> tuple[Case, ...]:
    if args.preset == "cpu-figures":
        return cpu_figures()
    return tuple(
        Case(
            workload=workload,
            mode=mode,
            dtype=dtype,
            page_size=page_size,
            heads=args.heads,
            head_dim=args.head_dim,
            implementation=args.implementation,
            device=args.device,
            num_ctas=args.num_ctas,
        )
        for mode, dtype, page_size, workload in itertools.product(args.mode, args.dtype, args.page_size, args.workload)
    )


def _measure_all(cases: tuple[Case, ...], rounds: int) -> tuple[list[Result], int]:
    """The results in order, and how many cases were wrong."""
    results, wrong = [], 0
    for i, case in enumerate(cases):
        print(f"[{i + 1}/{len(cases)}] {case.name}", end=" ... ", file=sys.stderr, flush=True)
        try:
            results.append(measure(case, rounds))
            print(f"{results[-1].ratio.median:.2f} x torch", file=sys.stderr)
        except AssertionError as error:
            wrong += 1
            print(f"WRONG RESULT: {error}", file=sys.stderr)
        except AttnLoomError:
            print(file=sys.stderr)
            raise
    return results, wrong
