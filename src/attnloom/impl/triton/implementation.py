"""`triton` behind the contract of implementations."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

from attnloom.impl.base import Config, Implementation, LaunchTensors
from attnloom.impl.triton.configs import ClassConfig, TritonConfig
from attnloom.schedule.work import Plan
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant import Program

HOPPER = TritonConfig(
    (
        ClassConfig(16, 64, num_warps=2, stages=3, ctas_per_sm=4),
        ClassConfig(128, 64, num_warps=8, stages=2, ctas_per_sm=2, maxnreg=128),
    )
)
INTERPRETED = TritonConfig((ClassConfig(16, 32, 1, 1), ClassConfig(32, 32, 1, 1)))


def interpreted() -> bool:
    """Whether Triton interprets kernels on the host (``TRITON_INTERPRET=1``)."""
    return os.environ.get("TRITON_INTERPRET", "0") in ("1", "true", "on")


class TritonImplementation(Implementation):
    """Any GPU that Triton serves."""

    name = "triton"

    def unavailable_reasons(self, target: Target) -> list[str]:
        """A GPU (or the interpreter) and the package triton are needed."""
        if importlib.util.find_spec("triton") is None:
            return ["the package triton is not installed"]
        if target.kind == "cpu" and not interpreted():
            return ["it runs on a GPU, and the device is cpu"]
        return []

    def unsupported_reasons(self, spec: AttentionSpec, program: Program, target: Target) -> list[str]:
        """It can compute every spec and variant."""
        return []

    def candidate_configs(self, spec: AttentionSpec, program: Program, target: Target) -> Sequence[Config]:
        """There is one."""
        return (self.default_config(spec, program, target),)

    def default_config(self, spec: AttentionSpec, program: Program, target: Target) -> Config:
        """The one."""
        return INTERPRETED if interpreted() else HOPPER

    def default_num_ctas(self, target: Target) -> int:
        """The SMs of the device."""
        return target.num_sms

    def launch(self, plan: Plan, tensors: LaunchTensors) -> None:
        """See `launch.launch`."""
        from attnloom.impl.triton.launch import launch  # noqa: PLC0415 - triton is imported when it runs

        config = INTERPRETED if interpreted() else HOPPER
        launch(plan, tensors, config.classes, interpreted=interpreted())
