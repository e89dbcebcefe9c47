"""The cache of flash_attn_with_kvcache: where its keys lie, and the slots that new ones go to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnloom.errors import InvalidArgument, InvalidMetadata
from attnloom.integrations.flash_attn.lengths import check_batch, read_host


@dataclass(frozen=True)
class Lengths:
    """Per request, on the host: keys before the call, and leading ones that are hidden (None: none)."""

    before: list[int]
    leftpad: list[int] | None


@dataclass(frozen=True)
class Table:
    """Page ids ``[batch, pages]`` of a pool with page_size tokens a page; a cache without pages is one page a row."""

    pages: torch.Tensor
    page_size: int

    @property
    def capacity(self) -> int:
        """Tokens that a request can have."""
        return self.pages.shape[1] * self.page_size

    def slots(self, positions: torch.Tensor) -> torch.Tensor:
        """page · page_size + offset of positions int64 ``[batch, n]``; −1 where a position is negative."""
        inside = positions.clamp(min=0)
        page = self.pages.to(positions.device).gather(1, inside // self.page_size).long()
        return torch.where(positions < 0, -1, page * self.page_size + inside % self.page_size)


def read_table(k_cache: torch.Tensor, block_table: Any, cache_batch_idx: Any, batch: int) -> Table:
    """The table that `block_table` or `cache_batch_idx` gives."""
    if block_table is not None:
        if cache_batch_idx is not None:
            raise InvalidArgument(
                name="cache_batch_idx",
                given="a tensor beside block_table",
                supported="one of them",
                fix="A block table names the pages itself: index its rows instead.",
            )
        return Table(check_table(block_table, batch), k_cache.shape[1])
    if cache_batch_idx is None:
        if batch > k_cache.shape[0]:
            raise InvalidMetadata(
                name="k_cache", given=f"{k_cache.shape[0]} sequences", expected=f"at least q's batch {batch}", fix=""
            )
        rows = torch.arange(batch, dtype=torch.int32, device=k_cache.device)
    else:
        rows = cache_batch_idx
        if not isinstance(rows, torch.Tensor) or rows.dtype not in (torch.int32, torch.int64) or rows.ndim != 1:
            raise InvalidMetadata(
                name="cache_batch_idx", given=repr(rows), expected="a 1-D tensor of int32 (or int64)", fix=""
            )
        if rows.shape[0] != batch:
            raise InvalidMetadata(
                name="cache_batch_idx", given=f"{rows.shape[0]} elements", expected=f"{batch}, q's batch", fix=""
            )
    return Table(rows[:, None], k_cache.shape[1])


def check_table(block_table: Any, batch: int) -> torch.Tensor:
    """A block table int32/int64 ``[batch, pages]``."""
    is_table = isinstance(block_table, torch.Tensor) and block_table.dtype in (torch.int32, torch.int64)
    if not is_table or block_table.ndim != 2 or block_table.shape[0] != batch:
        shape = tuple(block_table.shape) if isinstance(block_table, torch.Tensor) else type(block_table).__name__
        raise InvalidMetadata(
            name="block_table",
            given=f"{getattr(block_table, 'dtype', '')} {shape}",
            expected=f"int32 [{batch}, max_num_blocks_per_seq]",
            fix="One row a request.",
        )
    table: torch.Tensor = block_table
    return table


def read_lengths(cache_seqlens: Any, cache_leftpad: Any, table: Table, batch: int) -> Lengths:
    """cache_seqlens (int, ``[batch]``, None: the whole cache) and cache_leftpad on the host, in one transfer."""
    given = {"cache_leftpad": cache_leftpad} if cache_leftpad is not None else {}
    whole = cache_seqlens is None or (isinstance(cache_seqlens, int) and not isinstance(cache_seqlens, bool))
    if not whole:
        given["cache_seqlens"] = cache_seqlens
    host = read_host(given)
    for name, values in host.items():
        check_batch(name, values, batch)
    before = host.get("cache_seqlens", [table.capacity if cache_seqlens is None else cache_seqlens] * batch)
    return Lengths(before, host.get("cache_leftpad"))


def check_room(lengths: Lengths, new: int, table: Table) -> list[int]:
    """Keys of each request with its `new` ones; raises where they do not fit.

    A negative length is an unused row of the batch: what would lie before position 0 is not written.
    """
    after = [max(length + new, 0) for length in lengths.before]
    longest = max(after, default=0)
    if longest > table.capacity:
        raise InvalidMetadata(
            name="cache_seqlens",
            given=f"{longest - new} keys and {new} new ones",
            expected=f"at most {table.capacity} tokens, what the cache holds a sequence",
            fix="Allocate a longer cache, or give block_table more columns.",
        )
    if lengths.leftpad is not None:
        _check_leftpad(lengths.leftpad, after)
    return after


def _check_leftpad(leftpad: Sequence[int], after: Sequence[int]) -> None:
    for request, (hidden, length) in enumerate(zip(leftpad, after, strict=True)):
        if not 0 <= hidden <= length:
            raise InvalidMetadata(
                name="cache_leftpad",
                given=f"{hidden} for request {request} with {length} keys",
                expected="0 to the number of its keys",
                fix="It is the index of the first valid key.",
            )
