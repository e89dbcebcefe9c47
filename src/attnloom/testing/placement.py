"""How many heads a batch has, and how it lies in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

Storage = Literal["ragged", "csr", "table"]

# separate     two dense tensors
# packed       one tensor [pages, 2, ...], given to run as one argument
# interleaved  k | v side by side on the head dimension: the last dimension's stride is 1, heads lie D + Dv apart
# layers       one layer of a cache [pages, layers, 2, ...] of which the others are poison
# padded       pages further apart than their tokens need
# mixed        k and v in different physical orders behind the same declared layout
Arrangement = Literal["separate", "packed", "interleaved", "layers", "padded", "mixed"]


@dataclass(frozen=True)
class Heads:
    """Head counts, head dimensions, the storage type of q, and that of k and v (None: the same)."""

    num_qo: int = 4
    num_kv: int = 2
    dim_qk: int = 64
    dim_vo: int = 64
    dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype | None = None

    @classmethod
    def of(cls, num_qo: int, num_kv: int, dim: int, dtype: torch.dtype = torch.bfloat16) -> Heads:
        """Heads of equal q·k and v dimension."""
        return cls(num_qo, num_kv, dim, dim, dtype)

    @property
    def cached(self) -> torch.dtype:
        """The storage type of k and v."""
        return self.kv_dtype or self.dtype


@dataclass(frozen=True)
class Placement:
    """How sequences lie in memory.

    storage        "ragged", "csr" (kv_indptr, kv_indices, kv_last_page_len) or "table" (block table, seq_lens)
    page_size      tokens a page; ragged ignores it
    kv_layout      "NHD" or "HND", the order the engine is told
    arrangement    how k and v share memory, see `Arrangement`
    poison         what unowned bytes hold, a key of `poison.POISONS`
    seed           permutes the pages; the same seed gives the same places
    shared_pages   the first pages of every request are the same pages (their contents must be equal)
    q_padding      rows of poison after the last query row
    index_dtype    of indptr, indices, lengths and tables
    index_device   of the same; None: where the pool is
    """

    storage: Storage = "csr"
    page_size: int = 16
    kv_layout: Literal["NHD", "HND"] = "NHD"
    arrangement: Arrangement = "separate"
    poison: str = "nan"
    seed: int = 0
    shared_pages: int = 0
    q_padding: int = 0
    index_dtype: torch.dtype = torch.int32
    index_device: str | None = "cpu"

    def but(self, **changes: object) -> Placement:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]
