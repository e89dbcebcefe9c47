"""The device that will run the kernels, as plain facts."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Target:
    """What an implementation may know of a device.

    kind: "cpu" or "cuda" (torch's name; AMD GPUs are "cuda" there too); arch: compute capability as
    ``10 * major + minor``, None on CPU and AMD; num_sms: multiprocessors, on CPU the cores that this
    process may use; shared_memory: bytes a CTA may have, 0 on CPU; name: for people.
    """

    kind: str
    arch: int | None
    num_sms: int
    shared_memory: int
    name: str

    @property
    def arch_name(self) -> str:
        """Such as "cpu" or "sm90"; "gpu" where there is no compute capability."""
        if self.kind == "cpu":
            return "cpu"
        return "gpu" if self.arch is None else f"sm{self.arch}"

    @staticmethod
    def of(device: torch.device) -> Target:
        """Facts of `device`; initialises CUDA only for a CUDA device."""
        if device.type == "cuda":
            index = device.index if device.index is not None else torch.cuda.current_device()
            return _cuda_target(index)
        return _cpu_target(device.type)


@functools.lru_cache(maxsize=8)
def _cpu_target(kind: str) -> Target:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return Target(kind=kind, arch=None, num_sms=cores, shared_memory=0, name=platform.machine())


@functools.lru_cache(maxsize=64)
def _cuda_target(index: int) -> Target:
    facts = torch.cuda.get_device_properties(index)
    arch = None if torch.version.hip else 10 * facts.major + facts.minor
    shared = int(getattr(facts, "shared_memory_per_block_optin", 0))
    return Target("cuda", arch, int(facts.multi_processor_count), shared, str(facts.name))
