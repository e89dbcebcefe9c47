"""From a Plan and its tensors to kernel launches."""

from __future__ import annotations

import math
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from attnloom.compile.emitted import module_of
from attnloom.impl.base import LaunchTensors
from attnloom.impl.triton.configs import ClassConfig
from attnloom.kernels.triton.attention import attention_kernel
from attnloom.kernels.triton.config import KernelConfig
from attnloom.kernels.triton.merge import merge_kernel
from attnloom.schedule.work import Plan
from attnloom.schedule.workspace import layout


def launch(plan: Plan, t: LaunchTensors, configs: tuple[ClassConfig, ...], *, interpreted: bool) -> None:
    """One attention launch per class that has items, then one merge per class that was split."""
    functions = module_of(t.program)
    operands = _operands(t)
    shared = _Shared(plan, t)
    for index, (work, config) in enumerate(zip(plan.classes, configs, strict=True)):
        if not work.num_items:
            continue
        cfg = kernel_config(plan, t, config, interpreted=interpreted)
        attention_kernel[(work.tile.num_ctas,)](
            (t.q, t.q.stride(0), t.q.stride(1)),
            shared.k,
            shared.v,
            shared.out,
            shared.lse,
            shared.parts[index],
            (work.items, work.item_segments, work.segments, work.work_indptr),
            shared.sequences,
            shared.positions,
            operands,
            t.spec.sm_scale,
            plan.levels[0].page_size,
            work.heads_per_item,
            LOGITS=getattr(functions, "logits_transform", None),
            MASK=getattr(functions, "logits_mask", None),
            SINK=getattr(functions, "sink", None),
            OUTPUT=getattr(functions, "output_transform", None),
            cfg=cfg,
            **config.options(),
        )
    _merge(plan, t, configs, shared, functions, operands, interpreted)


def _merge(plan, t, configs, shared, functions, operands, interpreted):
    entries = plan.merges.entries.shape[0]
    if not entries:
        return
    for index, config in enumerate(configs):
        cfg = replace(kernel_config(plan, t, config, interpreted=interpreted), STAGES=0)
        merge_kernel[(entries, plan.num_kv_heads)](
            shared.out,
            shared.lse,
            shared.parts[index],
            (plan.merges.entries, plan.merges.indptr, plan.merges.slots),
            shared.sequences,
            shared.positions,
            operands,
            plan.num_kv_heads,
            index,
            SINK=getattr(functions, "sink", None),
            OUTPUT=getattr(functions, "output_transform", None),
            cfg=cfg,
            num_warps=4,
        )


class _Shared:
    """Arguments that every class's launch has in common."""

    def __init__(self, plan: Plan, t: LaunchTensors) -> None:
        view = plan.levels[0]
        self.k = (t.k, t.k.stride(0), t.k.stride(1), t.k.stride(2))
        self.v = (t.v, t.v.stride(0), t.v.stride(1), t.v.stride(2))
        self.out = (t.out, t.out.stride(0), t.out.stride(1))
        dummy = plan.qo_indptr
        self.lse = (dummy, 0) if t.lse is None else (t.lse, t.lse.stride(0))
        pages = dummy if view.pages is None else view.pages
        self.sequences = (plan.qo_indptr, plan.kv_indptr, view.kv_len, pages, view.page_start)
        self.positions = tuple(dummy if one is None else one for one in (t.q_pos, t.kv_pos))
        self.parts = _parts(plan, t)


def _parts(plan: Plan, t: LaunchTensors) -> list[tuple[Any, Any]]:
    regions = layout([work.tile for work in plan.classes], t.spec.head_dim_vo).regions
    if t.workspace is None:
        return [(plan.qo_indptr, plan.qo_indptr)] * len(regions)
    parts = []
    for region in regions:
        rows = region.num_slots * region.tile_q
        out = t.workspace[region.out_offset : region.out_offset + 4 * rows * region.head_dim_vo].view(torch.float32)
        lse = t.workspace[region.lse_offset : region.lse_offset + 4 * rows].view(torch.float32)
        parts.append((out, lse))
    return parts


def _operands(t: LaunchTensors) -> tuple[Any, ...]:
    """The flat tuple that emitted functions index; see `variant.emit.OperandSlots`."""
    flat: list[Any] = []
    for name in sorted(t.program.params):
        value = t.params[name]
        if isinstance(value, torch.Tensor) and t.program.params[name].ndim:
            flat.append(value.view(torch.uint8) if value.dtype == torch.bool else value)
            for size, stride in zip(value.shape, value.stride(), strict=True):
                flat += [size, stride]
        else:
            flat.append(value.item() if isinstance(value, torch.Tensor) else value)
    return tuple(flat)


def pieces(dim: int) -> tuple[int, int]:
    """Two power-of-two widths that cover a head dim, the second 0 or at least 16 (it may reach past the dim).

    >>> pieces(128), pieces(192), pieces(80), pieces(576)
    ((128, 0), (128, 64), (64, 16), (512, 64))
    """
    first = 1 << (dim.bit_length() - 1)
    rest = dim - first
    return first, (max(16, 1 << math.ceil(math.log2(rest))) if rest else 0)


def kernel_config(plan: Plan, t: LaunchTensors, config: ClassConfig, *, interpreted: bool) -> KernelConfig:
    """The compile-time facts of one class's kernel."""
    spec, program, view = t.spec, t.program, plan.levels[0]
    k0, k1 = pieces(spec.head_dim_qk)
    v0, v1 = pieces(spec.head_dim_vo)
    page_size = view.page_size
    return KernelConfig(
        TILE_Q=config.tile_q,
        TILE_KV=config.tile_kv,
        STAGES=config.stages,
        GROUP=plan.group_size,
        K0=k0,
        K1=k1,
        V0=v0,
        V1=v1,
        DIM_QK=spec.head_dim_qk,
        DIM_VO=spec.head_dim_vo,
        PAGED=view.pages is not None,
        PAGE_SIZE=page_size if page_size & (page_size - 1) == 0 and view.pages is not None else 0,
        SAME_KV=t.k.stride()[:2] == t.v.stride()[:2],
        SOFTMAX=program.use_softmax,
        FOLD=program.use_softmax and program.logits is None and spec.sm_scale > 0,
        GUARD=program.logits is not None,
        HAS_Q_POS=t.q_pos is not None,
        HAS_KV_POS=t.kv_pos is not None,
        HAS_LSE=t.lse is not None,
        UPCAST=interpreted or spec.dtype == torch.float32,
        RAW=t.raw_state,
    )
