"""Named lists of cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from attnloom.bench.case import Case

_CPU_THREADS = 2

# (mode, dtype, page size, least ratio to torch) on two cores without AVX-512.
_CPU_LINES = (
    ("decode", "fp32", None, 1.0),
    ("decode", "fp32", 16, 0.5),
    ("decode", "bf16", 16, 1.0),
    ("prefill", "fp32", 16, 0.9),
    ("prefill", "bf16", 16, 0.75),
)
_CPU_WORKLOADS = ("uniform_16x1024", "zipf_16x1024")


def cpu_figures() -> tuple[Case, ...]:
    """The figures that the `cpu` implementation answers for, with their targets, on two threads."""
    return tuple(
        Case(
            workload=workload,
            mode=mode,
            dtype=dtype,
            page_size=page_size,
            implementation="cpu",
            num_ctas=_CPU_THREADS,
            target=target,
        )
        for mode, dtype, page_size, target in _CPU_LINES
        for workload in _CPU_WORKLOADS
    )


@dataclass(frozen=True)
class Preset:
    """Cases and the torch threads that they are meant for."""

    cases: Callable[[], tuple[Case, ...]]
    threads: int


PRESETS: Mapping[str, Preset] = MappingProxyType({"cpu-figures": Preset(cpu_figures, _CPU_THREADS)})
