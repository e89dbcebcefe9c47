"""`attnloom bench`: attention beside torch's, and the planner alone, on named workloads."""

from __future__ import annotations

import argparse

from attnloom.bench import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `attnloom bench`'s options on `parser`."""
    options.add_arguments(parser)


def complete(words: list[str]) -> list[str]:
    """The command line with what it leaves out: `bench` means `bench attention`."""
    return options.complete(words)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark that `args` ask for; returns the exit status."""
    return int(args.bench(args) or 0)
