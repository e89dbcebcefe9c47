"""The one factory of KV pools for tests, demos and benchmarks.

`random_sequences` makes what a batch holds; `place` lays it out in a pool: ragged, paged by CSR or by block
table, NHD or HND, dense or strided, pages permuted, and every byte that no request owns poisoned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attnloom.formats import KVFormat, PagedKV, RaggedKV
from attnloom.testing.arrange import Pool, make_pool
from attnloom.testing.placement import Heads, Placement
from attnloom.testing.poison import UNUSED_PAGE_IDS, poison_


@dataclass(frozen=True)
class Sequences:
    """What each request holds: q ``[qo_len, H_qo, D]``, k ``[kv_len, H_kv, D]``, v ``[kv_len, H_kv, Dv]``."""

    heads: Heads
    q: tuple[torch.Tensor, ...]
    k: tuple[torch.Tensor, ...]
    v: tuple[torch.Tensor, ...]

    @property
    def qo_len(self) -> list[int]:
        """Query rows per request."""
        return [q.shape[0] for q in self.q]

    @property
    def kv_len(self) -> list[int]:
        """Keys per request."""
        return [k.shape[0] for k in self.k]

    def select(self, requests: Sequence[int]) -> Sequences:
        """The same requests in another order, fewer or repeated."""
        parts = (tuple(x[i] for i in requests) for x in (self.q, self.k, self.v))
        return Sequences(self.heads, *parts)


@dataclass(frozen=True)
class Batch:
    """Sequences in memory, ready for ``plan(batch.qo_indptr, batch.kv)`` and ``run(batch.q, *batch.caches)``.

    pages[i] lists the page ids of request i in order; for ragged KV `pages` is None and `kv_start[i]` is the
    request's first row. `pool.k_nhd` and `pool.v_nhd` are ``[pages, page_size, H_kv, D]`` views of the pool
    (ragged: one page of all rows), whatever its layout.
    """

    sequences: Sequences
    placement: Placement
    q: torch.Tensor
    qo_indptr: torch.Tensor
    kv: KVFormat
    pool: Pool
    pages: tuple[tuple[int, ...], ...] | None
    kv_start: tuple[int, ...]

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        """What `run` takes after q: (k_cache, v_cache), or one packed cache."""
        return self.pool.caches

    @property
    def total_q(self) -> int:
        """Query rows of the batch, padding not counted."""
        return sum(self.sequences.qo_len)

    def rows(self, request: int) -> slice:
        """Where the request's rows lie in q and out."""
        start = sum(self.sequences.qo_len[:request])
        return slice(start, start + self.sequences.qo_len[request])

    def keys(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v of a request as the pool holds them now, through its pages by plain indexing."""
        length = self.sequences.kv_len[request]
        position = torch.arange(length, device=self.pool.k_nhd.device)
        if self.pages is None:
            page, offset = torch.zeros_like(position), position + self.kv_start[request]
        else:
            size = self.placement.page_size
            ids = torch.tensor(self.pages[request], dtype=torch.int64, device=position.device)
            page, offset = ids[position // size], position % size
        return self.pool.k_nhd[page, offset], self.pool.v_nhd[page, offset]

    def poison_keys(self, request: int, positions: range, kind: str = "nan") -> None:
        """Overwrite keys that the request owns but does not look at (a window's past, say)."""
        for position in positions:
            page, offset = 0, self.kv_start[request] + position
            if self.pages is not None:
                size = self.placement.page_size
                page, offset = self.pages[request][position // size], position % size
            poison_(self.pool.k_nhd[page, offset], kind)
            poison_(self.pool.v_nhd[page, offset], kind)


def random_sequences(
    qo_len: Sequence[int],
    kv_len: Sequence[int],
    heads: Heads,
    *,
    seed: int = 0,
    shared_prefix: int = 0,
) -> Sequences:
    """Normal q, k and v of the given lengths; the first `shared_prefix` keys are the same in every request."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, count: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(rows, count, dim, generator=generator).to(dtype)

    q = tuple(normal(n, heads.num_qo, heads.dim_qk, heads.dtype) for n in qo_len)
    k = tuple(normal(n, heads.num_kv, heads.dim_qk, heads.cached) for n in kv_len)
    v = tuple(normal(n, heads.num_kv, heads.dim_vo, heads.cached) for n in kv_len)
    for each in (k, v):
        for later in each[1:]:
            later[:shared_prefix] = each[0][: later.shape[0]][:shared_prefix]
    return Sequences(heads, q, k, v)


def place(sequences: Sequences, placement: Placement, device: torch.device | str = "cpu") -> Batch:
    """Lay `sequences` out in a fresh poisoned pool on `device`."""
    heads, lengths = sequences.heads, sequences.kv_len
    generator = torch.Generator().manual_seed(placement.seed)
    start = tuple(sum(lengths[:i]) for i in range(len(lengths)))
    if placement.storage == "ragged":
        pages, shape = None, (1, sum(lengths) + 3)
    else:
        pages, num_pages = _assign_pages(lengths, placement, generator)
        shape = (num_pages, placement.page_size)
    pool = make_pool(shape, heads, placement, torch.device(device))
    batch = Batch(
        sequences=sequences,
        placement=placement,
        q=_query(sequences, placement, device),
        qo_indptr=_index(_indptr(sequences.qo_len), placement, device),
        kv=_format(lengths, pages, placement, device),
        pool=pool,
        pages=pages,
        kv_start=start,
    )
    _write(batch)
    return batch


def _assign_pages(
    lengths: list[int], placement: Placement, generator: torch.Generator
) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Page ids per request drawn from a permuted pool with pages to spare, and the size of that pool."""
    size, shared = placement.page_size, placement.shared_pages
    counts = [-(-n // size) for n in lengths]
    own = [max(count - shared, 0) for count in counts]
    num_pages = shared + sum(own) + 3
    order = torch.randperm(num_pages, generator=generator).tolist()
    common, free = order[:shared], iter(order[shared:])
    pages = tuple(
        tuple(common[:count]) + tuple(next(free) for _ in range(extra))
        for count, extra in zip(counts, own, strict=True)
    )
    return pages, num_pages


def _write(batch: Batch) -> None:
    k_nhd, v_nhd = batch.pool.k_nhd, batch.pool.v_nhd
    size = batch.placement.page_size
    for i, (k, v) in enumerate(zip(batch.sequences.k, batch.sequences.v, strict=True)):
        if batch.pages is None:
            pieces = [(0, batch.kv_start[i], 0, k.shape[0])]
        else:
            pieces = [(p, 0, j * size, min(size, k.shape[0] - j * size)) for j, p in enumerate(batch.pages[i])]
        for page, offset, position, count in pieces:
            k_nhd[page, offset : offset + count] = k[position : position + count].to(k_nhd.device)
            v_nhd[page, offset : offset + count] = v[position : position + count].to(v_nhd.device)


def _query(sequences: Sequences, placement: Placement, device: torch.device | str) -> torch.Tensor:
    heads = sequences.heads
    padding = torch.empty(placement.q_padding, heads.num_qo, heads.dim_qk, dtype=heads.dtype)
    return torch.cat([*sequences.q, poison_(padding, placement.poison)]).to(device)


def _indptr(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[:i]) for i in range(len(lengths) + 1)]


def _index(values: list[int] | list[list[int]], placement: Placement, device: torch.device | str) -> torch.Tensor:
    where = device if placement.index_device is None else placement.index_device
    return torch.tensor(values, dtype=placement.index_dtype, device=where)


def _format(
    lengths: list[int],
    pages: tuple[tuple[int, ...], ...] | None,
    placement: Placement,
    device: torch.device | str,
) -> KVFormat:
    if pages is None:
        return RaggedKV(_index(_indptr(lengths), placement, device))
    size = placement.page_size
    if placement.storage == "table":
        width = max((len(p) for p in pages), default=0) + 2
        # entries after a request's last page alternate between -1 and INT_MAX
        rows = [[*p, *(UNUSED_PAGE_IDS[j % 2] for j in range(width - len(p)))] for p in pages]
        table = _index(rows, placement, device).reshape(len(pages), width)
        return PagedKV.from_block_table(table, _index(lengths, placement, device), size)
    indices = [page for p in pages for page in p] + list(UNUSED_PAGE_IDS)
    last = [(n - 1) % size + 1 if n else 0 for n in lengths]
    indptr = _indptr([len(p) for p in pages])
    kv_indptr, kv_indices, last_page_len = (_index(x, placement, device) for x in (indptr, indices, last))
    return PagedKV(kv_indptr, kv_indices, last_page_len, page_size=size)
