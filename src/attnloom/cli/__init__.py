"""The command line: `attnloom info | demo | bench | explain | compile | tune`.

A command's own package is imported only when that command is given, so that the others start quickly. A
user's mistake prints one line and exits with 2.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from attnloom.errors import AttnLoomError

# Command: (the module with `add_arguments(parser)` and `run(args) -> int | None`, its line of help).
COMMANDS = {
    "info": ("attnloom.cli.info", "what is installed, and which implementations can run here"),
    "demo": ("attnloom.demo", "serve chat prompts with a real model through AttnLoom"),
    "bench": ("attnloom.bench", "time attention beside torch, or the planner alone"),
    "explain": ("attnloom.cli.explain", "show the plan of a batch: a table and a timeline"),
    "compile": ("attnloom.cli.compile", "compile a spec's kernels into the cache, for any GPU, without one"),
    "tune": ("attnloom.cli.tune", "try tiles and pipelines for a spec on this GPU, and keep the quickest"),
}

USER_ERROR = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. `arguments` defaults to those of the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(given)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (AttnLoomError, OSError) as error:
        print(f"attnloom: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("attnloom: interrupted", file=sys.stderr)
        return INTERRUPTED


def _dispatch(given: list[str]) -> int:
    chosen = next((word for word in given if not word.startswith("-")), None)
    module = importlib.import_module(COMMANDS[chosen][0]) if chosen in COMMANDS else None
    complete = getattr(module, "complete", None)  # a command may fill in words left out
    given = complete(given) if complete else given
    args = _parser(chosen, module).parse_args(given)
    if args.command is None:
        _parser(None, None).print_help()
        return USER_ERROR
    return int(args.run(args) or 0)


def _parser(chosen: str | None, module: Any) -> argparse.ArgumentParser:
    """The parser of every command; only the chosen one knows its options."""
    from attnloom import __version__

    parser = argparse.ArgumentParser(prog="attnloom", description="An attention engine for LLM serving.")
    parser.add_argument("--version", action="version", version=f"attnloom {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, line) in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        if name == chosen:
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
