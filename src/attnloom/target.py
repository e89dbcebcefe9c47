"""The device that will run the kernels, as plain facts."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass

import torch

from attnloom.errors import InvalidArgument

# Bytes of shared memory that a CTA may have, by compute capability (CUDA C Programming Guide).
_SHARED_MEMORY = {
    **dict.fromkeys((80, 87), 166912),
    **dict.fromkeys((86, 89, 120, 121), 101376),
    **dict.fromkeys((90, 100, 103, 110), 232448),
}


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

    @staticmethod
    def of_arch(name: str) -> Target:
        """An NVIDIA GPU that need not be here, by its architecture, such as "sm90"; num_sms is 0: it is not known.

        Raises InvalidArgument for a name that is none.
        """
        digits = name.removeprefix("sm").removeprefix("_").removesuffix("a")
        arch = int(digits) if digits.isdecimal() else None
        if arch not in _SHARED_MEMORY:
            known = ", ".join(f"sm{one}" for one in sorted(_SHARED_MEMORY))
            raise InvalidArgument(
                name="arch", given=name, supported=known, fix="See `attnloom info` for this machine's."
            )
        return Target("cuda", arch, 0, _SHARED_MEMORY[arch], f"sm{arch}")


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
