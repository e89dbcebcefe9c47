"""The figures asked of one H200 beside its peers: prefill, decode, appends, fp8 caches, guards and host costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from attnloom.bench.case import Case
from attnloom.bench.gpu.case import PLAN_LIMIT, READ_CEILING, Beside, GpuCase, Target
from attnloom.bench.gpu.guards import guards
from attnloom.bench.gpu.record import OURS

Cases = tuple[GpuCase, ...]

PREFILL, BATCHES, DIMS, DECODE = "prefill", "batches", "head dims", "decode"
APPEND, FP8, HOST = "append", "fp8", "host"

_PROMPTS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
_PROMPT_TOKENS = 16384
_PAGES = {16: 0.97, 64: 0.97, 1: 0.85}
_BATCHES = {"16x1024": 1.25, "4x8192": 1.18}
_DIM_PROMPTS = ("constant_16x1024", "constant_4x4096", "constant_1x16384")
_LARGE = (
    *(("constant_64x4096", 8), ("uniform_64x4096", 8), ("constant_256x1024", 8), ("uniform_256x1024", 8)),
    *(("constant_64x8192", 8), ("constant_64x4096", 32), ("uniform_64x4096", 32)),
    *(("constant_256x1024", 32), ("uniform_256x1024", 32)),
)
_SMALL = (("constant_1x16384", 8), ("constant_16x1024", 8), ("constant_1x16384", 32), ("constant_16x1024", 32))
_EVERY_PEER = ("fa3", "flashinfer", "torch", "flex")
_FP8_LONG = (("constant_64x4096", 8), ("constant_64x8192", 8), ("constant_64x4096", 32))
_FP8_OTHERS = (*_SMALL, ("constant_256x1024", 8), ("zipf_64x4096", 8))
_APPEND_BATCH, _MOST_ROWS, _WIDE_ROWS = 32, 8, 64
_PLAN_LIMITS = {1: 50e-6, 64: 80e-6, 256: 100e-6, 1024: 150e-6}


def _case(workload: str, mode: str, *, heads: tuple[int, int] = (32, 8), **changes: Any) -> Case:
    fields: dict[str, Any] = {"dtype": "bf16", "page_size": 16, "device": "cuda"} | changes
    return Case(workload=workload, mode=mode, heads=heads, **fields)


def _prompts(*, fa3: bool, pages: bool) -> Cases:
    """Contiguous prompts of 16k tokens and more beside FA3, beside ours on pages, or both."""
    targets = [Target(("fa3",), 0.95, "prefill, contiguous / FA3", geomean=1.0)] if fa3 else []
    beside = []
    for size, mark in _PAGES.items() if pages else ():
        beside.append(Beside(f"ours-page-{size}", f"AttnLoom, page {size}", {"page_size": size}))
        targets.append(Target((OURS,), mark, f"prefill, page {size} / contiguous", subject=f"ours-page-{size}"))
    return tuple(
        GpuCase(
            _case(
                f"constant_{max(1, _PROMPT_TOKENS // length)}x{length}",
                "prefill",
                heads=(32, kv_heads),
                page_size=None,
                causal=causal,
            ),
            tuple(targets),
            PREFILL,
            tuple(beside),
            ("fa3",) if fa3 else (),
        )
        for causal, kv_heads, length in itertools.product((True, False), (8, 32), reversed(_PROMPTS))
    )


def prefill() -> Cases:
    """Contiguous K and V, causal and not, 512 to 32k, 8 and 32 kv heads."""
    return _prompts(fa3=True, pages=False)


def paged() -> Cases:
    """The same on pages of 16, 64 and 1 beside contiguous K and V."""
    return _prompts(fa3=False, pages=True)


def batches() -> Cases:
    """The paper's constant, uniform and skewed batches on pages of 16."""
    return tuple(
        GpuCase(
            _case(f"{kind}_{size}", "prefill", heads=(32, kv_heads)),
            (Target(("flashinfer-paged-fa3",), mark, f"prefill {size}, page 16 / FlashInfer paged fa3"),),
            BATCHES,
            peers=None if kv_heads == 8 else ("fa3", "flashinfer-paged-fa3", "flashinfer-ragged-fa3"),
        )
        for kv_heads, (size, mark), kind in itertools.product(
            (8, 32), _BATCHES.items(), ("constant", "uniform", "zipf")
        )
    )


def dims() -> Cases:
    """Head dims 64 and 256 beside FA3; 80, 96 and 112 beside our 128."""
    beside = tuple(Beside(f"ours-dim-{dim}", f"AttnLoom, head_dim {dim}", {"head_dim": dim}) for dim in (80, 96, 112))
    other = tuple(Target((OURS,), 0.9, "head_dim 80, 96, 112 / 128", subject=each.id) for each in beside)
    found = []
    for workload, causal in itertools.product(_DIM_PROMPTS, (True, False)):
        for dim in (64, 256):
            case = _case(workload, "prefill", page_size=None, causal=causal, head_dim=dim)
            found.append(GpuCase(case, (Target(("fa3",), 0.95, f"head_dim {dim} / FA3"),), DIMS, peers=("fa3",)))
        found.append(GpuCase(_case(workload, "prefill", page_size=None, causal=causal), other, DIMS, beside, ()))
    return tuple(found)


