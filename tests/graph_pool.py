"""One pool, one q and one out for many plans: what a captured launch keeps while the plans change."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import oracle
import torch
from harness import Expected
from oracle import Functors, Request

import attnloom as al
from attnloom.testing.inputs import Heads
from attnloom.testing.tolerance import State

ROWS_PAST = 7.0  # what rows of `out` hold before a launch


@dataclasses.dataclass(frozen=True)
class Step:
    """One plan's arguments, and the rows of the oracle; as much of a `Batch` as `harness.compare` looks at."""

    qo_len: list[int]
    kv_len: list[int]
    qo_indptr: torch.Tensor
    kv: object
    requests: list[Request]

    @property
    def total_q(self) -> int:
        return sum(self.qo_len)

    def rows(self, request: int) -> slice:
        start = sum(self.qo_len[:request])
        return slice(start, start + self.qo_len[request])

    def expect(self, functors: Functors, scale: float) -> Expected:
        exact, model = [], []
        for request in self.requests:
            for found, how in ((exact, oracle.attend), (model, oracle.model)):
                result = how(request, functors, scale)
                found.append(State(result.out, result.lse))
        return Expected(exact, model)


class Pool:
    """Pages of normal numbers, q and out of `rows` rows; `step` draws a page table for given lengths."""

    def __init__(self, heads: Heads, pages: int, page_size: int, rows: int, device: str) -> None:
        self.heads, self.page_size, self.device = heads, page_size, device
        self._generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=self._generator).to(heads.dtype)

        self._host = tuple(normal(pages, page_size, heads.num_kv, dim) for dim in (heads.dim_qk, heads.dim_vo))
        self._q = normal(rows, heads.num_qo, heads.dim_qk)
        self.k, self.v = (x.to(device) for x in self._host)
        self.q = self._q.to(device)
        self.out = torch.full((rows, heads.num_qo, heads.dim_vo), ROWS_PAST, dtype=heads.dtype, device=device)
        self.lse = torch.full((rows, heads.num_qo), ROWS_PAST, device=device)

    @property
    def scale(self) -> float:
        return self.heads.dim_qk**-0.5

    def step(self, qo_len: Sequence[int], kv_len: Sequence[int], *, ragged: bool = False, where: str = "cpu") -> Step:
        """Requests over permuted pages (csr on the host, a table on a device); ragged: over the pool's first rows."""
        k, v = self._host
        requests, pages, at = [], [], 0
        for i, (qo, kv) in enumerate(zip(qo_len, kv_len, strict=True)):
            count = -(-kv // self.page_size)
            ids = torch.randperm(k.shape[0], generator=self._generator)[:count]
            first = sum(kv_len[:i])
            if ragged:
                keys, values = (x.flatten(0, 1)[first : first + kv] for x in (k, v))
            else:
                keys, values = (x[ids].flatten(0, 1)[:kv] for x in (k, v))
            requests.append(Request(self._q[at : at + qo], keys, values, i))
            pages.append(ids)
            at += qo
        indptr = _indptr(qo_len).to(where)
        return Step(list(qo_len), list(kv_len), indptr, self._kv(pages, kv_len, ragged, where), requests)

    def _kv(self, pages: list[torch.Tensor], kv_len: Sequence[int], ragged: bool, where: str) -> object:
        if ragged:
            return al.RaggedKV(_indptr(kv_len))
        if where == "cpu":
            last = torch.tensor([(n - 1) % self.page_size + 1 if n else 0 for n in kv_len], dtype=torch.int32)
            flat = torch.cat([*pages, torch.empty(0, dtype=torch.int64)]).int()
            return al.PagedKV(_indptr([len(p) for p in pages]), flat, last, self.page_size)
        table = torch.full((len(pages), max([len(p) for p in pages] or [0]) + 1), -1, dtype=torch.int32)
        for row, ids in zip(table, pages, strict=True):
            row[: len(ids)] = ids
        return al.PagedKV.from_block_table(table.to(where), torch.tensor(kv_len, dtype=torch.int32), self.page_size)

    def caches(self, ragged: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """What `run` takes after q."""
        return (self.k.flatten(0, 1), self.v.flatten(0, 1)) if ragged else (self.k, self.v)


def _indptr(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=torch.int32)
