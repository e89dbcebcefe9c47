"""What every KV format resolves to: lengths on the host, page ids where the kernels read them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from attnloom.formats.index import IntArray


@dataclass(frozen=True)
class ResolvedKV:
    """One level of keys, ready for a Plan.

    kv_len      int64 [batch], tokens per request (host)
    page_start  int64 [batch]: index into `pages` of a request's first page; ragged: its first row (host)
    pages       int32 flat page ids, a host copy or a device's own; None: ragged, token rows themselves
    page_size   tokens a page; 1 for ragged
    capacity    rows that k and v must at least have (ragged), 0 where pages are checked instead
    row_stride  elements between the requests of a dense table, 0 where they follow one another (CSR)
    """

    kv_len: IntArray
    page_start: IntArray
    pages: torch.Tensor | None
    page_size: int
    capacity: int
    row_stride: int = 0

    @property
    def columns(self) -> int:
        """Pages of the longest request."""
        longest = int(self.kv_len.max(initial=0))
        return (longest + self.page_size - 1) // self.page_size

    @property
    def num_entries(self) -> int:
        """Page ids that the plan keeps: CSR all of the requests', a dense table `columns` a request; ragged: rows."""
        if self.pages is None:
            return self.capacity
        batch = len(self.kv_len)
        if self.row_stride or not batch:
            return batch * self.columns
        first, last_len = int(self.page_start[-1]), int(self.kv_len[-1])
        return first + (last_len + self.page_size - 1) // self.page_size

    def host_page_bounds(self) -> tuple[int, int]:
        """Smallest and largest page id that a request owns, (0, -1) when none does; reads `pages` on the host."""
        if self.pages is None:
            return 0, -1
        flat = self.pages.cpu().numpy()
        counts = -(-self.kv_len // self.page_size)
        total = int(counts.sum())
        if total == 0:
            return 0, -1
        first = np.repeat(self.page_start, counts)
        within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        used = flat[first + within]
        return int(used.min()), int(used.max())


class KVFormat(ABC):
    """Base of the formats that `plan` takes."""

    @abstractmethod
    def resolve(self, batch: int, device: torch.device) -> ResolvedKV:
        """Validate against `batch` requests; page ids that do not lie on the host come to `device`.

        Host arrays are copied on the host, so that the caller may overwrite them; device arrays are read in place.
        Raises InvalidMetadata before anything is launched.
        """
