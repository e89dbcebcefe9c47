"""What the demo says at the end, to people and in report.json."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnloom.demo.console import Console
from attnloom.demo.serve import Answer
from attnloom.demo.steps import Row, Step
from attnloom.demo.verify import Comparison
from attnloom.demo.words import listed

# prompts whose chunks are told one by one
_CHUNKED = 4


def show_answers(console: Console, answers: Sequence[Answer], tokenizer: Any, ends: Sequence[int]) -> None:
    """Each prompt with its answer, time to first token and speed; an answer without one of `ends` was cut."""
    for answer in answers:
        name, prompt = answer.request.name, answer.request.prompt
        cut = len(answer.tokens) == prompt.max_new_tokens and answer.tokens[-1] not in ends
        question = textwrap.shorten(prompt.text, 90, placeholder=" …")
        console.line(f"{console.style(f'{name:>4}', 'bold')}  {console.style(question, 'cyan')}")
        for paragraph in (text_of(answer, tokenizer) + (" […]" if cut else "")).splitlines():
            for line in textwrap.wrap(paragraph, 100):
                console.line(f"      {line}")
        rate = "" if answer.rate is None else f", then {answer.rate:.1f} tokens/s"
        facts = (
            f"prompt {len(answer.request.tokens)} tokens, answer {len(answer.tokens)}, "
            f"first token after {answer.first_token:.2f} s{rate}"
        )
        console.line("      " + console.style(facts, "dim"))


def text_of(answer: Answer, tokenizer: Any) -> str:
    """The answer as text, without special tokens."""
    return str(tokenizer.decode(answer.tokens, skip_special_tokens=True)).strip()


def speed(answers: Sequence[Answer], seconds: float) -> str:
    """One line: tokens per second over all requests, and time to first token."""
    tokens = sum(len(answer.tokens) for answer in answers)
    first = sorted(answer.first_token for answer in answers)
    return (
        f"{tokens} tokens in {seconds:.1f} s: {tokens / seconds:.1f} tokens/s; "
        f"time to first token {statistics.median(first):.2f} s (median), {first[-1]:.2f} s (longest)"
    )


def happenings(steps: Sequence[Step]) -> list[str]:
    """What the steps show, in sentences: joins and leaves, chunked prefill beside decode, shared pages."""
    joins = [step.number for step in steps if step.joined]
    leaves = [step.number for step in steps if step.left]
    lines = [f"requests joined at {listed('step', joins)} and left after {listed('step', leaves)}"]
    parts = chunked(steps)
    for name, rows in list(parts.items())[:_CHUNKED]:
        beside = [step.number for step in steps if step.mixed and any(row.request == name for row in step.prefills)]
        sizes = " + ".join(str(row.new) for row in rows)
        where = f"{listed('step', beside)}, beside decoding" if beside else "no decoding was going on"
        lines.append(f"{name}'s prompt was prefilled in {len(rows)} chunks of {sizes} tokens: {where}")
    if len(parts) > _CHUNKED:
        lines.append(f"and {len(parts) - _CHUNKED} more prompts in chunks")
    held: dict[int, set[str]] = {}
    for step in steps:
        for page, who in step.shared_pages().items():
            held.setdefault(page, set()).update(who)
    if held:
        requests = len(set().union(*held.values()))
        verb = "was" if len(held) == 1 else "were"
        lines.append(f"{listed('page', sorted(held))} {verb} shared, by {requests} requests; {_reused(steps)}")
    else:
        lines.append("no page was shared: no two prompts begin with the same full page")
    return lines


def chunked(steps: Sequence[Step]) -> dict[str, list[Row]]:
    """Prefill rows of every request whose prompt took more than one step."""
    rows: dict[str, list[Row]] = {}
    for step in steps:
        for row in step.prefills:
            rows.setdefault(row.request, []).append(row)
    return {name: parts for name, parts in rows.items() if len(parts) > 1}


def _reused(steps: Sequence[Step]) -> str:
    tokens = sum(row.past for step in steps for row in step.rows if row.request in step.joined)
    return f"{tokens} prompt tokens were read from them instead of computed again"


def show_comparison(console: Console, comparison: Comparison, tokenizer: Any) -> None:
    """One line: equal, or where and how the tokens part."""
    name, got = comparison.answer.request.name, comparison.answer.tokens
    at = comparison.differs_at
    if at is None:
        mark = console.style("equal", "green")
        console.line(f"{name:>5}  {mark}  {len(got):>3} tokens  ({comparison.seconds:.1f} s)")
        return

    def say(tokens: list[int]) -> str:
        return f"{tokenizer.decode([tokens[at]])!r} ({tokens[at]})" if at < len(tokens) else "nothing"

    margin = "" if comparison.margin is None else f"; eager prefers its own by {comparison.margin:.3g} in logits"
    where = f"token {at + 1}: eager {say(comparison.expected)}, attnloom {say(got)}{margin}"
    console.line(f"{name:>5}  {console.style('DIFFERS', 'red')} at {where}")


def write_json(
    path: Path,
    *,
    about: dict[str, Any],
    answers: Sequence[Answer],
    steps: Sequence[Step],
    comparisons: Sequence[Comparison],
    tokenizer: Any,
) -> None:
    """Everything that was measured, for programs."""
    compared = {c.answer.request.name: c for c in comparisons}
    requests = []
    for answer in answers:
        name = answer.request.name
        requests.append(
            {
                "name": name,
                "prompt": answer.request.prompt.text,
                "wave": answer.request.prompt.wave + 1,
                "prompt_tokens": len(answer.request.tokens),
                "answer": text_of(answer, tokenizer),
                "tokens": answer.tokens,
                "times_s": [round(t, 4) for t in answer.times],
                "equals_eager": compared[name].differs_at is None if name in compared else None,
            }
        )
    record = {**about, "requests": requests, "steps": [asdict(step) for step in steps]}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
