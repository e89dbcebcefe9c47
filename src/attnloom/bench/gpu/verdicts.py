"""What a case reached of its targets."""

from __future__ import annotations

from collections.abc import Sequence

from attnloom.bench.gpu.case import PLAN_LIMIT, READ_CEILING, Target
from attnloom.bench.gpu.record import MEASURED, Entry, Verdict
from attnloom.bench.timing import Spread, spread
from attnloom.explain.text import duration


def verdict(target: Target, entries: Sequence[Entry], read_seconds: Sequence[float] = ()) -> Verdict:
    """The subject's ratio to the quickest measured peer that the target names; reason: why there is none.

    read_seconds: of the plain read, one entry a round, for targets that compare with it.
    """
    found = _verdict(target, entries, read_seconds)
    if target.alternative is None:
        return found
    other = _verdict(target.alternative, entries, read_seconds)
    return other if _reached(other) > _reached(found) else found


def unmeasured(target: Target, reason: str) -> Verdict:
    """The verdict of a case that was not measured."""
    return Verdict(
        peers=target.peers,
        at_least=target.at_least,
        label=target.label,
        subject=target.subject,
        geomean=target.geomean,
        reason=reason,
    )


def _verdict(target: Target, entries: Sequence[Entry], read_seconds: Sequence[float]) -> Verdict:
    subject = next((entry for entry in entries if entry.id == target.subject), None)
    if subject is None or not subject.seconds:
        why = "not in this case" if subject is None else _why(subject)
        return unmeasured(target, f"{target.subject}: {why}")
    against, ratio = _compare(target, subject, entries, read_seconds)
    if ratio is None:
        return unmeasured(target, against)
    return Verdict(
        target.peers,
        target.at_least,
        against,
        ratio,
        label=target.label,
        subject=target.subject,
        geomean=target.geomean,
    )


def _compare(
    target: Target, subject: Entry, entries: Sequence[Entry], read_seconds: Sequence[float]
) -> tuple[str, Spread | None]:
    """(what it was compared with, ratio), or (why not, None)."""
    if READ_CEILING in target.peers:
        ratios = [read / own for read, own in zip(read_seconds, subject.seconds, strict=True)]
        return READ_CEILING, spread(ratios)
    if PLAN_LIMIT in target.peers:
        if target.plan_seconds is None or not subject.plan_seconds:
            return "no plan was timed", None
        ratio = target.plan_seconds / subject.plan_seconds
        return f"{duration(subject.plan_seconds)} of {duration(target.plan_seconds)}", Spread(ratio, ratio, ratio)
    named = [entry for entry in entries if target.names(entry.id)]
    measured = [entry for entry in named if entry.seconds]
    if not measured:
        return "; ".join(f"{entry.id}: {_why(entry)}" for entry in named) or "no such peer in this run", None
    quickest = min(measured, key=lambda entry: entry.time.median)
    return quickest.id, quickest.ratio(subject)


def _why(entry: Entry) -> str:
    return entry.message if entry.status == MEASURED else f"{entry.status}: {entry.message}"


def _reached(found: Verdict) -> float:
    """Ratio as a part of what is asked for; below every other where none was measured."""
    return -1.0 if found.ratio is None else found.ratio.median / found.at_least
