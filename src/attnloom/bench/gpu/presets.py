"""The GPU's named lists of cases: prefill, decode, and all of them with the figures that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from attnloom.bench.case import Case
from attnloom.bench.gpu import issue4
from attnloom.bench.gpu.case import GpuCase, Target

_PREFILL_CONSTANT = ("constant_16x1024", "constant_8x2048", "constant_4x4096", "constant_2x8192", "constant_1x16384")
_PREFILL_RAGGED = ("uniform_16x1024", "zipf_16x1024")
_DECODE = ("constant_64x4096", "uniform_64x4096", "constant_256x1024", "uniform_256x1024")
_SKEWED = "zipf_64x4096"

_CONSTANT_TARGETS = (Target(("torch-fa2",), 1.2), Target(("flashinfer-paged-fa2",), 1.2))
_RAGGED_TARGETS = (Target(("flashinfer-paged-fa2",), 1.3),)
_DECODE_TARGETS = (Target(("flashinfer",), 0.95),)
_SKEWED_TARGETS = {8: (Target(("flashinfer",), 1.5),), 32: (Target(("flashinfer",), 1.25),)}
_PAGE_TARGETS = (Target(("attnloom-page-16",), 0.9),)


def prefill() -> tuple[GpuCase, ...]:
    """Causal prefill of 16k tokens: constant lengths from 1k to 16k, uniform and skewed ones."""
    return (
        *(_case(name, "prefill", _CONSTANT_TARGETS) for name in _PREFILL_CONSTANT),
        *(_case(name, "prefill", _RAGGED_TARGETS) for name in _PREFILL_RAGGED),
    )


def decode() -> tuple[GpuCase, ...]:
    """Decode of 256k tokens: constant, uniform and skewed lengths, pages of 16 and of 1."""
    return (
        *(_case(name, "decode", _DECODE_TARGETS) for name in _DECODE),
        *(_case(_SKEWED, "decode", targets, kv_heads=heads) for heads, targets in _SKEWED_TARGETS.items()),
        _case("constant_64x4096", "decode", _PAGE_TARGETS, page_size=1),
        _case(_SKEWED, "decode", _PAGE_TARGETS, page_size=1),
        _case("constant_4x4096", "prefill", _PAGE_TARGETS, page_size=1),
    )


def figures() -> tuple[GpuCase, ...]:
    """Everything that the `triton` implementation answers for on one H200, with its targets."""
    return decode() + prefill()


def _case(workload: str, mode: str, targets: tuple[Target, ...], *, kv_heads: int = 8, page_size: int = 16) -> GpuCase:
    case = Case(workload=workload, mode=mode, dtype="bf16", page_size=page_size, heads=(32, kv_heads), device="cuda")
    return GpuCase(case, targets)


GPU_PRESETS: Mapping[str, Callable[[], tuple[GpuCase, ...]]] = MappingProxyType(
    {"gpu-prefill": prefill, "gpu-decode": decode, "issue-3": figures, **issue4.PRESETS}
)
