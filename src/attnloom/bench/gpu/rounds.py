"""Interleaved rounds of any number of contenders, and the choice among settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attnloom.bench.gpu.clock import Call

Sample = Callable[[Call, int], float]

_SAMPLE_SECONDS = 0.02
_FEWEST_CALLS, _MOST_CALLS = 3, 50
_TRIAL_CALLS = 3


def calls_per_sample(seconds: float) -> int:
    """How many calls of that length make one sample: 20 ms, 3 to 50 calls.

    >>> calls_per_sample(1e-3), calls_per_sample(1.0), calls_per_sample(0.0)
    (20, 3, 50)
    """
    return max(_FEWEST_CALLS, min(_MOST_CALLS, round(_SAMPLE_SECONDS / max(seconds, 1e-7))))


def trial(call: Call, sample: Sample) -> float:
    """Seconds by a short sample, after one call to warm up."""
    sample(call, 1)
    return sample(call, _TRIAL_CALLS)


def interleave(calls: Mapping[str, Call], rounds: int, sample: Sample) -> dict[str, tuple[float, ...]]:
    """Seconds of every call in each round; every other round runs in reverse order."""
    counts = {name: calls_per_sample(trial(call, sample)) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds):
        for name in calls if i % 2 == 0 else reversed(list(calls)):
            seconds[name].append(sample(calls[name], counts[name]))
    return {name: tuple(values) for name, values in seconds.items()}
