"""Time one case: ours is checked first, each setting of each peer against ours; the quickest meet in rounds."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from attnloom.bench.gpu import engine, whole
from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.clock import Call, Clock, reads
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.own import Own
from attnloom.bench.gpu.peer import Peer, Prepared, Setting
from attnloom.bench.gpu.record import (
    FAILED,
    MEASURED,
    OURS,
    UNAVAILABLE,
    UNFIT,
    UNSUPPORTED,
    WRONG,
    CaseRecord,
    Entry,
)
from attnloom.bench.gpu.rounds import interleave, sample_seconds, trial
from attnloom.bench.gpu.verdicts import verdict
from attnloom.errors import NotYetSupported, UnsupportedSpec

_PLANS = 22
_LEAST_SHARE = 0.5  # of a case's time that its rounds get, whatever the rest took: kernels compile once
_READ = "read: "
_WRONG = "wrong result"


class WrongResult(Exception):
    """A contender computed something else."""


@dataclass(frozen=True)
class Runnable:
    """A setting that was right: what to time, and how it was prepared."""

    setting: str
    call: Call
    prepared: Prepared
    tried: Mapping[str, float | str]


class Bench:
    """The clock, the peers and the rounds that every case of a run has in common."""

    def __init__(self, clock: Clock, peers: Sequence[Peer], missing: Mapping[str, str], rounds: int) -> None:
        self._clock, self._peers, self._missing, self._rounds = clock, peers, missing, rounds
        self.allowance: Callable[[], float | None] = _unlimited
        """Seconds that the case about to be measured may take, or None."""

    @torch.no_grad()
    def measure(self, gpu_case: GpuCase) -> CaseRecord:
        """One case. Raises WrongResult, or what AttnLoom raised; a peer's failure stands in its entry."""
        begin, allowed = time.perf_counter(), self.allowance()
        batch = DeviceBatch(gpu_case)
        prepared = engine.prepare(batch)
        expected = prepared.rows(prepared.call())
        if (reason := whole.wrong(batch, expected)) is not None:
            raise WrongResult(f"AttnLoom: {reason}")
        call = self._timed(gpu_case, prepared, expected.clone())
        runnables = {OURS: Runnable(f"implementation {prepared.label}", call, prepared, {})}
        entries = {OURS: Entry(OURS, "AttnLoom", MEASURED)}
        for peer in (*(Own(beside) for beside in gpu_case.beside), *self._peers):
            entries[peer.id], found = self._enter(peer, batch, expected)
            if found is not None:
                runnables[peer.id] = found
        left = None if allowed is None else max(allowed - (time.perf_counter() - begin), _LEAST_SHARE * allowed)
        seconds = self._rounds_of(gpu_case, batch.device, runnables, left)
        filled = tuple(self._fill(entry, runnables.get(name), seconds) for name, entry in entries.items())
        record = _record(gpu_case, filled, seconds)
        del runnables, prepared, call, batch, expected
        gc.collect()  # engines and wrappers hold workspaces in cycles
        return replace(record, wall_seconds=time.perf_counter() - begin)

    def _enter(self, peer: Peer, batch: DeviceBatch, expected: torch.Tensor) -> tuple[Entry, Runnable | None]:
        """The peer's entry, and its quickest setting where one is right."""
        entry = Entry(peer.id, peer.engine, MEASURED)
        if peer.id in self._missing:
            return replace(entry, status=UNAVAILABLE, message=self._missing[peer.id]), None
        if not isinstance(peer, Own) and not batch.gpu_case.wants(peer.id):
            return replace(entry, status=UNFIT, message="not asked for in this case"), None
        if (reason := peer.unfit_reason(batch.gpu_case)) is not None:
            return replace(entry, status=UNFIT, message=reason), None
        try:
            settings = peer.settings(batch)
        except Exception as error:  # noqa: BLE001  # whatever a peer raises is its entry's message
            return replace(entry, status=FAILED, message=_words(error)), None
        best: Runnable | None = None
        tried: dict[str, float | str] = {}
        for setting in settings:
            outcome, runnable = self._try(setting, batch, expected)
            tried[setting.name] = outcome
            if runnable is not None and (best is None or outcome == min(_numbers(tried))):
                best = runnable
        if best is None:
            message = "; ".join(f"{name}: {outcome}".removeprefix(": ") for name, outcome in tried.items())
            status = _own_status(message) if isinstance(peer, Own) else FAILED
            return replace(entry, status=status, message=message or "no setting to try", tried=tried), None
        return entry, replace(best, tried=tried)

    def _try(self, setting: Setting, batch: DeviceBatch, expected: torch.Tensor) -> tuple[float | str, Runnable | None]:
        """Seconds of a short sample, or what went wrong."""
        try:
            prepared = setting.prepare()
            if (reason := _check(prepared, prepared.call(), expected)) is not None:
                return f"{_WRONG}: {reason}", None
            call = self._timed(batch.gpu_case, prepared, expected)
            name = setting.name or f"implementation {prepared.label}"
            return trial(call, self._clock.sample), Runnable(name, call, prepared, {})
        except WrongResult as error:
            return f"{_WRONG}: {error}", None
        except (UnsupportedSpec, NotYetSupported) as error:
            return f"{UNSUPPORTED}: {_words(error)}", None
        except Exception as error:  # noqa: BLE001  # as above
            return _words(error), None

    def _timed(self, gpu_case: GpuCase, prepared: Prepared, expected: torch.Tensor) -> Call:
        """The call itself, or a graph of it, whose replay must write the same once more."""
        if not gpu_case.replayed:
            return prepared.call
        replay, result = self._clock.capture(prepared.call)
        for written in result if isinstance(result, list) else [result]:
            written.fill_(torch.nan)
        replay()
        if (reason := _check(prepared, result, expected)) is not None:
            raise WrongResult(f"replayed as a graph: {reason}")
        return replay

    def _rounds_of(
        self, gpu_case: GpuCase, device: torch.device, runnables: Mapping[str, Runnable], left: float | None
    ) -> dict[str, tuple[float, ...]]:
        """Seconds a round of every contender and of the plain reads; left: seconds that they may take together."""
        plain = {_READ + name: call for name, call in reads(gpu_case.counted_bytes, device).items()}
        calls = {name: runnable.call for name, runnable in runnables.items()} | plain
        per_sample = sample_seconds(left, self._rounds * len(calls))
        return interleave(calls, self._rounds, self._clock.sample, per_sample)

    def _fill(self, entry: Entry, runnable: Runnable | None, seconds: Mapping[str, tuple[float, ...]]) -> Entry:
        if runnable is None:
            return entry
        plan, work = runnable.prepared.plan, runnable.prepared.work
        return replace(
            entry,
            counted_bytes=None if work is None else work.counted_bytes,
            flops=None if work is None else work.case.flops,
            setting=runnable.setting,
            tried=runnable.tried,
            seconds=seconds[entry.id],
            host_seconds=self._clock.host_seconds(runnable.prepared.call),
            plan_seconds=None if plan is None else self._plan_seconds(plan),
        )

    def _plan_seconds(self, plan: Callable[[], object]) -> float:
        """Median of warm plans on the host; each finds an idle device."""
        taken = []
        for _ in range(_PLANS):
            self._clock.synchronize()
            begin = time.perf_counter()
            plan()
            taken.append(time.perf_counter() - begin)
        self._clock.synchronize()
        return statistics.median(taken[2:])


