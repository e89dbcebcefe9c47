"""Keys and values of a unit as matrices [heads, keys, dim] in fp32, read through the page view.

A range that lies in one page (or in ragged KV) is a view of the cache. Whether a range is copied depends on
the page size and the range alone, never on where the pages lie: the same numbers meet in the same order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from attnloom.impl.cpu.scratch import SCRATCH
from attnloom.schedule.work import PageView
from attnloom.spec import FP8_DTYPES

Ints = npt.NDArray[np.int64]
Strides = tuple[int, int, int | None]
"""Of pages, slots, and heads where each is a row of its own; in rows."""

PANEL = 1 << 22  # elements gathered at once for all tiles of a unit
CHUNK = 1 << 20  # elements gathered at once where every tile gathers for itself


@dataclass(frozen=True)
class Range:
    """Keys [begin, end) of one request for kv heads [first_head, last_head)."""

    request: int
    begin: int
    end: int
    first_head: int
    last_head: int


@functools.cache
def table_of(dtype: torch.dtype) -> torch.Tensor:
    """fp32 [256]: what each byte stands for in an fp8 format."""
    return torch.arange(256, dtype=torch.uint8, device="cpu").view(dtype).float()


class Index:
    """The row numbers of the last gather: v asks for those of k again where the strides are equal."""

    def __init__(self) -> None:
        self._last: tuple[tuple[Range, Strides], torch.Tensor] | None = None

    def rows(self, key: tuple[Range, Strides], make: Callable[[Range, Strides], torch.Tensor]) -> torch.Tensor:
        """make(*key), or what it gave for the same key just before."""
        if self._last is None or self._last[0] != key:
            self._last = key, make(*key)
        return self._last[1]


class Pages:
    """Where the keys of each request lie: the page view, on the host."""

    def __init__(self, view: PageView) -> None:
        self.size = view.page_size
        self._pages = None if view.pages is None else view.pages.numpy()
        self._start: list[int] = view.page_start.tolist()
        self._offset = np.arange(view.page_size, dtype=np.int64)

    def single(self, r: Range) -> tuple[int, int, bool] | None:
        """(page, first slot in it, ragged) where the range lies in one page or in ragged rows."""
        start = self._start[r.request]
        if self._pages is None:
            return start + r.begin, 0, True
        first = r.begin // self.size
        if (r.end - 1) // self.size != first:
            return None
        return int(self._pages[start + first]), r.begin - first * self.size, False

    def slots(self, r: Range, page_stride: int, slot_stride: int) -> Ints:
        """page * page_stride + offset * slot_stride of every key."""
        table = self._pages
        if table is None:
            raise RuntimeError("ragged keys are rows of one range: they are never gathered")
        start, first, last = self._start[r.request], r.begin // self.size, -(-r.end // self.size)
        pages: Ints = np.multiply(table[start + first : start + last], page_stride, dtype=np.int64)
        if self.size == 1:
            return pages
        inside = r.begin - first * self.size
        slots: Ints = np.add.outer(pages, self._offset * slot_stride).reshape(-1)
        return slots[inside : inside + r.end - r.begin]


class Cache:
    """The k or the v tensor of a launch, [pages, page_size, heads, dim]."""

    def __init__(self, name: str, tensor: torch.Tensor, pages: Pages) -> None:
        self._name = name
        self._tensor = tensor
        self._pages = pages
        self._convert = tensor.dtype != torch.float32
        self._table = table_of(tensor.dtype) if tensor.dtype in FP8_DTYPES else None
        self.dim = tensor.shape[-1]
        self._by_head = tensor.stride(2) > tensor.stride(1)  # keys of a head are neighbours

    def read(self, r: Range, known: Index) -> torch.Tensor:
        """[heads, keys, dim] in fp32, a view of the cache or of scratch memory that the next read overwrites.

        known: row numbers that v takes over from k.
        """
        single = self._pages.single(r)
        keys = r.end - r.begin
        if single is not None:
            page, slot, ragged = single
            if ragged:
                view = self._tensor[page : page + keys, 0, r.first_head : r.last_head]
            else:
                view = self._tensor[page, slot : slot + keys, r.first_head : r.last_head]
            return self._converted(view.transpose(0, 1), self._by_head) if self._convert else view.transpose(0, 1)
        return self._gather(r, known)

    def copies(self, r: Range) -> bool:
        """Whether `read` copies the range."""
        return self._convert or self._pages.single(r) is None

    def _converted(self, view: torch.Tensor, by_head: bool) -> torch.Tensor:
        """fp32 copy of [heads, keys, dim] in the order in which the memory lies."""
        if by_head:
            return self._fp32(view)
        return self._fp32(view.transpose(0, 1)).transpose(0, 1)

    def _fp32(self, elements: torch.Tensor) -> torch.Tensor:
        """A contiguous copy; fp8 by a table of its 256 numbers, which torch converts one by one."""
        shape = tuple(elements.shape)
        made = SCRATCH.take(self._name, shape)
        if self._table is None:
            return made.copy_(elements)
        index = SCRATCH.take(self._name, shape, torch.int32).copy_(elements.view(torch.uint8))
        torch.index_select(self._table, 0, index.view(-1), out=made.view(-1))
        return made

    def _gather(self, r: Range, known: Index) -> torch.Tensor:
        """Copy rows of a two-dimensional view of the cache whose rows start at every multiple of a common stride."""
        cache, heads = self._tensor, r.last_head - r.first_head
        page, slot, head = cache.stride()[:3]
        joined = heads == 1 or head == self.dim  # the heads of a token are one row
        step = (math.gcd(page, slot) if joined else math.gcd(page, slot, head)) or 1
        strides = page // step, slot // step, None if joined else head // step
        index = known.rows((r, strides), self._rows)
        width, last = heads * self.dim, (cache.shape[0] - 1) * page + (cache.shape[1] - 1) * slot
        if not joined:
            width, last = self.dim, last + (heads - 1) * head
        rows = cache.as_strided((last // step + 1, width), (step, 1), cache.storage_offset() + r.first_head * head)
        found = SCRATCH.take(self._name, (index.shape[0], width), cache.dtype)
        torch.index_select(rows, 0, index, out=found)
        if self._convert:
            found = self._fp32(found)
        keys = r.end - r.begin
        if joined:
            return found.view(keys, heads, self.dim).transpose(0, 1)
        return found.view(heads, keys, self.dim)

    def _rows(self, r: Range, strides: Strides) -> torch.Tensor:
        """int64 [keys], or [heads * keys] where heads are rows of their own."""
        page, slot, head = strides
        index = self._pages.slots(r, page, slot)
        if head is not None:
            index = np.add.outer(np.arange(r.last_head - r.first_head) * head, index).reshape(-1)
        return torch.from_numpy(index)


class Panel:
    """Keys and values of one unit: gathered once for all its tiles where they fit, else chunk by chunk."""

    def __init__(self, k: Cache, v: Cache, hull: Range, many: bool) -> None:
        self._caches = k, v
        self._hull = hull
        self._index = Index()
        self._held: tuple[torch.Tensor, torch.Tensor] | None = None
        elements = (hull.end - hull.begin) * (hull.last_head - hull.first_head) * max(k.dim, v.dim)
        self.copies = hull.end > hull.begin and (k.copies(hull) or v.copies(hull))
        if self.copies and many and elements <= PANEL:
            self._held = k.read(hull, self._index), v.read(hull, self._index)
            self.copies = False

    def keys(self, begin: int, end: int) -> torch.Tensor:
        """[heads, end - begin, dim] of k."""
        return self._part(0, begin, end)

    def values(self, begin: int, end: int) -> torch.Tensor:
        """[heads, end - begin, dim] of v."""
        return self._part(1, begin, end)

    def _part(self, which: int, begin: int, end: int) -> torch.Tensor:
        hull = self._hull
        if self._held is not None:
            return self._held[which][:, begin - hull.begin : end - hull.begin]
        r = Range(hull.request, begin, end, hull.first_head, hull.last_head)
        return self._caches[which].read(r, self._index)
