"""The contract that every implementation fulfils, and the tensors that one launch gets.

An implementation is stateless: `dispatch` asks it why it cannot serve a case, the API asks it for its tile
classes and hands each launch a `Plan` and a `LaunchTensors`. Nothing else passes between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from attnloom.schedule.work import Plan, TileClass
    from attnloom.spec import AttentionSpec
    from attnloom.target import Target
    from attnloom.variant import Program


@dataclass(frozen=True)
class LaunchTensors:
    """The tensors of one launch; the API has checked them against the spec and the plan.

    q          [rows, num_qo_heads, head_dim_qk], rows >= total_q of the plan; rows past it are padding
    k          [num_pages, page_size, num_kv_heads, head_dim_qk], a strided view whatever the cache's layout;
               ragged KV is [total_kv, 1, num_kv_heads, head_dim_qk]
    v          [num_pages, page_size, num_kv_heads, head_dim_vo], strides of its own
    out        [rows, num_qo_heads, head_dim_vo], in the spec's dtype; fp32 where raw_state
    lse        fp32 [rows, num_qo_heads], natural log, or None
    workspace  uint8 [workspace_bytes] or None where the plan has no split
    k_scale    what an element of k stands for, in units of its number: a number, or fp32 on the device, one (0-d) or
    v_scale    one a kv head [num_kv_heads], any stride; likewise of v. Read only where the spec has an fp8 cache
    params     every operand of the variant by name: defaults, plan's and run's values resolved
    q_pos      int32 [total_q] or None (bottom-right alignment)
    kv_pos     int32 [total_kv] or None (index in the request's KV timeline)
    raw_state  True: out and lse are the state of pure softmax, no sink and no output_transform

    Only the last dimension of q, k, v and out is contiguous. Rows of q, out and lse past the plan's total_q
    and slots of k and v that no request owns may hold anything, NaN included, and are neither used nor written.
    """

    spec: AttentionSpec
    program: Program
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None = None
    workspace: torch.Tensor | None = None
    k_scale: torch.Tensor | float = 1.0
    v_scale: torch.Tensor | float = 1.0
    params: Mapping[str, torch.Tensor | int | float | bool] = field(default_factory=dict)
    q_pos: torch.Tensor | None = None
    kv_pos: torch.Tensor | None = None
    raw_state: bool = False


def by_kv_head(scale: torch.Tensor | float) -> torch.Tensor | float:
    """A scale of `LaunchTensors` to multiply ``[num_kv_heads or fewer, x, y]`` by, its own heads all there."""
    if isinstance(scale, (int, float)) or not scale.ndim:
        return scale
    return scale[:, None, None]


class Config(ABC):
    """How to compute a spec: tiles, stages, warps. Subclasses are frozen dataclasses that validate themselves."""

    @abstractmethod
    def tile_classes(self, num_ctas: int) -> tuple[TileClass, ...]:
        """The tile classes to plan for, ascending in tile_q, when num_ctas workers run."""


class Implementation(ABC):
    """One way to run a Plan. `dispatch` keeps one instance of each."""

    name: ClassVar[str]

    @abstractmethod
    def unsupported_reasons(self, spec: AttentionSpec, program: Program, target: Target) -> list[str]:
        """Why this implementation cannot compute the case, one sentence a reason; empty: it can."""

    @abstractmethod
    def candidate_configs(self, spec: AttentionSpec, program: Program, target: Target) -> Sequence[Config]:
        """The configs that a tuner may try; each is valid for the case."""

    @abstractmethod
    def default_config(self, spec: AttentionSpec, program: Program, target: Target) -> Config:
        """The config used when nothing is tuned."""

    @abstractmethod
    def default_num_ctas(self, target: Target) -> int:
        """Workers of a launch where the caller does not say."""

    @abstractmethod
    def launch(self, plan: Plan, tensors: LaunchTensors) -> None:
        """Run the plan: write out (and lse) of rows below ``plan.qo_indptr[-1]`` and nothing else."""

    def unavailable_reasons(self, target: Target) -> list[str]:
        """Why it cannot run on the target whatever the case; empty: it can."""
        if target.kind in ("cpu", "cuda"):
            return []
        return [f"it runs on cpu and cuda devices, and the device is {target.kind}"]
