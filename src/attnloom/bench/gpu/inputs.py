"""A case's tensors, made on the device: q, a pool of permuted pages, and contiguous copies for peers without pages."""

from __future__ import annotations

import copy
import functools

import torch

from attnloom import PagedKV, RaggedKV
from attnloom.bench.arguments import DTYPES
from attnloom.bench.gpu.case import GpuCase
from attnloom.formats import KVFormat

_SPARE_PAGES = 3


class DeviceBatch:
    """Random q, k and v of a case on one device.

    q ``[total_q, H_qo, D]``; k, v ``[pages, page_size, H_kv, D]``, pages permuted (ragged: ``[total_kv, H_kv, D]``);
    qo_indptr, kv_indptr (pages), token_indptr, last_page_len: int32 on the host; page_ids: int32 on the device.
    Slots past a request's last token hold numbers: peers need not bear NaN there.
    """

    def __init__(self, gpu_case: GpuCase, seed: int = 0) -> None:
        self.gpu_case = gpu_case
        case = self.case = gpu_case.case
        self.device = torch.device(case.device)
        self.dtype = DTYPES[case.dtype]
        lengths = case.lengths
        self.qo_lens, self.kv_lens = lengths.qo, lengths.kv
        self._generator = torch.Generator(self.device).manual_seed(seed)
        qo_heads, self.num_kv_heads = case.heads
        self.q = self._normal(sum(self.qo_lens), qo_heads, case.head_dim)
        self.qo_indptr, self.token_indptr = _indptr(self.qo_lens), _indptr(self.kv_lens)
        self._kv_len = torch.tensor(self.kv_lens, dtype=torch.int32)
        if case.page_size is None:
            self.k, self.v = (self._cache(sum(self.kv_lens), self.num_kv_heads, case.head_dim) for _ in "kv")
        else:
            self._make_pool(case.page_size)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=self.dtype, device=self.device, generator=self._generator)

    def _cache(self, *shape: int) -> torch.Tensor:
        return self._normal(*shape).to(self.case.kv_torch_dtype)

    def _make_pool(self, page_size: int) -> None:
        counts = [-(-n // page_size) for n in self.kv_lens]
        self.kv_indptr = _indptr(tuple(counts))
        self.last_page_len = torch.where(self._kv_len > 0, (self._kv_len - 1) % page_size + 1, 0).int()
        num_pages = sum(counts) + _SPARE_PAGES
        order = torch.randperm(num_pages, device=self.device, generator=self._generator)
        self.page_ids = order[: sum(counts)].int()
        self.k, self.v = (self._cache(num_pages, page_size, self.num_kv_heads, self.case.head_dim) for _ in "kv")

    @property
    def total_q(self) -> int:
        """Query rows."""
        return self.q.shape[0]

    @property
    def is_constant(self) -> bool:
        """Every request has the same number of query rows, and of keys."""
        return len(set(self.qo_lens)) == 1 and len(set(self.kv_lens)) == 1

    @property
    def is_square(self) -> bool:
        """Every request has as many query rows as keys."""
        return self.qo_lens == self.kv_lens

    def kv_format(self) -> KVFormat:
        """What AttnLoom's `plan` takes, from arrays on the host and page ids on the device."""
        if self.case.page_size is None:
            return RaggedKV(self.token_indptr)
        if self.case.capacity is not None:
            table = self._block_table(self.case.page_size, self.case.capacity)
            return PagedKV.from_block_table(table, self._kv_len, self.case.page_size)
        return PagedKV(self.kv_indptr, self.page_ids, self.last_page_len, page_size=self.case.page_size)

    def _block_table(self, page_size: int, capacity: int) -> torch.Tensor:
        """int32 ``[batch, pages of capacity]``; unused entries are 0."""
        table = self.page_ids.new_zeros(len(self.kv_lens), -(-capacity // page_size))
        used = self.kv_indptr.diff().to(self.device)
        table[torch.arange(table.shape[1], device=self.device) < used[:, None]] = self.page_ids
        return table

    @functools.cached_property
    def contiguous(self) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v ``[total_kv, H_kv, D]`` in the order of the requests."""
        if self.case.page_size is None:
            return self.k, self.v
        slots = self._slots(self.case.page_size)
        return _take(self.k, slots), _take(self.v, slots)

    def _slots(self, page_size: int) -> torch.Tensor:
        """Row of the flattened pool that holds each token."""
        lens = self._kv_len.to(self.device).long()
        request = torch.repeat_interleave(torch.arange(len(lens), device=self.device), lens)
        position = torch.arange(len(request), device=self.device) - self.token_indptr.to(self.device).long()[request]
        page = self.kv_indptr.to(self.device).long()[request] + position // page_size
        return self.page_ids[page].long() * page_size + position % page_size

    def repaged(self, gpu_case: GpuCase) -> DeviceBatch:
        """The same q, k and v on pages as `gpu_case` says."""
        other = DeviceBatch(gpu_case)
        other.q = self.q
        if gpu_case.case.page_size is None:
            other.k, other.v = self.contiguous
            return other
        assigned = zip((other.k, other.v), self.contiguous, strict=True)
        slots = other._slots(other.k.shape[1])
        for pool, values in assigned:
            pool.flatten(0, 1)[slots] = values
        return other

    def asking(self, gpu_case: GpuCase) -> DeviceBatch:
        """The same keys and values under queries as `gpu_case` says (its lengths of K and V are these)."""
        other = copy.copy(self)
        other.gpu_case, other.case = gpu_case, gpu_case.case
        if (qo_lens := gpu_case.case.lengths.qo) != self.qo_lens:
            other.qo_lens, other.qo_indptr = qo_lens, _indptr(qo_lens)
            other.q = self._normal(sum(qo_lens), *self.q.shape[1:])
        return other

    def padded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v ``[batch, longest, H_kv, D]``, zeros past each request's last token."""
        longest = max(self.kv_lens)
        owned = torch.arange(longest, device=self.device) < self._kv_len.to(self.device)[:, None]
        k, v = (x.new_zeros(*owned.shape, *x.shape[1:]) for x in self.contiguous)
        k[owned], v[owned] = self.contiguous
        return k, v

    def stacked(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v ``[batch, tokens, H, D]``, for constant lengths only."""
        batch = len(self.qo_lens)
        k, v = self.contiguous
        return self.q.unflatten(0, (batch, -1)), k.unflatten(0, (batch, -1)), v.unflatten(0, (batch, -1))


def _take(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows of a flattened pool; types of one byte are taken as bytes, for which every torch has kernels."""
    rows = pool.flatten(0, 1)
    return rows.view(torch.uint8)[slots].view(rows.dtype) if rows.itemsize == 1 else rows[slots]


def _indptr(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()
