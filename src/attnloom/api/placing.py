"""A schedule and what it was made from, laid on the device as a Plan.

On a GPU everything that one plan sends lies in one pinned buffer and goes over in one asynchronous copy, so that
`plan` neither waits nor is waited for. torch's allocators make that safe for plans back to back: a pinned block
is given out again only once the copy from it is over (it asks an event and does not wait), and the device buffer
is a new one, so that launches of the plan before keep theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from attnloom.api.operands import Operands
from attnloom.api.planning import PlanInputs
from attnloom.formats import exclusive_cumsum
from attnloom.formats.index import IntArray
from attnloom.schedule.result import Schedule
from attnloom.schedule.work import ClassPlan, MergeList, PageView, Plan
from attnloom.spec import AttentionSpec

ALIGNMENT = 32  # bytes, of every array in a buffer

Array = npt.NDArray[Any]

NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.uint8: np.uint8}


class Placed(NamedTuple):
    """A Plan, and what else of it a launch reads.

    q_pos, kv_pos  int32 or None; operands: on the device, those of plan and of the constructor
    buffers        device memory that belongs to the plan
    """

    plan: Plan
    q_pos: torch.Tensor | None
    kv_pos: torch.Tensor | None
    operands: Operands
    buffers: tuple[torch.Tensor, ...] = ()


class Sequences(NamedTuple):
    """Where requests lie, as tensors: `Plan.qo_indptr`, `Plan.kv_indptr` and the fields of its PageView."""

    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    page_start: torch.Tensor
    kv_len: torch.Tensor
    pages: torch.Tensor | None


def place(inputs: PlanInputs, made: Schedule, operands: Operands, spec: AttentionSpec, device: torch.device) -> Placed:
    """The Plan on `device`, in buffers of its own; operands that lie on the host go along."""
    if device.type == "cpu":
        return _place_on_host(inputs, made, operands, spec)
    kv = inputs.kv
    kv_indptr = exclusive_cumsum(kv.kv_len)
    arrays: list[tuple[Array, torch.dtype]] = [
        (kv.page_start, torch.int64),
        (kv_indptr, torch.int64),
        (inputs.qo_indptr, torch.int32),
        (kv.kv_len, torch.int32),
        (made.buffer, torch.int32),
    ]
    pages, staged_pages = kv.pages, kv.pages is not None and kv.pages.device.type == "cpu"
    if pages is not None and staged_pages:
        arrays.append((pages.numpy(), torch.int32))
    arrays += [(positions, torch.int32) for positions in (inputs.q_pos, inputs.kv_pos) if positions is not None]
    hosted = {name: x for name, x in operands.items() if isinstance(x, torch.Tensor) and x.device.type == "cpu"}
    arrays += [(as_bytes(value), torch.uint8) for value in hosted.values()]
    buffer, views = send(arrays, device)
    page_start, starts, qo_indptr, kv_len = views[:4]
    rest = iter(views[5:])
    pages = next(rest) if staged_pages else pages
    q_pos, kv_pos = (None if given is None else next(rest) for given in (inputs.q_pos, inputs.kv_pos))
    sent: Operands = {name: next(rest).view(value.dtype).view(value.shape) for name, value in hosted.items()}
    parts = made.to_classes(made.views(views[4], int(views[4].storage_offset())))
    plan = make_plan(inputs, spec, Sequences(qo_indptr, starts, page_start, kv_len, pages), parts, int(kv_indptr[-1]))
    return Placed(plan, q_pos, kv_pos, operands | sent, (buffer,))


def send(arrays: Sequence[tuple[Array, torch.dtype]], device: torch.device) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One-dimensional host arrays, as the given types, on the device: (their buffer, views of it). Nothing waits."""
    starts, size = [], 0
    for array, dtype in arrays:
        starts.append(size)
        size += -(-array.shape[0] * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    pinned = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    buffer = torch.empty(size, dtype=torch.uint8, device=device)
    host, whole = typed_arrays(pinned.numpy()), typed_views(buffer)
    views = []
    for (array, dtype), start in zip(arrays, starts, strict=True):
        first, count = start // dtype.itemsize, array.shape[0]
        host[dtype][first : first + count] = array
        views.append(whole[dtype].as_strided((count,), (1,), first))
    buffer.copy_(pinned, non_blocking=True)
    return buffer, views


def typed_arrays(raw: npt.NDArray[np.uint8]) -> dict[torch.dtype, Array]:
    """Bytes as arrays of each type that plans hold."""
    return {dtype: raw.view(kind) for dtype, kind in NUMPY.items()}


def typed_views(raw: torch.Tensor) -> dict[torch.dtype, torch.Tensor]:
    """`typed_arrays` of a tensor."""
    return {torch.int32: raw.view(torch.int32), torch.int64: raw.view(torch.int64), torch.uint8: raw}


def as_bytes(value: torch.Tensor) -> Array:
    """The elements of a host tensor one after another, as uint8."""
    flat: Array = value.reshape(-1).contiguous().view(torch.uint8).numpy()
    return flat


def make_plan(
    inputs: PlanInputs,
    spec: AttentionSpec,
    where: Sequences,
    parts: tuple[tuple[ClassPlan, ...], MergeList],
    total_kv: int,
    *,
    whole: Plan | None = None,
) -> Plan:
    """The Plan of tensors."""
    batch = inputs.qo_len.shape[0]
    view = PageView(where.pages, where.page_start, where.kv_len, inputs.kv.page_size)
    return Plan(
        batch=batch,
        total_q=inputs.total_q,
        total_kv=total_kv,
        num_qo_heads=spec.num_qo_heads,
        num_kv_heads=spec.num_kv_heads,
        qo_indptr=where.qo_indptr,
        kv_indptr=where.kv_indptr,
        levels=(view,),
        level_indptr=(0, batch),
        classes=parts[0],
        merges=parts[1],
        row_maps=None,
        deterministic=False,
        has_q_pos=inputs.q_pos is not None,
        has_kv_pos=inputs.kv_pos is not None,
        whole=whole,
    )


def _place_on_host(inputs: PlanInputs, made: Schedule, operands: Operands, spec: AttentionSpec) -> Placed:
    kv_indptr = exclusive_cumsum(inputs.kv.kv_len)
    where = Sequences(
        _narrowed(inputs.qo_indptr),
        torch.from_numpy(kv_indptr),
        torch.from_numpy(inputs.kv.page_start.copy()),
        _narrowed(inputs.kv.kv_len),
        inputs.kv.pages,
    )
    plan = make_plan(inputs, spec, where, made.to_classes(made.host_views()), int(kv_indptr[-1]))
    q_pos, kv_pos = (None if given is None else _narrowed(given) for given in (inputs.q_pos, inputs.kv_pos))
    return Placed(plan, q_pos, kv_pos, operands)


def _narrowed(array: IntArray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int32))
