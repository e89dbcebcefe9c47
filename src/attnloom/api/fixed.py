"""The buffers of an object with declared maxima: one allocation for everything that a plan consists of.

Every array has its place for the object's life, as large as any plan within the maxima can need. A plan writes
the beginnings of the arrays; the kernels get the whole of them, which is the same for every plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from attnloom.api.maxima import Form, Maxima, check_operand
from attnloom.api.operands import Operands
from attnloom.api.placing import ALIGNMENT, Array, Placed, as_bytes, make_plan
from attnloom.api.planning import PlanInputs
from attnloom.errors import MaximumExceeded
from attnloom.formats import exclusive_cumsum
from attnloom.schedule.arrays import ArrayBuffer
from attnloom.schedule.planner import heads_per_item
from attnloom.schedule.result import Schedule, class_plans
from attnloom.schedule.work import PageView, Plan
from attnloom.spec import AttentionSpec

_SEQUENCES = ("kv_indptr", "qo_indptr", "page_start", "kv_len", "pages")  # behind the schedule's: see `make_plan`
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.uint8: np.uint8}
_GAP = 1 << 16  # bytes between written arrays that are cheaper to copy along than to skip


class Section(NamedTuple):
    """An array of the buffer: its first byte, and how many elements of dtype it has room for."""

    start: int
    room: int
    dtype: torch.dtype

    @property
    def first(self) -> int:
        """The first element, counted in the buffer as elements of dtype."""
        return self.start // self.dtype.itemsize


class FixedBuffers:
    """Holds the planned arrays of one object.

    form: what plans have in common; sections: greatest lengths of `Schedule.sections`; rooms: type and greatest
    shape of each operand that is known at plan.
    """

    def __init__(
        self,
        form: Form,
        maxima: Maxima,
        sections: list[int],
        rooms: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        *,
        spec: AttentionSpec,
        device: torch.device,
    ) -> None:
        self.form = form
        self._spec = spec
        self._sizes = sizes = _sizes(form, maxima, sections)
        for name, (dtype, shape) in rooms.items():
            sizes[f"operand {name}"] = (math.prod(shape) * dtype.itemsize, torch.uint8)
        self.sections: dict[str, Section] = {}
        end = 0
        for name, (count, dtype) in sorted(sizes.items(), key=lambda item: item[1][0] * item[1][1].itemsize):
            self.sections[name] = Section(end, count, dtype)
            end += -(-max(count, 1) * dtype.itemsize // ALIGNMENT) * ALIGNMENT  # an empty array has an address too
        self.buffer = torch.zeros(end, dtype=torch.uint8, device=device)
        self._int32 = self.buffer.view(torch.int32)
        self._views = {torch.int32: self._int32, torch.int64: self.buffer.view(torch.int64), torch.uint8: self.buffer}
        self._host = _typed(self.buffer.numpy()) if device.type == "cpu" else None
        names = (*(f"schedule {i}" for i in range(len(sections))), *_SEQUENCES)
        self._planned = [name for name in names if name in self.sections]
        self._firsts = [self.sections[name].start // 4 for name in self._planned]
        self.operands = {
            name: self._view(f"operand {name}").view(dtype).view(shape) for name, (dtype, shape) in rooms.items()
        }
        self.q_pos = self._view("q_pos") if form.q_pos else None
        self.kv_pos = self._view("kv_pos") if form.kv_pos else None
        self._num_sections = len(sections)
        self.whole = self._whole(maxima)

    def place(self, inputs: PlanInputs, made: Schedule, operands: Operands) -> Placed:
        """Write the plan into the buffers. Raises MaximumExceeded before anything is written."""
        kv_indptr = exclusive_cumsum(inputs.kv.kv_len)
        pages, table = _pages(inputs)
        arrays: dict[str, Array] = {
            "page_start": inputs.kv.page_start if table is None else _compact_starts(inputs),
            "kv_indptr": kv_indptr,
            "qo_indptr": inputs.qo_indptr,
            "kv_len": inputs.kv.kv_len,
        }
        given = {"q_pos": inputs.q_pos, "kv_pos": inputs.kv_pos, "pages": pages}
        arrays |= {name: array for name, array in given.items() if array is not None}
        for i, (start, length) in enumerate(made.sections):
            arrays[f"schedule {i}"] = made.buffer[start : start + length]
        hosted, on_device = self._operand_arrays(operands)
        self._check(arrays)
        indptr = f"schedule {self._num_sections - 2}"
        arrays[indptr] = _padded(arrays[indptr], self.sections[indptr].room)
        self._write(arrays | hosted)
        for name, value in on_device.items():
            _part(self.operands[name], value.shape).copy_(value)
        if table is not None:
            self._view("pages", table.numel()).view(table.shape).copy_(table)
        return self._placed(inputs, made, int(kv_indptr[-1]))

    def _placed(self, inputs: PlanInputs, made: Schedule, total_kv: int) -> Placed:
        """The Plan of what was just written; nothing on the device is looked at before somebody asks."""
        batch, kv = inputs.qo_len.shape[0], inputs.kv
        counts = [length for _, length in made.sections]
        counts += [2 * (batch + 1), batch + 1, 2 * batch, batch]
        pages: dict[str, torch.Tensor | None] = {"pages": None}
        if kv.pages is not None:
            counts.append(kv.num_entries)
            pages = {}
        buffer = ArrayBuffer(self._int32, list(zip(self._firsts, counts, strict=False)))
        plan = make_plan(inputs, self._spec, made, buffer, pages=pages, total_kv=total_kv, whole=self.whole)
        return Placed(plan, self.q_pos, self.kv_pos, dict(self.operands), (self.buffer,))

    def _whole(self, maxima: Maxima) -> Plan:
        """The Plan of whole buffers, which every launch gets."""
        spec, form, first = self._spec, self.form, self._num_sections
        sizes = [self.sections[name].room * self.sections[name].dtype.itemsize // 4 for name in self._planned]
        buffer = ArrayBuffer(self._int32, list(zip(self._firsts, sizes, strict=True)))
        heads = [heads_per_item(tile, spec.num_kv_heads) for tile in form.classes]
        classes, merges = class_plans(form.classes, heads, buffer)
        pages = {} if "pages" in self.sections else {"pages": None}
        return Plan.stored(
            buffer,
            first,
            batch=maxima.batch,
            total_q=maxima.total_q,
            total_kv=maxima.pages * form.page_size,
            num_qo_heads=spec.num_qo_heads,
            num_kv_heads=spec.num_kv_heads,
            levels=(PageView.stored(buffer, first + 2, page_size=form.page_size, **pages),),
            level_indptr=(0, maxima.batch),
            classes=classes,
            merges=merges,
            row_maps=None,
            deterministic=False,
            has_q_pos=form.q_pos,
            has_kv_pos=form.kv_pos,
        )

    def _view(self, name: str, count: int | None = None) -> torch.Tensor:
        """The first `count` elements of an array, all of them for None."""
        section = self.sections[name]
        return self._views[section.dtype].as_strided((section.room if count is None else count,), (1,), section.first)

    def _operand_arrays(self, operands: Operands) -> tuple[dict[str, Array], dict[str, torch.Tensor]]:
        """(bytes of those on the host by the names of their arrays, tensors on the device by theirs)."""
        hosted: dict[str, Array] = {}
        on_device: dict[str, torch.Tensor] = {}
        for name, value in operands.items():
            buffer, room = self.operands[name], tuple(self.operands[name].shape)
            tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=buffer.dtype, device="cpu")
            check_operand(name, tensor, room)
            if tensor.device.type != "cpu" or self._host is not None:
                on_device[name] = tensor
                continue
            if tensor.shape[1:] != room[1:]:
                larger = torch.zeros(room, dtype=tensor.dtype, device="cpu")
                _part(larger, tensor.shape).copy_(tensor)
                tensor = larger
            hosted[f"operand {name}"] = as_bytes(tensor)
        return hosted, on_device

    def _check(self, arrays: Mapping[str, Array]) -> None:
        for name, array in arrays.items():
            if array.shape[0] > self.sections[name].room:
                raise MaximumExceeded(
                    name=f"the planned array {name!r}",
                    declared=f"room for {self.sections[name].room} elements",
                    given=array.shape[0],
                    fix="Build the object with larger maxima.",
                )

    def _write(self, arrays: Mapping[str, Array]) -> None:
        """To the host's buffer directly; to a GPU's through one pinned buffer, in as few copies as pay."""
        if self._host is not None:
            for name, array in arrays.items():
                section = self.sections[name]
                self._host[section.dtype][section.first : section.first + array.shape[0]] = array
            return
        runs = self._runs(arrays)
        pinned = torch.empty(
            sum(end - start for start, end, _ in runs), dtype=torch.uint8, device="cpu", pin_memory=True
        )
        host = _typed(pinned.numpy())
        at = 0
        for start, end, names in runs:
            for name in names:
                _, _, dtype = section = self.sections[name]
                first = (at + section.start - start) // dtype.itemsize
                host[dtype][first : first + arrays[name].shape[0]] = arrays[name]
            self.buffer[start:end].copy_(pinned[at : at + end - start], non_blocking=True)
            at += end - start

    def _runs(self, arrays: Mapping[str, Array]) -> list[tuple[int, int, list[str]]]:
        """(first byte, last byte, names) of stretches to copy: neighbours with less than a gap between are one."""
        runs: list[tuple[int, int, list[str]]] = []
        joins = False  # what lies between is written by this plan, or is free
        for name, section in self.sections.items():
            if name not in arrays:
                joins = False
                continue
            used = arrays[name].shape[0] * section.dtype.itemsize
            end = section.start + -(-used // ALIGNMENT) * ALIGNMENT
            if joins and section.start - runs[-1][1] <= _GAP:
                start, _, names = runs.pop()
                runs.append((start, end, [*names, name]))
            else:
                runs.append((section.start, end, [name]))
            joins = True
        return runs


def _typed(raw: npt.NDArray[np.uint8]) -> dict[torch.dtype, Array]:
    """Bytes as arrays of each type that plans hold."""
    return {dtype: raw.view(kind) for dtype, kind in _NUMPY.items()}


def _sizes(form: Form, maxima: Maxima, sections: list[int]) -> dict[str, tuple[int, torch.dtype]]:
    """Elements and type of each array, operands apart."""
    sizes = {f"schedule {i}": (count, torch.int32) for i, count in enumerate(sections)}
    sizes |= {
        "page_start": (maxima.batch, torch.int64),
        "kv_indptr": (maxima.batch + 1, torch.int64),
        "qo_indptr": (maxima.batch + 1, torch.int32),
        "kv_len": (maxima.batch, torch.int32),
    }
    if form.kv == "paged":
        sizes["pages"] = (maxima.pages, torch.int32)
    if form.q_pos:
        sizes["q_pos"] = (maxima.total_q, torch.int32)
    if form.kv_pos:
        sizes["kv_pos"] = (maxima.pages * form.page_size, torch.int32)
    return sizes


def _pages(inputs: PlanInputs) -> tuple[Array | None, torch.Tensor | None]:
    """(page ids on the host, page ids on the device without what lies between the rows of a dense table)."""
    kv = inputs.kv
    if kv.pages is None:
        return None, None
    if kv.pages.device.type == "cpu":
        return kv.pages.numpy(), None
    if not kv.row_stride:
        return None, kv.pages[: kv.num_entries]
    shape, strides = (kv.kv_len.shape[0], kv.columns), (kv.row_stride, 1)
    return None, kv.pages.as_strided(shape, strides, kv.pages.storage_offset())


def _compact_starts(inputs: PlanInputs) -> Array:
    """page_start once the rows of a dense table follow one another."""
    kv = inputs.kv
    return np.arange(kv.kv_len.shape[0], dtype=np.int64) * kv.columns if kv.row_stride else kv.page_start


def _padded(indptr: Array, count: int) -> Array:
    """An index pointer of `count` elements whose last entries are empty."""
    padded = np.empty(count, np.int32)
    padded[: indptr.shape[0]] = indptr
    padded[indptr.shape[0] :] = indptr[-1]
    return padded


def _part(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The beginning of a tensor in every dimension."""
    return tensor[tuple(slice(extent) for extent in shape)]
