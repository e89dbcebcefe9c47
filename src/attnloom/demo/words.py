"""Small pieces of sentences about steps, pages and requests."""

from __future__ import annotations

from collections.abc import Sequence

# names that a list gives before it counts the rest, and runs of numbers before it leaves some out
_NAMES = 5
_RUNS = 8


def listed(noun: str, numbers: Sequence[int]) -> str:
    """`steps 1, 3–5, 9` for step and [1, 3, 4, 5, 9], ascending; `step 1` for one. The middle of a long list is …."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    if len(texts) > _RUNS:
        texts[_RUNS - 1 : -1] = ["…"]
    return f"{noun}{'' if len(numbers) == 1 else 's'} {', '.join(texts)}"


def names(requests: Sequence[str]) -> str:
    """`r1 r2 r3`; after the fifth, `and 4 more`."""
    more = len(requests) - _NAMES
    return " ".join(requests[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def does(verb: str, requests: Sequence[str]) -> str:
    """`r1 r2 join`, `r1 joins`."""
    return f"{names(requests)} {verb}{'s' if len(requests) == 1 else ''}"
