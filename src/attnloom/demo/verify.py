"""The comparison: eager attention, one prompt at a time, on the same weights."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from attnloom.demo.serve import Answer


@dataclass(frozen=True)
class Comparison:
    """One answer against eager attention.

    Attributes:
        expected: eager attention's tokens.
        differs_at: index of the first token that differs (or is missing), None when all are equal.
        margin: by how much eager attention preferred its token there to the one that came, in logits; None without
            a difference, or where one of the answers ends.
        seconds: wall time of the eager run.
    """

    answer: Answer
    expected: list[int]
    differs_at: int | None
    margin: float | None
    seconds: float


def compare(model: Any, answer: Answer, generation: Any) -> Comparison:
    """Generate `answer`'s request again, alone, and compare every token.

    `model` must run eager attention now.
    """
    import torch

    if model.config.get_text_config()._attn_implementation != "eager":
        raise RuntimeError("compare() wants a model that runs eager attention")
    request = answer.request
    prompt = torch.tensor([request.tokens], device=model.device)
    begin = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=generation,
            max_new_tokens=request.prompt.max_new_tokens,
        )
    seconds = time.perf_counter() - begin
    expected = output[0, len(request.tokens) :].tolist()
    at = first_difference(answer.tokens, expected)
    margin = None
    if at is not None and at < min(len(expected), len(answer.tokens)):
        with torch.inference_mode():
            logits = model(output[:, : len(request.tokens) + at], logits_to_keep=1).logits[0, -1].float()
        margin = float(logits[expected[at]] - logits[answer.tokens[at]])
    return Comparison(answer, expected, at, margin, seconds)


def first_difference(got: list[int], expected: list[int]) -> int | None:
    """Index of the first token that differs or that only one list has; None for equal lists."""
    for i, (a, b) in enumerate(zip(got, expected, strict=False)):
        if a != b:
            return i
    return None if len(got) == len(expected) else min(len(got), len(expected))
