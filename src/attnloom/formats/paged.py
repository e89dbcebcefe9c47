"""Paged KV: a pool of pages and, per request, the ids of its pages (CSR or a dense block table)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnloom.errors import InvalidMetadata
from attnloom.formats.base import KVFormat, ResolvedKV
from attnloom.formats.index import (
    INDEX_DTYPES,
    IntArray,
    check_has_values,
    expect_length,
    host_ints,
    host_lengths,
)
from attnloom.spec import positive_int

_LARGEST_PAGE = 2**31 - 1


class PagedKV(KVFormat):
    """Pages by CSR arrays; `from_block_table` reads a dense table instead.

    kv_indptr          int32/int64 [batch + 1], in pages
    kv_indices         int32/int64 [>= kv_indptr[-1]], page ids
    kv_last_page_len   int32/int64 [batch], valid tokens in each request's last page, 1..page_size
    page_size          tokens a page, any integer >= 1
    """

    def __init__(self, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, page_size: int) -> None:
        self.page_size = positive_int("page_size", page_size)
        self.kv_indptr = kv_indptr
        self.kv_indices = kv_indices
        self.kv_last_page_len = kv_last_page_len

    @staticmethod
    def from_block_table(block_table: Any, seq_lens: Any, page_size: int) -> BlockTableKV:
        """Pages by a dense table ``[batch, max_pages]`` and ``seq_lens [batch]`` in tokens.

        The table is read as it is: entries past a request's last page are never looked at.
        """
        return BlockTableKV(block_table, seq_lens, page_size)

    def __repr__(self) -> str:
        return f"PagedKV(page_size={self.page_size}, kv_indptr={self.kv_indptr!r})"

    def resolve(self, batch: int, device: torch.device) -> ResolvedKV:
        """See KVFormat.resolve."""
        indptr, counts = host_lengths("kv_indptr", self.kv_indptr)
        expect_length("kv_indptr", indptr, batch + 1, "batch + 1, from qo_indptr")
        last = host_ints("kv_last_page_len", self.kv_last_page_len)
        expect_length("kv_last_page_len", last, batch, "batch")
        kv_len = (counts - 1) * self.page_size + last
        # a number below zero is one of its own sign bit: one look at all of them finds what is out of the ordinary
        if batch and np.minimum.reduce(kv_len | (last - 1) | (self.page_size - last)) < 0:
            _check_last_page(last, counts, self.page_size)
            kv_len[counts == 0] = 0
        pages = _device_pages("kv_indices", self.kv_indices, int(indptr[-1]), device)
        return ResolvedKV(kv_len, indptr[:-1], pages, self.page_size, 0)


class BlockTableKV(KVFormat):
    """Made by `PagedKV.from_block_table`."""

    def __init__(self, block_table: Any, seq_lens: Any, page_size: int) -> None:
        self.page_size = positive_int("page_size", page_size)
        self.block_table = block_table
        self.seq_lens = seq_lens

    def __repr__(self) -> str:
        return f"PagedKV.from_block_table(page_size={self.page_size}, seq_lens={self.seq_lens!r})"

    def resolve(self, batch: int, device: torch.device) -> ResolvedKV:
        """See KVFormat.resolve."""
        table = _index_tensor("block_table", self.block_table, 2)
        kv_len = host_ints("seq_lens", self.seq_lens)
        expect_length("seq_lens", kv_len, batch, "batch")
        if table.shape[0] != batch:
            raise InvalidMetadata(
                name="block_table",
                given=f"{table.shape[0]} rows",
                expected=f"{batch} (batch)",
                fix="One row a request.",
            )
        longest = _check_seq_lens(kv_len, int(table.shape[1]), self.page_size)
        pages, row_stride = _flat_table(table, -(-longest // self.page_size), device)
        page_start = np.arange(batch, dtype=np.int64) * row_stride
        return ResolvedKV(kv_len, page_start, pages, self.page_size, 0, row_stride)


def _check_last_page(last: IntArray, counts: IntArray, page_size: int) -> None:
    wrong = (last > page_size) | (last < 0) | ((last == 0) & (counts > 0))
    if wrong.any():
        where = int(np.argmax(wrong))
        raise InvalidMetadata(
            name="kv_last_page_len",
            given=f"{last[where]} for request {where}, which has {counts[where]} pages",
            expected=f"1..{page_size} (0 only for a request with no page)",
            fix="It counts the valid tokens of the last page: (kv_len - 1) % page_size + 1.",
        )


def _check_seq_lens(kv_len: IntArray, columns: int, page_size: int) -> int:
    if kv_len.shape[0] == 0:
        return 0
    longest, shortest = int(np.maximum.reduce(kv_len)), int(np.minimum.reduce(kv_len))
    if shortest < 0 or longest > columns * page_size:
        where = int(np.argmin(kv_len)) if shortest < 0 else int(np.argmax(kv_len))
        raise InvalidMetadata(
            name="seq_lens",
            given=f"{kv_len[where]} for request {where}",
            expected=f"0..{columns * page_size} ({columns} columns of block_table x page_size {page_size})",
            fix="Give the table as many columns as the longest request has pages.",
        )
    return longest


def _index_tensor(name: str, value: Any, ndim: int) -> torch.Tensor:
    """`value` as an int32/int64 tensor with `ndim` dimensions, wherever it lies."""
    if not isinstance(value, torch.Tensor):
        return torch.from_numpy(host_ints(name, value, ndim))
    if value.layout is not torch.strided or value.is_meta:
        check_has_values(name, value)
    if value.dtype not in INDEX_DTYPES or value.ndim != ndim:
        raise InvalidMetadata(
            name=name,
            given=f"{value.ndim}-D {value.dtype} of shape {tuple(value.shape)}",
            expected=f"{ndim}-D int32 or int64",
            fix="Convert it with .to(torch.int32).",
        )
    return value


def _device_pages(name: str, value: Any, needed: int, device: torch.device) -> torch.Tensor:
    """Flat int32 page ids: read in place on a GPU, copied on the host."""
    pages = _index_tensor(name, value, 1)
    if pages.shape[0] < needed:
        raise InvalidMetadata(
            name=name,
            given=f"{pages.shape[0]} elements",
            expected=f"at least kv_indptr[-1] = {needed}",
            fix="kv_indptr counts pages, not tokens.",
        )
    if pages.is_cpu:
        return _copied(pages[:needed])
    if pages.dtype is torch.int32 and pages.device == device and pages.is_contiguous():
        return pages
    return _narrow(pages.to(device))


def _flat_table(table: torch.Tensor, columns: int, device: torch.device) -> tuple[torch.Tensor, int]:
    """(flat page ids, elements between rows); a GPU table with int32 unit-stride rows is read in place."""
    if not table.is_cpu and table.device == device and table.dtype == torch.int32 and table.stride(1) == 1:
        rows, stride = table.shape[0], table.stride(0)
        span = (rows - 1) * stride + table.shape[1] if rows else 0
        return table.as_strided((span,), (1,)), stride
    if table.is_cpu:
        return _copied(table[:, :columns]).view(-1), columns
    return _narrow(table[:, :columns].to(device)).view(-1), columns


def _copied(pages: torch.Tensor) -> torch.Tensor:
    """A contiguous int32 copy of host page ids, on the host (numpy: torch would wake its thread pool for it)."""
    ids = pages.numpy()
    if ids.dtype != np.int32:
        ids = np.clip(ids, -_LARGEST_PAGE, _LARGEST_PAGE)  # else 2**32 would wrap to a page that exists
    return torch.from_numpy(ids.astype(np.int32, order="C"))


def _narrow(pages: torch.Tensor) -> torch.Tensor:
    """Contiguous int32 page ids; one outside int32 stays outside every pool."""
    if pages.dtype != torch.int32:
        pages = pages.clamp(-_LARGEST_PAGE, _LARGEST_PAGE)
    return pages.to(torch.int32).contiguous()
