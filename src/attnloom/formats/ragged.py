"""Ragged KV: the keys of all requests packed one after another."""

from __future__ import annotations

from typing import Any

import torch

from attnloom.formats.base import KVFormat, ResolvedKV
from attnloom.formats.index import expect_length, host_lengths


class RaggedKV(KVFormat):
    """K and V as ``[total_kv, H_kv, D]`` (NHD) or ``[H_kv, total_kv, D]`` (HND), requests back to back.

    kv_indptr: int32 or int64 ``[batch + 1]``, starts at 0, in tokens.
    """

    def __init__(self, kv_indptr: Any) -> None:
        self.kv_indptr = kv_indptr

    def __repr__(self) -> str:
        return f"RaggedKV(kv_indptr={self.kv_indptr!r})"

    def resolve(self, batch: int, device: torch.device) -> ResolvedKV:
        """See KVFormat.resolve."""
        indptr, lengths = host_lengths("kv_indptr", self.kv_indptr)
        expect_length("kv_indptr", indptr, batch + 1, "batch + 1, from qo_indptr")
        return ResolvedKV(lengths, indptr[:-1], None, 1, int(indptr[-1]))