def _record(gpu_case: GpuCase, entries: tuple[Entry, ...], seconds: Mapping[str, tuple[float, ...]]) -> CaseRecord:
    plain = [values for name, values in seconds.items() if name.startswith(_READ)]
    read_seconds = min(plain, key=statistics.median)
    rate = gpu_case.counted_bytes / statistics.median(read_seconds)
    return CaseRecord(
        name=gpu_case.name,
        case=asdict(gpu_case.case),
        status=MEASURED,
        counted_bytes=gpu_case.counted_bytes,
        flops=gpu_case.case.flops,
        read_seconds=read_seconds,
        roofline_seconds=gpu_case.roofline(rate),
        entries=entries,
        verdicts=tuple(verdict(target, entries, read_seconds) for target in gpu_case.targets),
        section=gpu_case.section,
    )


def _check(prepared: Prepared, result: Any, expected: torch.Tensor) -> str | None:
    """What is wrong with a contender's result, or None."""
    rows = prepared.rows(result)
    return engine.differs(rows, expected) if prepared.check is None else prepared.check(rows)


def _own_status(message: str) -> str:
    """Of AttnLoom on another case: a wrong result and what it does not do yet are told from other failures."""
    if _WRONG in message:
        return WRONG
    return UNSUPPORTED if message.startswith(UNSUPPORTED) else FAILED


def _unlimited() -> None:
    return None


def _numbers(tried: Mapping[str, float | str]) -> list[float]:
    return [outcome for outcome in tried.values() if not isinstance(outcome, str)]


def _words(error: BaseException) -> str:
    """The error in one line."""
    text: Any = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