def decode() -> Cases:
    """Pages of 16: 256 MB of K and V and more, skewed lengths, small batches; beside every peer."""
    large = (
        Target((READ_CEILING,), 0.95, "decode >= 256 MB / read ceiling"),
        Target(_EVERY_PEER, 1.0, "decode >= 256 MB / best peer"),
    )
    small = (Target(_EVERY_PEER, 1.0, "decode, small / best peer"),)
    skewed = {
        8: Target(("flashinfer",), 1.6, "decode zipf, 8 kv heads / FlashInfer"),
        32: Target(
            ("flashinfer",),
            1.4,
            "decode zipf, 32 kv heads / FlashInfer, or ceiling",
            alternative=Target((READ_CEILING,), 0.92, "decode zipf, 32 kv heads / FlashInfer, or ceiling"),
        ),
    }
    wanted = [(*each, large) for each in _LARGE] + [("zipf_64x4096", heads, (t,)) for heads, t in skewed.items()]
    wanted += [(*each, small) for each in _SMALL]
    return tuple(
        GpuCase(
            _case(workload, "decode", heads=(32, kv_heads)),
            targets,
            DECODE,
            peers=None if kv_heads == 8 else ("fa3", "flashinfer"),
        )
        for workload, kv_heads, targets in wanted
    )


def append() -> Cases:
    """32 requests that bring 2 to 8 rows each, beside one row."""
    found = []
    for group, kv_len in itertools.product((4, 8), (4096, 8192, 16384, 32768)):
        beside, targets = [], []
        for rows in range(2, _MOST_ROWS + 1):
            changes = {"mode": "append", "qo_lens": (rows,) * _APPEND_BATCH}
            beside.append(Beside(f"ours-rows-{rows}", f"AttnLoom, {rows} rows", changes))
            most, words = (1.25, "64 packed rows") if rows * group == _WIDE_ROWS else (1.15, "2 to 8 rows")
            targets.append(Target((OURS,), 1 / most, f"append, {words} / 1 row", subject=beside[-1].id))
        case = _case(f"constant_{_APPEND_BATCH}x{kv_len}", "decode", heads=(32, 32 // group))
        found.append(GpuCase(case, tuple(targets), APPEND, tuple(beside), ()))
    return tuple(found)


def fp8() -> Cases:
    """Decode with K and V as fp8 beside bf16."""
    beside = (Beside("ours-fp8", "AttnLoom, fp8 KV", {"kv_dtype": "fp8_e4m3"}),)
    long = Target((OURS,), 1.6, "fp8 KV, 64 x 4096 and longer / bf16", subject="ours-fp8")
    never = Target((OURS,), 1 / 1.03, "fp8 KV, any length / bf16", subject="ours-fp8")
    wanted = [(*each, (long, never)) for each in _FP8_LONG] + [(*each, (never,)) for each in _FP8_OTHERS]
    return tuple(
        GpuCase(_case(workload, "decode", heads=(32, kv_heads)), targets, FP8, beside, ())
        for workload, kv_heads, targets in wanted
    )


def host() -> Cases:
    """What `plan` and `run` cost the host, for 1 to 1024 requests."""
    return tuple(
        GpuCase(
            _case(f"uniform_{batch}x4096", "decode"),
            (Target((PLAN_LIMIT,), 1.0, f"plan, {batch} requests / {limit * 1e6:.0f} µs", plan_seconds=limit),),
            HOST,
            peers=(),
        )
        for batch, limit in _PLAN_LIMITS.items()
    )


def everything() -> Cases:
    """A case of each section in turn, so that a run cut short has something of every figure."""
    return tuple(case for turn in _turns() for case in turn if case is not None)


def smoke() -> Cases:
    """One case of each section."""
    return tuple(case for case in _turns()[0] if case is not None)


def _turns() -> list[tuple[GpuCase | None, ...]]:
    """Every section's first case, then every section's second, ...."""
    sections = (_prompts(fa3=True, pages=True), batches(), dims(), decode(), append(), fp8(), guards(), host())
    return list(itertools.zip_longest(*sections))


PRESETS: Mapping[str, Callable[[], Cases]] = MappingProxyType(
    {
        "issue-4": everything,
        "issue-4-smoke": smoke,
        "issue-4-prefill": prefill,
        "issue-4-paged": paged,
        "issue-4-batches": batches,
        "issue-4-dims": dims,
        "issue-4-decode": decode,
        "issue-4-append": append,
        "issue-4-fp8": fp8,
        "issue-4-guards": guards,
        "issue-4-host": host,
    }
)
