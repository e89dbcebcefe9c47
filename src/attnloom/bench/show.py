"""Results as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnloom.bench.attention import LAYERS, Result
from attnloom.explain.text import columns, duration, si


def table(results: Sequence[Result]) -> str:
    """One line a case; the ratio is torch's time over ours, median of rounds with quartiles."""
    head = ["case", "implementation", "AttnLoom", "rate", "torch SDPA", "ratio", "quartiles"]
    targets = any(result.case.target is not None for result in results)
    rows = [[*head, *(["target", ""] if targets else []), "plan", f"plan/{LAYERS} + run"]]
    rows += [_row(result, targets) for result in results]
    return columns(rows)


def _row(result: Result, targets: bool) -> list[str]:
    ratio, run = result.ratio, result.ours.median
    target = result.case.target
    verdict = {True: "met", False: "MISSED", None: ""}[result.meets_target]
    return [
        result.case.name,
        result.implementation,
        duration(run),
        rate(result, run),
        duration(result.peer.median),
        times(ratio.median),
        f"{times(ratio.low)}–{times(ratio.high)}",
        *(["" if target is None else f"{target:.2f}", verdict] if targets else []),
        duration(result.plan_seconds),
        duration(result.plan_seconds / LAYERS + run),
    ]


def times(ratio: float) -> str:
    """A ratio: two decimals, one more below a tenth."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"


def rate(result: Result, seconds: float) -> str:
    """What bounds the case, per second: bytes of K and V for decode, flops otherwise."""
    case = result.case
    return si(case.kv_bytes / seconds, "B/s") if case.mode == "decode" else si(case.flops / seconds, "FLOP/s")


def as_json(results: Sequence[Result], facts: Mapping[str, Any]) -> str:
    """Everything measured, each round included; times in seconds."""
    entries = [_entry(result) for result in results]
    return json.dumps({"machine": dict(facts), "results": entries}, indent=1) + "\n"


def _entry(result: Result) -> dict[str, Any]:
    case = result.case
    return {
        "name": case.name,
        "case": dataclasses.asdict(case),
        "implementation": result.implementation,
        "num_ctas": result.num_ctas,
        "kv_bytes": case.kv_bytes,
        "qo_bytes": case.qo_bytes,
        "flops": case.flops,
        "seconds": result.seconds,
        "sdpa_seconds": result.peer_seconds,
        "sdpa_layout": result.peer_layout,
        "plan_seconds": result.plan_seconds,
        "ratio": dataclasses.asdict(result.ratio),
        "meets_target": result.meets_target,
    }


def write(folder: Path, stem: str, documents: Mapping[str, str]) -> list[Path]:
    """Write each document as `folder`/`stem`.suffix; the folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, text in documents.items():
        path = folder / f"{stem}.{suffix}"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths
