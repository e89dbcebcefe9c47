"""The kernels of a spec before there is a batch: what a first `run` will ask for, from shapes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from attnloom.compile.request import Request
from attnloom.impl.base import Config, LaunchTensors
from attnloom.impl.triton import requests
from attnloom.impl.triton.configs import ClassConfig, TritonConfig
from attnloom.schedule.work import ITEM_FIELDS, MERGE_FIELDS, SEGMENT_FIELDS, ClassPlan, MergeList, PageView, Plan
from attnloom.schedule.workspace import workspace_bytes
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant import Param, Program

_ROWS = 16


@dataclass(frozen=True)
class Shape:
    """A launch's tensors as far as kernels depend on them; everything is on the meta device and holds nothing.

    k, v: caches as the contract of implementations has them, ``[num_pages, page_size, num_kv_heads, D]`` views;
    paged: whether a page table leads to them; with_lse: whether lse is written; scales: those of an fp8
    cache are tensors, not numbers.
    """

    k: torch.Tensor
    v: torch.Tensor
    paged: bool
    with_lse: bool = False
    scales: bool = False


def wanted(
    spec: AttentionSpec, program: Program, target: Target, config: TritonConfig, shape: Shape
) -> Iterator[tuple[str, Request]]:
    """(what it is, request) of each kernel: the attention of every tile class, and the merge."""
    plan = plan_of(spec, config, shape)
    tensors = tensors_of(spec, program, plan, shape)
    triple = ("cuda", target.arch, 32)
    for index, one in enumerate(config.classes):
        yield f"attention {_words(one)}", requests.attention_request(plan, tensors, index, (one, triple))
    yield "merge", requests.merge_request(plan, tensors, triple)


def _words(config: ClassConfig) -> str:
    return f"{config.tile_q} x {config.tile_kv}"


def _meta(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def plan_of(spec: AttentionSpec, config: Config, shape: Shape) -> Plan:
    """A plan of one request, as far as kernels depend on it."""
    classes = tuple(
        ClassPlan(
            tile=tile,
            heads_per_item=spec.num_kv_heads,
            items=_meta(1, len(ITEM_FIELDS)),
            item_segments=_meta(1, 2),
            segments=_meta(1, len(SEGMENT_FIELDS)),
            work_indptr=_meta(tile.num_ctas + 1),
        )
        for tile in config.tile_classes(1)
    )
    pages = _meta(1) if shape.paged else None
    return Plan(
        batch=1,
        total_q=_ROWS,
        total_kv=1,
        num_qo_heads=spec.num_qo_heads,
        num_kv_heads=spec.num_kv_heads,
        qo_indptr=_meta(2),
        kv_indptr=_meta(2, dtype=torch.int64),
        levels=(PageView(pages, _meta(1, dtype=torch.int64), _meta(1), shape.k.shape[1]),),
        level_indptr=(0, 1),
        classes=classes,
        merges=MergeList(_meta(1, len(MERGE_FIELDS)), _meta(2), _meta(1, 2)),
        row_maps=None,
        deterministic=False,
        has_q_pos=False,
        has_kv_pos=False,
    )


def tensors_of(spec: AttentionSpec, program: Program, plan: Plan, shape: Shape) -> LaunchTensors:
    """The tensors of a launch with caches in one piece and default positions."""
    space = workspace_bytes([work.tile for work in plan.classes], spec.head_dim_vo)
    return LaunchTensors(
        spec=spec,
        program=program,
        q=_meta(_ROWS, spec.num_qo_heads, spec.head_dim_qk, dtype=spec.dtype),
        k=shape.k,
        v=shape.v,
        out=_meta(_ROWS, spec.num_qo_heads, spec.head_dim_vo, dtype=spec.dtype),
        lse=_meta(_ROWS, spec.num_qo_heads, dtype=torch.float32) if shape.with_lse else None,
        workspace=_meta(space, dtype=torch.uint8),
        k_scale=_meta(spec.num_kv_heads, dtype=torch.float32) if shape.scales else 1.0,
        v_scale=_meta(spec.num_kv_heads, dtype=torch.float32) if shape.scales else 1.0,
        params={name: _operand(param) for name, param in program.params.items()},
    )


def _operand(param: Param) -> torch.Tensor | float:
    """A tensor, or for a scalar (unless its default is a tensor) a number: its type follows from the declaration."""
    if param.ndim or isinstance(param.default, torch.Tensor):
        return _meta(*[2] * param.ndim, dtype=param.dtype)
    return 1.0
