"""Interleaved rounds of any number of contenders, and the choice among settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attnloom.bench.gpu.clock import Call

Sample = Callable[[Call, int], float]

_SAMPLE_SECONDS = 0.02
_SHORTEST_SAMPLE = 0.003
_FEWEST_CALLS, _MOST_CALLS = 3, 50
_TRIAL_CALLS = 3
_SHARE = 0.8  # of the time left for a case; the rest is for plans and what else is timed after the rounds


def calls_per_sample(seconds: float, sample: float = _SAMPLE_SECONDS) -> int:
    """How many calls of that length make one sample: 20 ms, 3 to 50 calls; in proportion fewer for shorter ones.

    >>> calls_per_sample(1e-3), calls_per_sample(1.0), calls_per_sample(0.0)
    (20, 3, 50)
    >>> calls_per_sample(1e-3, 0.01), calls_per_sample(0.0, 0.01)
    (10, 25)
    """
    most = round(_MOST_CALLS * sample / _SAMPLE_SECONDS)
    return max(_FEWEST_CALLS, min(most, round(sample / max(seconds, 1e-7))))


def sample_seconds(left: float | None, samples: int) -> float:
    """Seconds of a sample where `samples` of them have `left` seconds (None: as long as is worth while).

    >>> sample_seconds(None, 70), sample_seconds(0.0, 70), sample_seconds(0.5, 64)
    (0.02, 0.003, 0.00625)
    """
    if left is None:
        return _SAMPLE_SECONDS
    return min(_SAMPLE_SECONDS, max(_SHORTEST_SAMPLE, _SHARE * left / samples))


def trial(call: Call, sample: Sample) -> float:
    """Seconds by a short sample, after one call to warm up."""
    sample(call, 1)
    return sample(call, _TRIAL_CALLS)


def interleave(
    calls: Mapping[str, Call], rounds: int, sample: Sample, length: float = _SAMPLE_SECONDS
) -> dict[str, tuple[float, ...]]:
    """Seconds of every call in each round; every other round runs in reverse order. length: seconds of a sample."""
    counts = {name: calls_per_sample(trial(call, sample), length) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds):
        for name in calls if i % 2 == 0 else reversed(list(calls)):
            seconds[name].append(sample(calls[name], counts[name]))
    return {name: tuple(values) for name, values in seconds.items()}
