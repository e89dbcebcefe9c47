"""`attnloom bench plan`: what a plan costs the host, and how good it is. No attention is computed."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

import attnloom as al
from attnloom.bench.machine import cpu_name
from attnloom.explain import report
from attnloom.explain.text import columns, duration

_QO_HEADS, _KV_HEADS, _HEAD_DIM, _PAGE_SIZE = 32, 8, 128, 16
_WARM_UP = 10
_SEED = 0


@dataclass(frozen=True)
class Case:
    """Lengths of one batch and how long its plan may take (None: no target)."""

    name: str
    qo_lens: np.ndarray
    kv_lens: np.ndarray
    target: float | None = None


@dataclass(frozen=True)
class Figures:
    """One case measured. seconds: of each `plan`; balance: greatest load of the CTAs / mean, by the cost model."""

    case: Case
    seconds: Sequence[float]
    items: int
    splits: int
    balance: float

    @property
    def median(self) -> float:
        """Median seconds of a plan."""
        return statistics.median(self.seconds)


def cases() -> list[Case]:
    """Decode batches of U(2048, 4096) tokens, a prefill, and decode beside prefill."""
    rng = np.random.default_rng(_SEED)
    found = []
    for batch, target in ((1, 100e-6), (64, 200e-6), (256, None), (1024, 600e-6)):
        kv_lens = rng.integers(2048, 4097, batch)
        found.append(Case(f"decode {batch} x U(2048, 4096)", np.ones(batch, np.int64), kv_lens, target))
    long = np.full(64, 2048)
    found.append(Case("prefill 64 x 2048", long, long, 1e-3))
    qo_lens = np.concatenate([np.ones(64, np.int64), [2048, 512]])
    found.append(Case("64 decodes, prefill of 2048 and 512", qo_lens, np.concatenate([kv_lens[:64], [2048, 4096]])))
    return found


def measure(case: Case, *, num_ctas: int, planner: str, repeats: int) -> Figures:
    """Plan a case `repeats` times, pages permuted, lengths and page table on the host, causal."""
    attn = al.BatchAttention(
        num_qo_heads=_QO_HEADS,
        num_kv_heads=_KV_HEADS,
        head_dim=_HEAD_DIM,
        dtype=torch.bfloat16,
        page_size=_PAGE_SIZE,
        variant=al.variants.causal(),
        device="cpu",
        planner=planner,  # type: ignore[arg-type]
    )
    arrays = _host_arrays(case)

    def plan() -> None:
        qo_indptr, kv_indptr, kv_indices, last = arrays
        attn.plan(qo_indptr, al.PagedKV(kv_indptr, kv_indices, last, page_size=_PAGE_SIZE), num_ctas=num_ctas)

    seconds = _time(plan, repeats)
    current = attn.current_plan
    panels = [p for p in report(current, attn.spec).panels if p.span > 0]
    return Figures(
        case=case,
        seconds=seconds,
        items=sum(part.num_items for part in current.classes),
        splits=current.merges.entries.shape[0],
        balance=max((p.span / p.even for p in panels), default=1.0),
    )


def _host_arrays(case: Case) -> tuple[torch.Tensor, ...]:
    """qo_indptr, kv_indptr, kv_indices, kv_last_page_len as int32."""
    pages = -(-case.kv_lens // _PAGE_SIZE)
    order = np.random.default_rng(_SEED).permutation(int(pages.sum()))
    arrays = (
        np.concatenate([[0], np.cumsum(case.qo_lens)]),
        np.concatenate([[0], np.cumsum(pages)]),
        order,
        case.kv_lens - (pages - 1) * _PAGE_SIZE,
    )
    return tuple(torch.from_numpy(a.astype(np.int32)) for a in arrays)


def _time(call: Callable[[], None], repeats: int) -> list[float]:
    for _ in range(_WARM_UP):
        call()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--num-ctas", type=int, default=132, metavar="N", help="workers per tile class; default: 132")
    parser.add_argument("--planner", choices=("stream", "algorithm1"), default="stream", help="default: stream")
    parser.add_argument("--repeats", type=int, default=200, metavar="N", help="plans timed per batch; default: 200")


def run(args: argparse.Namespace) -> int:
    """Measure every case on one thread and print the table."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures = [
            measure(case, num_ctas=args.num_ctas, planner=args.planner, repeats=max(2, args.repeats))
            for case in cases()
        ]
    finally:
        torch.set_num_threads(threads)
    print(
        f"BatchAttention.plan on one core of {cpu_name()}: {args.planner} planner, {args.num_ctas} CTAs, causal,\n"
        f"page {_PAGE_SIZE}, {_QO_HEADS}/{_KV_HEADS} heads, implementation cpu's tile classes, lengths and page table "
        "on the host, after warm-up.\n"
    )
    print(table(figures))
    print(
        "\nsplits: q tiles whose keys are divided (for all kv heads at once where an item stands for all of them).\n"
        "balance: greatest load of the CTAs / their mean, by the cost model, in the tile class where it is worst."
    )
    return 0


def table(figures: Sequence[Figures]) -> str:
    """One line a case."""
    rows = [["batch", "median", "quickest", "target", "items", "splits", "balance"]]
    for f in figures:
        target = (
            ""
            if f.case.target is None
            else f"{duration(f.case.target)} {'met' if f.median <= f.case.target else 'MISSED'}"
        )
        rows.append(
            [
                f.case.name,
                duration(f.median),
                duration(min(f.seconds)),
                target,
                f"{f.items:,}",
                f"{f.splits:,}",
                f"{f.balance:.3f}",
            ]
        )
    return columns(rows)
