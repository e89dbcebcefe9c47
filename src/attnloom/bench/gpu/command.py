"""`attnloom bench --device cuda`: the cases one after another, within a budget of time; JSON after each."""

from __future__ import annotations

import argparse
import datetime
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attnloom.bench import machine
from attnloom.bench.gpu import charts, record, table
from attnloom.bench.gpu.case import ATTAINABLE_FLOPS, GpuCase
from attnloom.bench.gpu.clock import CudaClock
from attnloom.bench.gpu.measure import Bench, WrongResult
from attnloom.bench.gpu.peer import Peer
from attnloom.bench.gpu.peers import all_peers
from attnloom.bench.gpu.record import FAILED, NOT_RUN, UNSUPPORTED, WRONG, CaseRecord, Report
from attnloom.bench.gpu.verdicts import unmeasured
from attnloom.errors import InvalidArgument, MissingDependency, NotYetSupported, UnsupportedSpec

FAILED_CASE = 1

_VERSIONS = {"triton": "triton", "flashinfer": "flashinfer-python", "fa3": "fa3-fwd"}


def choose_peers(wanted: Sequence[str], skipped: Sequence[str]) -> tuple[Peer, ...]:
    """Peers by id or start of an id ("flashinfer" is all of them); "all" or "none" alone.

    Raises InvalidArgument for a name that means no peer.
    """
    known = all_peers()
    for name in (*wanted, *skipped):
        if name not in ("all", "none") and not any(_means(name, peer) for peer in known):
            raise InvalidArgument(
                name="peer",
                given=name,
                supported="all, none, " + ", ".join(peer.id for peer in known),
                fix="The start of an id, such as flashinfer, means all that start so.",
            )
    chosen = [p for p in known if "all" in wanted or any(_means(name, p) for name in wanted)]
    return tuple(p for p in chosen if not any(_means(name, p) for name in skipped))


def _means(name: str, peer: Peer) -> bool:
    return peer.id == name or peer.id.startswith(f"{name}-")


