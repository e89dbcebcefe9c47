"""The arguments of the attention and the merge kernel, the same for the compiler, the launcher and the interpreter.

Who builds them says what stands for a pointer: the tensor itself (`TENSORS`: the interpreter takes it, and types are
read off it), or its address (`ADDRESSES`: the quickest for a compiled kernel's launcher).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch

from attnloom.impl.base import LaunchTensors
from attnloom.schedule.arrays import Stored
from attnloom.schedule.work import ClassPlan, Plan
from attnloom.schedule.workspace import Region, layout
from attnloom.spec import FP8_DTYPES
from attnloom.variant.params import Param

LOOKED_AT = ("q_tensor", "k_tensor", "v_tensor", "out_tensor", "parts", "workspace", "regions")
"""Parameters whose pointers and strides are facts of a kernel: whether 16 divides them decides how wide it loads."""


_BYTES = (torch.bool, *FP8_DTYPES)  # as which kernels read them


class Pointing(Protocol):
    """What stands for a pointer argument."""

    def tensor(self, tensor: torch.Tensor) -> Any:
        """A tensor's first element."""

    def field(self, owner: Stored, name: str) -> Any:
        """The first element of an array of the plan."""

    def part(self, workspace: torch.Tensor, offset: int, size: int) -> Any:
        """fp32 elements in `size` bytes of a uint8 workspace from byte `offset` on."""

    def integers(self, workspace: torch.Tensor, offset: int, size: int) -> Any:
        """int32 elements, likewise."""


class _Tensors:
    def tensor(self, tensor: torch.Tensor) -> Any:
        return tensor.view(torch.uint8) if tensor.dtype in _BYTES else tensor

    def field(self, owner: Stored, name: str) -> Any:
        return getattr(owner, name)

    def part(self, workspace: torch.Tensor, offset: int, size: int) -> Any:
        return workspace[offset : offset + size].view(torch.float32)

    def integers(self, workspace: torch.Tensor, offset: int, size: int) -> Any:
        return workspace[offset : offset + size].view(torch.int32)


class _Addresses:
    def tensor(self, tensor: torch.Tensor) -> Any:
        return tensor.data_ptr()

    def field(self, owner: Stored, name: str) -> Any:
        return owner.address(name)

    def part(self, workspace: torch.Tensor, offset: int, size: int) -> Any:
        return workspace.data_ptr() + offset

    def integers(self, workspace: torch.Tensor, offset: int, size: int) -> Any:
        return workspace.data_ptr() + offset


TENSORS: Pointing = _Tensors()
ADDRESSES: Pointing = _Addresses()


class PlanArguments(NamedTuple):
    """What a plan contributes: pointers of its arrays."""

    unused: Any  # a pointer that its flag leaves out still needs a value
    sequences: tuple[Any, ...]
    work: tuple[tuple[Any, ...], ...]
    merges: tuple[Any, ...]
    regions: tuple[Region, ...]
    merged: tuple[int, ...]  # `regions` as the merge kernel takes them


class CallArguments(NamedTuple):
    """What a call contributes, the same for every class and for the merge."""

    q: tuple[Any, ...]
    k: tuple[Any, ...]
    v: tuple[Any, ...]
    out: tuple[Any, ...]
    lse: tuple[Any, ...]
    positions: tuple[Any, ...]
    operands: tuple[Any, ...]
    kv_scales: tuple[Any, ...]


