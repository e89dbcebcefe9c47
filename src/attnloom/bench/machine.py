"""Facts of the machine: without them figures mean nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

import attnloom

# Instruction sets that decide how fast attention on a CPU can be, as /proc/cpuinfo spells them.
CPU_FEATURES = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_tile",
    "asimd", "sve", "bf16",
)  # fmt: skip
# Variables that make torch's kernels use fewer instructions than the CPU has.
_CAPABILITY_VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")


def facts(device: str) -> dict[str, Any]:
    """Where the figures were taken: without it they mean nothing."""
    found: dict[str, Any] = {
        "attnloom": attnloom.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        **{name: os.environ[name] for name in _CAPABILITY_VARIABLES if name in os.environ},
    }
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
    return found


def cpu_name() -> str:
    """The processor's model name, as well as the system tells."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Those of `CPU_FEATURES` that the processor has; empty where the system does not say."""
    flags = set((_cpuinfo().get("flags") or _cpuinfo().get("Features") or "").split())
    return [feature for feature in CPU_FEATURES if feature in flags]


def _cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
