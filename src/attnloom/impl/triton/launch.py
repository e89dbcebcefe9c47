"""From a Plan and its tensors to kernel launches."""

from __future__ import annotations

import math
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
from attnloom.variant import Program


def launch(plan: Plan, tensors: LaunchTensors, configs: tuple[ClassConfig, ...]) -> None:
    """One attention launch per class that has items, then one merge per class where something was split.

    Under declared maxima every plan is launched alike, as the whole buffers: a captured launch serves later plans.
    """
    plan = plan.whole or plan
    one = _Launch(plan, tensors)
    for index, config in enumerate(configs):
        if plan.classes[index].num_items:
            one.attend(index, config)
    if plan.merges.entries.shape[0]:
        for index, config in enumerate(configs):
            one.merge(index, config)


class _Launch:
    """A plan, its tensors, and the arguments that every class's kernels have in common."""

    def __init__(self, plan: Plan, t: LaunchTensors) -> None:
        view, unused = plan.levels[0], plan.qo_indptr  # a pointer that its flag leaves out still needs a value
        self._plan, self._tensors = plan, t
        self._functions = _functions(t.program)
        self._operands = _operands(t)
        self._out = (t.out, t.out.stride(0), t.out.stride(1))
        self._lse = (unused, 0) if t.lse is None else (t.lse, t.lse.stride(0))
        pages = unused if view.pages is None else view.pages
        self._sequences = (plan.qo_indptr, plan.kv_indptr, view.kv_len, pages, view.page_start)
        self._positions = tuple(unused if given is None else given for given in (t.q_pos, t.kv_pos))
        self._parts = _parts(plan, t)

    def attend(self, index: int, config: ClassConfig) -> None:
        """The attention kernel of class `index`."""
        t, work = self._tensors, self._plan.classes[index]
        attention_kernel[(work.tile.num_ctas,)](
            (t.q, t.q.stride(0), t.q.stride(1)),
            (t.k, t.k.stride(0), t.k.stride(1), t.k.stride(2)),
            (t.v, t.v.stride(0), t.v.stride(1), t.v.stride(2)),
            self._out,
            self._lse,
            self._parts[index],
            (work.items, work.item_segments, work.segments, work.work_indptr),
            self._sequences,
            self._positions,
            self._operands,
            t.spec.sm_scale,
            self._plan.levels[0].page_size,
            min(t.k.shape[0], t.v.shape[0]),
            min(t.k.shape[0], t.v.shape[0]),
            work.heads_per_item,
            **self._functions,
            cfg=kernel_config(self._plan, t, config),
            **config.options(),
        )

    def merge(self, index: int, config: ClassConfig) -> None:
        """The merge kernel of class `index`."""
        plan = self._plan
        heads = max(work.heads_per_item for work in plan.classes)
        merge_kernel[(plan.merges.entries.shape[0], heads)](
            self._out,
            self._lse,
            self._parts[index],
            (plan.merges.entries, plan.merges.indptr, plan.merges.slots),
            self._sequences,
            self._positions,
            self._operands,
            plan.num_kv_heads,
            index,
            SINK=self._functions["SINK"],
            OUTPUT=self._functions["OUTPUT"],
            cfg=kernel_config(plan, self._tensors, config),
            num_warps=4,
        )


def _functions(program: Program) -> dict[str, Any]:
    """The emitted functors under the kernels' names, None for those that the variant leaves out."""
    module = module_of(program)
    return {
        argument: getattr(module, name, None)
        for argument, name in (
            ("LOGITS", "logits_transform"),
            ("MASK", "logits_mask"),
            ("SINK", "sink"),
            ("OUTPUT", "output_transform"),
        )
    }


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
        if isinstance(value, torch.Tensor):
            flat.append(value.view(torch.uint8) if value.dtype == torch.bool else value)
            for size, stride in zip(value.shape, value.stride(), strict=True):
                flat += [size, stride]
        else:
            flat.append(value)
    return tuple(flat)


def pieces(dim: int) -> tuple[int, int]:
    """Two power-of-two widths that cover a head dim, the second 0 or at least 16 (it may reach past the dim).

    >>> pieces(128), pieces(192), pieces(80), pieces(576)
    ((128, 0), (128, 64), (64, 16), (512, 64))
    """
    first = 1 << (dim.bit_length() - 1)
    rest = dim - first
    return first, (max(16, 1 << math.ceil(math.log2(rest))) if rest else 0)


def kernel_config(plan: Plan, t: LaunchTensors, config: ClassConfig) -> KernelConfig:
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
        UPCAST=t.q.device.type == "cpu" or spec.dtype == torch.float32,
        RAW=t.raw_state,
    )
