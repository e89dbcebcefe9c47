"""Which config of an implementation is the quickest on a GPU: one class after another, each against the default."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attnloom.bench.case import Case, make_engine
from attnloom.bench.gpu import engine
from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.clock import Call, Clock
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.rounds import interleave, trial
from attnloom.errors import AttnLoomError
from attnloom.impl import tuning
from attnloom.impl.base import Config

LEAST_GAIN = 1.01
"""How many times as fast as the default a class must be to replace it."""

_FINALISTS = 3
_ROUNDS = 7

Seconds = Sequence[float]


class Classed(Protocol):
    """A config that is a row of classes, as those of `triton` and `gluon_sm90` are."""

    @property
    def classes(self) -> tuple[Any, ...]:
        """Ascending in tile_q."""


class Timing(Protocol):
    """What the search asks of the device."""

    def used(self, default: Any) -> Sequence[set[int]]:
        """Per case, the classes that have work under the default."""

    def quick(self, config: Any, case: int) -> float:
        """Seconds of a case; infinite for a config that fails or computes something else."""

    def careful(self, configs: Sequence[Any], case: int) -> Sequence[float]:
        """Seconds of a case with each config, measured in turns."""


@dataclass(frozen=True)
class Found:
    """A class's place and the config with the quickest one in it; gain: the default's time / its, per case."""

    place: int
    config: Any
    gains: Mapping[int, float]

    @property
    def gain(self) -> float:
        """The geometric mean over the cases."""
        return math.exp(statistics.fmean(map(math.log, self.gains.values())))


def search(default: Any, candidates: Sequence[Any], timing: Timing) -> list[Found]:
    """The best candidate of each class that some case uses, where it gains enough.

    candidates: the default with one class exchanged in each.
    """
    used = timing.used(default)
    found = []
    for place in range(len(default.classes)):
        cases = [case for case, classes in enumerate(used) if place in classes]
        mine = [one for one in candidates if _changed(default, one) == place]
        if cases and mine:
            best = _best(default, mine, cases, timing, place)
            if best is not None and best.gain >= LEAST_GAIN:
                found.append(best)
    return found


def combined(default: Any, found: Sequence[Found]) -> tuple[Any, ...]:
    """The default's classes with each one found in its place."""
    classes = list(default.classes)
    for one in found:
        classes[one.place] = one.config.classes[one.place]
    return tuple(classes)


def _best(default: Any, candidates: Sequence[Any], cases: Sequence[int], timing: Timing, place: int) -> Found | None:
    times = [[timing.quick(config, case) for case in cases] for config in candidates]
    scored = sorted((sum(map(math.log, row)), i) for i, row in enumerate(times) if all(map(math.isfinite, row)))
    finalists = [default, *(candidates[i] for _, i in scored[:_FINALISTS])]
    if len(finalists) == 1:
        return None
    careful = [timing.careful(finalists, case) for case in cases]
    every = [
        Found(place, one, {case: row[0] / row[i] for case, row in zip(cases, careful, strict=True)})
        for i, one in enumerate(finalists)
    ]
    return max(every[1:], key=lambda one: one.gain)


def _changed(default: Classed, other: Classed) -> int | None:
    """The place of the one class that differs; None for another number of classes."""
    if len(default.classes) != len(other.classes):
        return None
    places = [i for i, (a, b) in enumerate(zip(default.classes, other.classes, strict=True)) if a != b]
    return places[0] if len(places) == 1 else None


class DeviceTiming:
    """`Timing` of cases on a GPU, each checked against attention by hand. say: told what is tried."""

    def __init__(self, cases: Sequence[Case], implementation: str, clock: Clock, say: Callable[[str], None]) -> None:
        self._cases, self._name, self._clock, self._say = cases, implementation, clock, say
        self._batches: dict[int, DeviceBatch] = {}
        self.deadline = math.inf
        """`time.perf_counter` after which nothing new is tried."""

    def used(self, default: Config) -> list[set[int]]:
        """See `Timing`."""
        found = []
        for case in range(len(self._cases)):
            batch = self._batch(case)
            with tuning.trying(self._name, default):
                attn = make_engine(self._cases[case])
                attn.plan(batch.qo_indptr, batch.kv_format())
            found.append({i for i, work in enumerate(attn.current_plan.classes) if work.num_items})
        return found

    def quick(self, config: Any, case: int) -> float:
        """See `Timing`."""
        if time.perf_counter() > self.deadline:
            return math.inf
        seconds, words = math.inf, ""
        with tuning.trying(self._name, config):
            try:
                call = self._prepared(case)
                seconds = trial(call, self._clock.sample)
                words = f"{seconds * 1e6:.1f} us"
            except (AttnLoomError, RuntimeError) as error:
                words = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        self._say(f"  {self._cases[case].name}: {config.classes} {words}")
        return seconds

    def careful(self, configs: Sequence[Any], case: int) -> list[float]:
        """See `Timing`."""
        calls = {str(i): self._switched(config, case) for i, config in enumerate(configs)}
        seconds = interleave(calls, _ROUNDS, self._clock.sample)
        return [statistics.median(seconds[str(i)]) for i in range(len(configs))]

    def _switched(self, config: Any, case: int) -> Call:
        """A case's call under a config; captured, it needs the config no more."""
        with tuning.trying(self._name, config):
            return self._prepared(case)

    def _prepared(self, case: int) -> Call:
        """One call of a case as a CUDA graph. Raises WrongTile where it computes something else."""
        batch = self._batch(case)
        prepared = engine.prepare(batch)
        wrong = engine.wrong_rows(batch, prepared.rows(prepared.call()))
        if wrong is not None:
            raise WrongTile(wrong)
        return self._clock.capture(prepared.call)[0]

    def _batch(self, case: int) -> DeviceBatch:
        if case not in self._batches:
            self._batches[case] = DeviceBatch(GpuCase(self._cases[case]))
        return self._batches[case]


class WrongTile(RuntimeError):
    """A config computed something else."""


def described(found: Sequence[Found], cases: Sequence[Case]) -> Iterator[str]:
    """What each class gained where."""
    for one in found:
        where = "; ".join(f"{cases[case].name}: {gain:.3f} x" for case, gain in one.gains.items())
        yield f"{one.config.classes[one.place]}: {where}"
