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
from attnloom.schedule.arrays import ArrayBuffer, Column
from attnloom.schedule.result import Schedule, class_plans
from attnloom.schedule.work import PageView, Plan
from attnloom.spec import AttentionSpec

ALIGNMENT = 32  # bytes, of every array in a buffer
_UNIT = ALIGNMENT // 4

Array = npt.NDArray[Any]
_LINE = Column(0)


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


def place(inputs: PlanInputs, made: Schedule, operands: Operands, spec: AttentionSpec, device: torch.device) -> Placed:
    """The Plan on `device`, in one buffer of its own; operands that lie on the host go along to a GPU."""
    kv, on_host, given = inputs.kv, device.type == "cpu", (inputs.q_pos, inputs.kv_pos)
    kv_indptr = exclusive_cumsum(kv.kv_len)
    arrays: list[tuple[Array, int]] = [(kv_indptr, 2), (inputs.qo_indptr, 1), (kv.page_start, 2), (kv.kv_len, 1)]
    pages: dict[str, torch.Tensor | None] = {"pages": kv.pages}
    if kv.pages is not None and kv.pages.is_cpu and not on_host:
        arrays.append((kv.pages.numpy(), 1))
        pages = {}
    hosted, first_extra = {}, len(made.sections) + len(arrays)
    arrays.extend([(positions, 1) for positions in given if positions is not None])
    if operands and not on_host:
        hosted = {name: x for name, x in operands.items() if isinstance(x, torch.Tensor) and x.is_cpu}
        arrays += [(as_bytes(value), 0) for value in hosted.values()]
    buffer = send(made, arrays, device)
    q_pos = kv_pos = None
    if len(buffer.places) > first_extra:
        extra = iter(range(first_extra, len(buffer.places)))
        q_pos, kv_pos = (None if positions is None else buffer.view(next(extra), _LINE) for positions in given)
        operands = operands | {name: _like(value, buffer, next(extra)) for name, value in hosted.items()}
    plan = make_plan(inputs, spec, made, buffer, pages=pages, total_kv=int(kv_indptr[-1]))
    return Placed(plan, q_pos, kv_pos, operands, (buffer.tensor,))


def send(made: Schedule, arrays: Sequence[tuple[Array, int]], device: torch.device) -> ArrayBuffer:
    """A schedule and other one-dimensional host arrays, (array, int32 an element or 0: bytes), in a buffer on `device`.

    Nothing waits.
    """
    end = made.buffer.shape[0]
    places: list[Any] = [*made.sections]
    for array, width in arrays:
        length = array.shape[0] * width if width else -(-array.shape[0] // 4)
        places.append((end, length))
        end += -(-length // _UNIT) * _UNIT
    on_host = device.type == "cpu"
    staged = torch.empty(end, dtype=torch.int32, device="cpu", pin_memory=not on_host)
    narrow = staged.numpy()
    wide = narrow.view(np.int64)
    narrow[: made.buffer.shape[0]] = made.buffer
    for (array, width), (first, length) in zip(arrays, places[len(made.sections) :], strict=True):
        if width == 1:
            narrow[first : first + length] = array
        elif width:
            wide[first // 2 : (first + length) // 2] = array
        else:
            narrow.view(np.uint8)[4 * first : 4 * first + array.shape[0]] = array
    if on_host:
        return ArrayBuffer(staged, places)
    buffer = torch.empty(end, dtype=torch.int32, device=device)
    buffer.copy_(staged, non_blocking=True)
    return ArrayBuffer(buffer, places)


def as_bytes(value: torch.Tensor) -> Array:
    """The elements of a host tensor one after another, as uint8."""
    flat: Array = value.reshape(-1).contiguous().view(torch.uint8).numpy()
    return flat


def _like(value: torch.Tensor, buffer: ArrayBuffer, place: int) -> torch.Tensor:
    """The bytes of a place as a tensor of the type and shape of `value`."""
    first = 4 * buffer.places[place][0]
    raw = buffer.tensor.view(torch.uint8)[first : first + value.numel() * value.itemsize]
    return raw.view(value.dtype).view(value.shape)


def make_plan(
    inputs: PlanInputs,
    spec: AttentionSpec,
    made: Schedule,
    buffer: ArrayBuffer,
    *,
    pages: dict[str, torch.Tensor | None],
    total_kv: int,
    whole: Plan | None = None,
) -> Plan:
    """The Plan; behind the schedule's places the buffer has those of kv_indptr, qo_indptr, page_start and kv_len.

    pages: {"pages": page ids}, or nothing where they have the place after these.
    """
    first, batch = len(made.sections), inputs.qo_len.shape[0]
    classes, merges = class_plans(made.tiles, made.heads_per_item, buffer)
    return Plan.stored(
        buffer,
        first,
        batch=batch,
        total_q=inputs.total_q,
        total_kv=total_kv,
        num_qo_heads=spec.num_qo_heads,
        num_kv_heads=spec.num_kv_heads,
        levels=(PageView.stored(buffer, first + 2, page_size=inputs.kv.page_size, **pages),),
        level_indptr=(0, batch),
        classes=classes,
        merges=merges,
        row_maps=None,
        deterministic=False,
        has_q_pos=inputs.q_pos is not None,
        has_kv_pos=inputs.kv_pos is not None,
        whole=whole,
    )
