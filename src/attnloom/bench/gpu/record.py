"""What a run found, as plain data: written as JSON after every case, read back by table and chart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnloom.bench.timing import Spread, spread
from attnloom.errors import InvalidArgument

SCHEMA = "attnloom-bench-gpu/2"
OURS = "attnloom"

MEASURED, FAILED, UNAVAILABLE, UNFIT, NOT_RUN = "measured", "failed", "unavailable", "not for it", "not run"
WRONG, UNSUPPORTED = "WRONG", "unsupported"


@dataclass(frozen=True)
class Entry:
    """One contender in one case.

    status: MEASURED, FAILED (message says how), UNAVAILABLE on this machine, UNFIT for the case, WRONG (its result) or
    UNSUPPORTED by this version of AttnLoom (message: why);
    setting: the quickest of `tried`, whose values are seconds or what went wrong; seconds: per call, one entry a
    round; host_seconds: to issue one call; plan_seconds: its plan, None where it has none; counted_bytes, flops: of
    its own work, None where that is the case's.
    """

    id: str
    engine: str
    status: str
    message: str = ""
    setting: str = ""
    tried: Mapping[str, float | str] = field(default_factory=dict)
    seconds: tuple[float, ...] = ()
    host_seconds: float | None = None
    plan_seconds: float | None = None
    counted_bytes: int | None = None
    flops: int | None = None

    @property
    def time(self) -> Spread:
        """Seconds per call."""
        return spread(self.seconds)

    def ratio(self, ours: Entry) -> Spread:
        """Its time / ours, of each round: 2 means AttnLoom is twice as fast."""
        return spread([theirs / own for theirs, own in zip(self.seconds, ours.seconds, strict=True)])


@dataclass(frozen=True)
class Verdict:
    """A target and what was reached: ratio to the quickest of its peers; met is None where none was measured.

    label, subject, geomean: as of the target; reason: why there is no ratio.
    """

    peers: tuple[str, ...]
    at_least: float
    against: str = ""
    ratio: Spread | None = None
    label: str = ""
    subject: str = OURS
    geomean: float | None = None
    reason: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median of the per-round ratios reaches the target."""
        return None if self.ratio is None else self.ratio.median >= self.at_least


@dataclass(frozen=True)
class CaseRecord:
    """One case. status: MEASURED, WRONG (our result), FAILED (ours raised), UNSUPPORTED or NOT_RUN.

    entries: ours first; section: the part of the run that it belongs to.
    """

    name: str
    case: Mapping[str, Any]
    status: str
    message: str = ""
    counted_bytes: int = 0
    flops: int = 0
    read_seconds: tuple[float, ...] = ()
    roofline_seconds: float | None = None
    wall_seconds: float = 0.0
    entries: tuple[Entry, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    section: str = ""

    @property
    def decodes(self) -> bool:
        """One query row a request."""
        return bool(self.case["mode"] == "decode")

    @property
    def ours(self) -> Entry:
        """AttnLoom's entry; only for a measured case."""
        return next(entry for entry in self.entries if entry.id == OURS)

    @property
    def peers(self) -> tuple[Entry, ...]:
        """All other entries."""
        return tuple(entry for entry in self.entries if entry.id != OURS)

    def bytes_of(self, entry: Entry) -> int:
        """What the entry reads, and writes where the case counts that."""
        return self.counted_bytes if entry.counted_bytes is None else entry.counted_bytes

    def flops_of(self, entry: Entry) -> int:
        """Floating point operations of the entry."""
        return self.flops if entry.flops is None else entry.flops

    @property
    def read_bytes_per_second(self) -> float:
        """What a plain read of as many bytes reached in the same rounds."""
        return self.counted_bytes / spread(self.read_seconds).median


@dataclass(frozen=True)
class Report:
    """A whole run. missing: id -> reason, for peers that cannot run on this machine."""

    machine: Mapping[str, Any]
    protocol: Mapping[str, Any]
    missing: Mapping[str, str]
    cases: tuple[CaseRecord, ...]


def to_json(report: Report) -> str:
    """The report, derived figures included for other readers; times in seconds."""
    document = {"schema": SCHEMA, **asdict(report)}
    for record, entry in zip(report.cases, document["cases"], strict=True):
        if record.status == MEASURED:
            _add_derived(record, entry)
        for verdict, plain in zip(record.verdicts, entry["verdicts"], strict=True):
            plain["met"] = verdict.met
    return json.dumps(document, indent=1) + "\n"


def _add_derived(record: CaseRecord, plain: dict[str, Any]) -> None:
    plain["read_bytes_per_second"] = record.read_bytes_per_second
    for entry, each in zip(record.entries, plain["entries"], strict=True):
        if entry.status == MEASURED:
            median = entry.time.median
            each["ratio"] = asdict(entry.ratio(record.ours))
            each["bytes_per_second"] = record.bytes_of(entry) / median
            each["flops_per_second"] = record.flops_of(entry) / median


def from_json(text: str, source: str) -> Report:
    """The report that `to_json` wrote; raises InvalidArgument for anything else (source: its name in the message)."""
    try:
        document = json.loads(text)
        if document["schema"] != SCHEMA:
            raise KeyError("schema")
        cases = tuple(_case(plain) for plain in document["cases"])
        return Report(document["machine"], document["protocol"], document["missing"], cases)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(
            name=source,
            given=f"{type(error).__name__}: {error}",
            supported=f"JSON of schema {SCHEMA}",
            fix="`attnloom bench --device cuda` writes it.",
        ) from error


def _case(plain: Mapping[str, Any]) -> CaseRecord:
    known = {name: plain[name] for name in CaseRecord.__dataclass_fields__}
    known["read_seconds"] = tuple(known["read_seconds"])
    known["entries"] = tuple(_entry(each) for each in plain["entries"])
    known["verdicts"] = tuple(_verdict(each) for each in plain["verdicts"])
    return CaseRecord(**known)


def _entry(plain: Mapping[str, Any]) -> Entry:
    known = {name: plain[name] for name in Entry.__dataclass_fields__}
    return Entry(**{**known, "seconds": tuple(known["seconds"])})


def _verdict(plain: Mapping[str, Any]) -> Verdict:
    ratio = None if plain["ratio"] is None else Spread(**plain["ratio"])
    known = {name: plain[name] for name in Verdict.__dataclass_fields__}
    return Verdict(**{**known, "peers": tuple(plain["peers"]), "ratio": ratio})


def write(path: Path, report: Report) -> None:
    """Replace `path`: whoever looks while the run goes on finds a whole document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(to_json(report), encoding="utf-8")
    partial.replace(path)
