"""KV formats: how a batch's keys lie in memory. Arrays, units, validation; no tensors of K or V."""

from attnloom.formats.base import KVFormat, ResolvedKV
from attnloom.formats.composed import ComposedKV, Level
from attnloom.formats.index import exclusive_cumsum, host_ints, host_lengths
from attnloom.formats.paged import PagedKV
from attnloom.formats.ragged import RaggedKV
from attnloom.formats.sparse import BlockSparse

__all__ = [
    "BlockSparse",
    "ComposedKV",
    "KVFormat",
    "Level",
    "PagedKV",
    "RaggedKV",
    "ResolvedKV",
    "exclusive_cumsum",
    "host_ints",
    "host_lengths",
]
