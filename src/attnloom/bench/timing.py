"""Timing two things against each other on a machine that drifts: interleaved rounds, ratios per round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Call = Callable[[], object]
Clock = Callable[[Call, int], float]

MIN_ROUNDS = 7  # with fewer, quartiles say nothing

_SAMPLE_SECONDS = 0.03
_MOST_CALLS = 200


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median and interquartile range of at least two values.

    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def host_seconds(call: Call, calls: int) -> float:
    """Mean seconds of `calls` calls by the host's clock."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def calls_per_sample(call: Call, measure: Clock) -> int:
    """How many calls make one sample long enough to be timed; the first call warms up."""
    if measure(call, 1) > 10 * _SAMPLE_SECONDS:
        return 1
    return max(1, min(_MOST_CALLS, round(_SAMPLE_SECONDS / max(measure(call, 2), 1e-7))))


def quickest(calls: Sequence[Call], measure: Clock) -> int:
    """Index of the quickest of several ways to compute the same, each called a few times in turn."""
    long = max(measure(call, 1) for call in calls) > 10 * _SAMPLE_SECONDS
    turns = [[measure(call, 1) for call in calls] for _ in range(1 if long else 3)]
    best = [min(times) for times in zip(*turns, strict=True)]
    return best.index(min(best))


def interleave(ours: Call, peer: Call, rounds: int, measure: Clock) -> tuple[list[float], list[float]]:
    """Seconds of both in each round; who goes first alternates."""
    pair = (ours, peer)
    calls = [calls_per_sample(call, measure) for call in pair]
    seconds: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            seconds[which].append(measure(pair[which], calls[which]))
    return seconds
