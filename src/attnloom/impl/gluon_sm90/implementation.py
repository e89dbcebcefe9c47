"""`gluon_sm90` behind the contract of implementations."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence

import torch

from attnloom.impl import tuning
from attnloom.impl.base import Config, Implementation, LaunchTensors
from attnloom.impl.gluon_sm90.configs import ClassConfig, GluonSm90Config
from attnloom.impl.gluon_sm90.tables import HEAD_DIMS, config_of
from attnloom.impl.triton.implementation import interpreted
from attnloom.schedule.work import Plan
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant import Program

ARCH = 90
DTYPES = (torch.float16, torch.bfloat16)


class GluonSm90Implementation(Implementation):
    """FlashAttention-3's structure on Hopper: warps that copy, warpgroups that compute."""

    name = "gluon_sm90"

    def unavailable_reasons(self, target: Target) -> list[str]:
        """A GPU of compute capability 9.0 and Triton's compiler."""
        if importlib.util.find_spec("triton") is None:
            return ["the package triton is not installed"]
        if target.kind != "cuda":
            return [f"it runs on a Hopper GPU, and the device is {target.kind}"]
        if target.arch != ARCH:
            has = "is no NVIDIA GPU" if target.arch is None else f"has {target.arch / 10:.1f}"
            return [f"it needs compute capability 9.0 (Hopper), and the device {has}"]
        return ["it is compiled, and TRITON_INTERPRET is set"] if interpreted() else []

    def unsupported_reasons(self, spec: AttentionSpec, program: Program, target: Target) -> list[str]:
        """16-bit types, and head dims that shared memory and registers hold."""
        reasons = []
        if spec.dtype not in DTYPES:
            reasons.append(f"it computes in torch.float16 and torch.bfloat16, and dtype is {spec.dtype}")
        elif spec.kv_dtype != spec.dtype:
            reasons.append(f"k and v must have the type of q, {spec.dtype}, and kv_dtype is {spec.kv_dtype}")
        dims = {"head_dim": spec.head_dim_qk, "head_dim_vo": spec.head_dim_vo}
        for name, dim in dims.items():
            if dim not in HEAD_DIMS:
                reasons.append(f"its tiles take head dims {', '.join(map(str, HEAD_DIMS))}, and {name} is {dim}")
        return reasons

    def candidate_configs(self, spec: AttentionSpec, program: Program, target: Target) -> Sequence[Config]:
        """The table's row, then that row with one class exchanged for another that fits."""
        from attnloom.impl.gluon_sm90.candidates import candidates

        default = self.default_config(spec, program, target)
        return (default, *candidates(spec, default))

    def default_config(self, spec: AttentionSpec, program: Program, target: Target) -> GluonSm90Config:
        """What was tuned for the spec on the device, else the table's row."""
        tried = tuning.tried(self.name)
        if isinstance(tried, GluonSm90Config):
            return tried
        return _config_of(spec, target.name)

    def default_num_ctas(self, target: Target) -> int:
        """The SMs of the device; each class multiplies by the CTAs that an SM holds of it."""
        return target.num_sms

    def launch(self, plan: Plan, tensors: LaunchTensors) -> None:
        """See `launch.launch`."""
        from attnloom.impl.gluon_sm90.launch import launch

        launch(plan, tensors, self.default_config(tensors.spec, tensors.program, Target.of(tensors.q.device)))


@functools.lru_cache(maxsize=256)
def _config_of(spec: AttentionSpec, device: str) -> GluonSm90Config:
    tuned = tuning.classes_of(GluonSm90Implementation.name, spec, device)
    if tuned is not None:
        return GluonSm90Config(tuple(ClassConfig(**one) for one in tuned))
    found = config_of(spec.head_dim_qk, spec.head_dim_vo, spec.group_size)
    if found is None:
        raise RuntimeError(f"no tiles for {spec}: unsupported_reasons was not asked")
    return found
