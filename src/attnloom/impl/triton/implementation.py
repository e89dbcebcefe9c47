"""`triton` behind the contract of implementations."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence

from attnloom.impl import tuning
from attnloom.impl.base import Config, Implementation, LaunchTensors
from attnloom.impl.triton.candidates import candidates
from attnloom.impl.triton.configs import INTERPRETED, ClassConfig, TritonConfig
from attnloom.impl.triton.tables import config_of, family_of
from attnloom.schedule.work import Plan
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant import Program

_OLDEST_ARCH = 80


def interpreted() -> bool:
    """Whether Triton interprets kernels on the host (``TRITON_INTERPRET=1``)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")


class TritonImplementation(Implementation):
    """FlashAttention-2 tiles on any GPU that Triton serves, and on Triton's interpreter."""

    name = "triton"

    def unavailable_reasons(self, target: Target) -> list[str]:
        """A GPU of compute capability 8.0 or more (or AMD, or the interpreter) and the package triton."""
        if importlib.util.find_spec("triton") is None:
            return ["the package triton is not installed"]
        if target.kind == "cuda":
            old = target.arch is not None and target.arch < _OLDEST_ARCH
            return [f"it needs compute capability 8.0, and the device has {target.arch}"] if old else []
        if target.kind == "cpu" and interpreted():
            return []
        return [f"it runs on a GPU, and the device is {target.kind}"]

    def unsupported_reasons(self, spec: AttentionSpec, program: Program, target: Target) -> list[str]:
        """The tiles of the target's family must fit the shared memory of a CTA."""
        if target.kind == "cpu":
            return []
        family = family_of(target.arch)
        needed = config_of(spec, family).shared_memory(spec, wgmma=family.wgmma)
        if needed <= target.shared_memory:
            return []
        dims = f"{spec.head_dim_qk} and {spec.head_dim_vo} in {spec.dtype}"
        limit = f"a CTA of {target.name} ({family.name}) has {target.shared_memory}"
        return [f"its tiles for head dims {dims} take {needed} bytes of shared memory, and {limit}"]

    def candidate_configs(self, spec: AttentionSpec, program: Program, target: Target) -> Sequence[Config]:
        """The table's row, then that row with one class exchanged for any other tile that fits."""
        default = self.default_config(spec, program, target)
        return (default,) if target.kind == "cpu" else (default, *candidates(spec, default, target))

    def default_config(self, spec: AttentionSpec, program: Program, target: Target) -> TritonConfig:
        """What was tuned for the spec on the device, else the table's row."""
        tried = tuning.tried(self.name)
        if isinstance(tried, TritonConfig):
            return tried
        return INTERPRETED if target.kind == "cpu" else _config_of(spec, target)

    def default_num_ctas(self, target: Target) -> int:
        """The SMs of the device; each class multiplies by the CTAs that an SM holds of it."""
        return target.num_sms

    def launch(self, plan: Plan, tensors: LaunchTensors) -> None:
        """See `launch.launch`."""
        from attnloom.impl.triton.launch import launch

        config = self.default_config(tensors.spec, tensors.program, Target.of(tensors.q.device))
        launch(plan, tensors, config.classes)


@functools.lru_cache(maxsize=256)
def _config_of(spec: AttentionSpec, target: Target) -> TritonConfig:
    tuned = tuning.classes_of(TritonImplementation.name, spec, target.name)
    if tuned is not None:
        return TritonConfig(tuple(ClassConfig(**one) for one in tuned))
    return config_of(spec, family_of(target.arch))