def of_plan(plan: Plan, head_dim_vo: int, point: Pointing) -> PlanArguments:
    """The plan's arrays."""
    view, field = plan.levels[0], point.field
    unused = field(plan, "qo_indptr")
    pages = unused if view.pages is None else point.tensor(view.pages)
    regions = layout([work.tile for work in plan.classes], head_dim_vo).regions
    merged = [(one.out_offset // 4, one.lse_offset // 4, one.tile_q) for one in regions]
    return PlanArguments(
        unused=unused,
        sequences=(unused, field(plan, "kv_indptr"), field(view, "kv_len"), pages, field(view, "page_start")),
        work=tuple(_work(work, point) for work in plan.classes),
        merges=tuple([field(plan.merges, name) for name in ("entries", "indptr", "slots")]),
        regions=regions,
        merged=tuple(itertools.chain.from_iterable(merged)),
    )


def _work(work: ClassPlan, point: Pointing) -> tuple[Any, ...]:
    return tuple([point.field(work, name) for name in ("items", "item_segments", "segments", "work_indptr")])


_addresses: dict[int, tuple[weakref.ref[Plan], PlanArguments]] = {}


def addresses_of_plan(plan: Plan, head_dim_vo: int) -> PlanArguments:
    """`of_plan` with addresses, remembered while the plan lives: a plan serves many layers."""
    known = _addresses.get(id(plan))
    if known is not None and known[0]() is plan:
        return known[1]
    made = of_plan(plan, head_dim_vo, ADDRESSES)
    number = id(plan)
    _addresses[number] = (weakref.ref(plan, lambda _: _addresses.pop(number, None)), made)
    return made


def of_call(t: LaunchTensors, unused: Any, point: Pointing) -> CallArguments:
    """The call's tensors with their strides, and the variant's operands."""
    pointer = point.tensor
    q, k, v, out = t.q.stride(), t.k.stride(), t.v.stride(), t.out.stride()
    return CallArguments(
        q=(pointer(t.q), q[0], q[1]),
        k=(pointer(t.k), k[0], k[1], k[2]),
        v=(pointer(t.v), v[0], v[1], v[2]),
        out=(pointer(t.out), out[0], out[1]),
        lse=(unused, 0) if t.lse is None else (pointer(t.lse), t.lse.stride(0)),
        positions=(
            unused if t.q_pos is None else pointer(t.q_pos),
            unused if t.kv_pos is None else pointer(t.kv_pos),
        ),
        operands=_operands(t, point) if t.program.params else (),
        kv_scales=kv_scales((t.k_scale, t.v_scale), point) if t.spec.kv_fp8 else (),
    )


def kv_scales(scales: tuple[torch.Tensor | float, torch.Tensor | float], point: Pointing) -> tuple[Any, ...]:
    """(scale of k, its stride, scale of v, its stride) as kernels take them."""
    return (*_scale(scales[0], point), *_scale(scales[1], point))


def _scale(scale: torch.Tensor | float, point: Pointing) -> tuple[Any, int]:
    """A number, or a pointer; and the distance from one kv head to the next, 0 where one serves all."""
    if isinstance(scale, torch.Tensor):
        return point.tensor(scale), scale.stride(0) if scale.ndim else 0
    return scale, 0


def _operands(t: LaunchTensors, point: Pointing) -> tuple[Any, ...]:
    """The flat tuple that emitted functions index; see `variant.emit.OperandSlots`."""
    flat: list[Any] = []
    for name in sorted(t.program.params):
        value = t.params[name]
        if isinstance(value, torch.Tensor):
            flat.append(point.tensor(value))
            for size, stride in zip(value.shape, value.stride(), strict=True):
                flat += [size, stride]
        else:
            flat.append(value)
    return tuple(flat)


def parts(t: LaunchTensors, plan: PlanArguments, index: int, point: Pointing) -> tuple[Any, Any]:
    """(out, lse) of class `index`'s partial states in the workspace."""
    if t.workspace is None:
        return plan.unused, plan.unused
    region = plan.regions[index]
    rows = 4 * region.num_slots * region.tile_q
    return (
        point.part(t.workspace, region.out_offset, rows * region.head_dim_vo),
        point.part(t.workspace, region.lse_offset, rows),
    )


def counters(t: LaunchTensors, plan: PlanArguments, index: int, point: Pointing) -> Any:
    """The counters of class `index`'s CTAs in the workspace, int32; some pointer where they do not count."""
    region = plan.regions[index]
    if t.workspace is None or region.counters_offset < 0:
        return plan.unused
    return point.integers(t.workspace, region.counters_offset, 4 * (region.num_slots // 2))


def attention(plan: Plan, t: LaunchTensors, of: tuple[PlanArguments, CallArguments, Any], index: int) -> dict[str, Any]:
    """The attention kernel's arguments by parameter for class `index`; of: plan's, call's, parts of the class."""
    ours, call, region = of
    return {
        "q_tensor": call.q,
        "k_tensor": call.k,
        "v_tensor": call.v,
        "out_tensor": call.out,
        "lse_tensor": call.lse,
        "parts": region,
        "work": ours.work[index],
        "sequences": ours.sequences,
        "positions": call.positions,
        "operands": call.operands,
        "sm_scale": t.spec.sm_scale,
        "page_size": plan.levels[0].page_size,
        "num_pages": min(t.k.shape[0], t.v.shape[0]),
        "heads_per_item": plan.classes[index].heads_per_item,
        "kv_scales": call.kv_scales,
    }


def merge(plan: Plan, t: LaunchTensors, of: tuple[PlanArguments, CallArguments], point: Pointing) -> dict[str, Any]:
    """The merge kernel's arguments by parameter; of: plan's, call's."""
    ours, call = of
    size = max(0 if t.workspace is None else region.end for region in ours.regions)
    return {
        "out_tensor": call.out,
        "lse_tensor": call.lse,
        "workspace": ours.unused if t.workspace is None else point.part(t.workspace, 0, size),
        "regions": ours.merged,
        "merges": ours.merges,
        "sequences": ours.sequences,
        "positions": call.positions,
        "operands": call.operands,
        "num_kv_heads": plan.num_kv_heads,
    }


def operand_types(t: LaunchTensors) -> tuple[str, ...]:
    """Types of `_operands`, from the declarations: no value of an operand asks for another kernel."""
    from attnloom.compile.signature import type_of

    types: list[str] = []
    params: Mapping[str, Param] = t.program.params
    for name in sorted(params):
        value = t.params[name]
        if isinstance(value, torch.Tensor):
            types.append(type_of(TENSORS.tensor(value)))
            types += ["i64", "i64"] * value.ndim
        elif params[name].dtype.is_floating_point:
            types.append("fp32")
        elif params[name].dtype == torch.bool:
            types.append("u1")
        else:
            types.append("i64" if params[name].dtype == torch.int64 else "i32")
    return tuple(types)
