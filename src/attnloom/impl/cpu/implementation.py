"""The `cpu` implementation: its tile classes, and the way from a Plan to a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attnloom.errors import NotYetSupported
from attnloom.impl.base import Config, Implementation, LaunchTensors
from attnloom.impl.cpu.arrange import arrange
from attnloom.impl.cpu.launch import Launch
from attnloom.schedule.work import Plan, TileClass
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant import Program


@dataclass(frozen=True)
class CpuConfig(Config):
    """Decode-like and prefill-like tiles."""

    def tile_classes(self, num_ctas: int) -> tuple[TileClass, ...]:
        """(16, 64) and (128, 128)."""
        return (TileClass(16, 64, num_ctas), TileClass(128, 128, num_ctas))


class CpuImplementation(Implementation):
    """Runs on the host, in fp32 whatever the storage type, on as many threads as torch may use."""

    name = "cpu"

    def unavailable_reasons(self, target: Target) -> list[str]:
        """Host tensors only."""
        return [] if target.kind == "cpu" else [f"it runs on the host, and the device is {target.kind}"]

    def unsupported_reasons(self, spec: AttentionSpec, program: Program, target: Target) -> list[str]:
        """It can compute every spec and variant."""
        return []

    def candidate_configs(self, spec: AttentionSpec, program: Program, target: Target) -> Sequence[Config]:
        """There is one."""
        return (CpuConfig(),)

    def default_config(self, spec: AttentionSpec, program: Program, target: Target) -> Config:
        """The one."""
        return CpuConfig()

    def default_num_ctas(self, target: Target) -> int:
        """As many as torch may use threads."""
        return torch.get_num_threads()

    def launch(self, plan: Plan, tensors: LaunchTensors) -> None:
        """See `Implementation.launch`. Raises NotYetSupported for a composed or a sparse plan."""
        if len(plan.levels) != 1 or plan.row_maps is not None or plan.levels[0].positions is not None:
            raise NotYetSupported(feature="a plan of several levels or of sparse pages on cpu", fix="Plan one level.")
        arrangement = arrange(plan, torch.get_num_threads())
        with torch.no_grad(), torch.autocast("cpu", enabled=False):  # autocast would round the products
            Launch(plan, tensors, arrangement).run()