@dataclass
class Budget:
    """Seconds that a run may take; `clock` counts from any start."""

    seconds: float | None
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._begin, self._longest = self.clock(), 0.0
        self.cases_left = 1

    @property
    def spent(self) -> float:
        """Seconds since it was made."""
        return self.clock() - self._begin

    def allows_another(self) -> bool:
        """Whether a case as long as the longest so far still fits."""
        return self.seconds is None or self.spent + self._longest <= self.seconds

    def share(self) -> float | None:
        """Seconds that each of the cases left may take on average, or None without a limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.spent) / max(1, self.cases_left)

    def note(self, seconds: float) -> None:
        """A case took that long."""
        self._longest = max(self._longest, seconds)


def run(args: argparse.Namespace, cases: Sequence[GpuCase]) -> int:
    """Exit status: 0, or 1 when AttnLoom failed or was wrong in a case (then nothing of that case is timed)."""
    budget = Budget(args.seconds)
    index = torch.device(args.device).index
    device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
    torch.cuda.set_device(device)
    peers = choose_peers(args.peers, args.skip_peer)
    missing = {peer.id: reason for peer in peers if (reason := peer.unavailable_reason()) is not None}
    for name, reason in missing.items():
        print(f"unavailable: {name}: {reason}", flush=True)
    build([peer for peer in peers if peer.id not in missing], cases)
    report = Report(facts(args.device), protocol(args.rounds), missing, ())
    print(", ".join(f"{name} {value}" for name, value in report.machine.items()), flush=True)
    path = args.json or args.output_dir / f"{args.preset or 'gpu'}.json"
    bench = Bench(CudaClock(device), peers, missing, args.rounds)
    bench.allowance = budget.share
    try:
        for done in measure_all(bench.measure, cases, budget):
            report = replace(report, cases=(*report.cases, done))
            record.write(path, report)
    finally:  # what an interrupted run has measured is shown too
        finish(report, path, args.chart or path.with_suffix(".png"))
    return FAILED_CASE if any(map(_failed, report.cases)) else 0


def _failed(done: CaseRecord) -> bool:
    """AttnLoom failed or was wrong, in the case itself or beside it."""
    return done.status in (FAILED, WRONG) or any(entry.status == WRONG for entry in done.entries)


def measure_all(measure: Callable[[GpuCase], CaseRecord], cases: Sequence[GpuCase], budget: Budget) -> Any:
    """Yield a record for each case, also for those that failed or for which the time is up."""
    for i, case in enumerate(cases):
        budget.cases_left = len(cases) - i
        section = f"{case.section}: " if case.section else ""
        where = f"[{i + 1}/{len(cases)}, {budget.spent:.0f} s]"
        print(f"{where} {section}{case.name}", end=" ... ", file=sys.stderr, flush=True)
        if not budget.allows_another():
            done = _empty(case, NOT_RUN, f"the budget of {budget.seconds:g} s would not have sufficed")
        else:
            done = _measure(measure, case, budget)
        print(progress(done), file=sys.stderr, flush=True)
        yield done


def _measure(measure: Callable[[GpuCase], CaseRecord], case: GpuCase, budget: Budget) -> CaseRecord:
    begin = budget.spent
    try:
        return measure(case)
    except WrongResult as error:
        return _empty(case, WRONG, str(error))
    except (UnsupportedSpec, NotYetSupported) as error:
        return _empty(case, UNSUPPORTED, " ".join(str(error).split()))
    except Exception as error:  # noqa: BLE001  # the other cases still run; the status says that this one failed
        return _empty(case, FAILED, f"{type(error).__name__}: {error}")
    finally:
        budget.note(budget.spent - begin)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _empty(case: GpuCase, status: str, message: str) -> CaseRecord:
    reason = status if status == WRONG else f"{status}: {message}"
    verdicts = tuple(unmeasured(target, reason) for target in case.targets)
    return CaseRecord(case.name, asdict(case.case), status, message, verdicts=verdicts, section=case.section)


def progress(done: CaseRecord) -> str:
    """The case in a line: how fast ours is beside each peer that was measured."""
    if done.status != record.MEASURED:
        return f"{done.status}: {done.message}"
    ratios = [f"{entry.ratio(done.ours).median:.2f} x {entry.id}" for entry in done.peers if entry.seconds]
    failed = [
        f"{entry.id} {entry.status}: {entry.message}"
        for entry in done.peers
        if entry.status in (FAILED, WRONG, UNSUPPORTED)
    ]
    return ", ".join(ratios or ["no peer"]) + f" ({done.wall_seconds:.1f} s)" + "".join(f"\n    {f}" for f in failed)


def build(peers: Sequence[Peer], cases: Sequence[GpuCase]) -> None:
    """Compile what peers compile, side by side, before anything is timed.

    A failure is left to the peer's first use, which reports it.
    """
    jobs: dict[Callable[[Sequence[Any]], None], list[Any]] = {}
    begin = time.perf_counter()
    try:
        for peer in peers:
            if (job := peer.build([case for case in cases if case.wants(peer.id)])) is not None:
                jobs.setdefault(job.compile, []).extend(job.modules)
        for compile_all, modules in jobs.items():
            compile_all(modules)
    except Exception as error:  # noqa: BLE001  # a peer's failure is shown, the run goes on
        print(f"could not build beforehand: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    if jobs:
        print(f"peers' modules ready after {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)


def facts(device: str) -> dict[str, Any]:
    """The machine, the versions of peers, and the day."""
    import importlib.metadata

    found = machine.facts(device)
    for name, package in _VERSIONS.items():
        try:
            found[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | {"date": datetime.datetime.now(tz=datetime.UTC).date().isoformat()}


def protocol(rounds: int) -> dict[str, Any]:
    """How the figures were taken, for whoever reads the file."""
    return {
        "rounds": rounds,
        "ratio": "peer's time / AttnLoom's in the same round; median and quartiles over rounds",
        "L2": "512 MiB are written before each timed call, outside the timed part",
        "prefill": "one eager call between two events",
        "decode": "one replay of a CUDA graph of one call between two events, for AttnLoom and peers alike; so are "
        "appends and mixed batches",
        "checks": "AttnLoom's rows by hand in fp32, some of every request, and all beside FA2 where it takes them",
        "geomean": "of the cells' median ratios",
        "plan": "not part of any time; its own median on the host stands beside",
        "bytes": "K and V; q and out too where a request has more than one query row",
        "flops": "4 * head_dim * visible pairs * query heads",
        "roofline": f"max(bytes / read ceiling, flops / {ATTAINABLE_FLOPS:g})",
        "settings": "every setting of a peer is checked and tried; the quickest is measured",
    }


def finish(report: Report, json_path: Path, chart_path: Path) -> None:
    """Print the tables and draw the chart of what there is."""
    if not report.cases:
        return
    print(f"\n{table.render(report)}\n\nratio: the peer's time / AttnLoom's, above 1 AttnLoom is faster.")
    written = [json_path]
    if any(done.status == record.MEASURED for done in report.cases):
        try:
            written += charts.draw(report, chart_path)
        except MissingDependency as error:  # the figures are there, and `bench draw` makes the chart elsewhere
            print(f"no chart: {error}")
    print("wrote", ", ".join(map(str, written)), flush=True)
