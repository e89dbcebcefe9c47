"""Values on the command line: lengths, heads, dtypes and variants. Each parser raises argparse's own error."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from attnloom.variant import Variant

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
KV_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def lengths(text: str) -> tuple[int, ...]:
    """Comma-separated lengths, ``nxm`` for m repeated n times.

    >>> lengths("5,3x1")
    (5, 1, 1, 1)
    """
    found: list[int] = []
    for word in text.split(","):
        times, cross, value = word.strip().rpartition("x")
        if not value.isdecimal() or (cross and not times.isdecimal()):
            raise argparse.ArgumentTypeError(f"{text!r}: expected lengths such as 512,1,1 or 4x1024")
        found += [int(value)] * (int(times) if cross else 1)
    return tuple(found)


def heads(text: str) -> tuple[int, int]:
    """Query and kv heads: ``32/8``; one number means as many of both."""
    parts = text.split("/")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected query/kv heads such as 32/8")
    return int(parts[0]), int(parts[-1])


def page_size(text: str) -> int | None:
    """A page size, or None for ``ragged``."""
    if text == "ragged":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an integer from 1, or 'ragged'")
    return int(text)


def device(text: str) -> str:
    """A torch device that is there."""
    try:
        kind = torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a torch device such as cpu or cuda:0") from error
    if kind.type not in ("cpu", "cuda") or (kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count()):
        raise argparse.ArgumentTypeError(f"{text!r}: this torch sees the CPU and {torch.cuda.device_count()} GPUs")
    return text


def implementation(text: str) -> str | None:
    """An implementation's name, or None for ``auto``."""
    return None if text == "auto" else text


def positive(text: str) -> int:
    """An integer from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an integer from 1")
    return int(text)


def positive_seconds(text: str) -> float:
    """A time above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds above 0")
    return seconds


def variant(text: str) -> Variant:
    """Built-in variants joined by ``+``, with a number behind ``:`` where one takes it.

    ``causal``, ``causal+sliding_window:1023``, ``causal+soft_cap:30+alibi``, ``full``.
    """
    import attnloom as al

    makers: dict[str, tuple[Callable[..., Variant], type | None]] = {
        "full": (al.Variant, None),
        "causal": (al.variants.causal, None),
        "alibi": (al.variants.alibi, None),
        "sliding_window": (al.variants.sliding_window, int),
        "soft_cap": (al.variants.soft_cap, float),
        "prefix_lm": (al.variants.prefix_lm, int),
    }
    result: Variant | None = None
    for word in text.split("+"):
        name, _, number = word.partition(":")
        maker, kind = makers.get(name, (None, None))
        if maker is None or bool(number) != (kind is not None):
            known = ", ".join(f"{n}:N" if k else n for n, (_, k) in makers.items())
            raise argparse.ArgumentTypeError(f"{word!r}: expected some of {known}, joined by +")
        try:
            part = maker(kind(number)) if kind else maker()
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{word!r}: {error}") from error
        result = part if result is None else result & part
    if result is None:
        raise argparse.ArgumentTypeError("expected a variant such as causal")
    return result
