"""The Plan: plain integers that say which CTA reads which keys for which rows.

Laid out once, here; read by every implementation, filled by a planner. Terms:

packed row   query rows of one request and kv head, the heads of its group fused in:
             ``p = q_idx * group_size + head_in_group``
q tile       up to ``tile_q`` neighbouring packed rows
work item    one q tile (or a part of its kv range), eight int32: see `ITEM_FIELDS`
segment      a run of kv tiles of one q tile that the mask leaves non-empty
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from attnloom.schedule.arrays import Column, Stored

if TYPE_CHECKING:
    import torch

ITEM_FIELDS = ("request", "row_start", "row_count", "row_map", "kv_head", "kv_begin", "kv_end", "out_slot")
REQUEST, ROW_START, ROW_COUNT, ROW_MAP, KV_HEAD, KV_BEGIN, KV_END, OUT_SLOT = range(8)
MERGE_FIELDS = ITEM_FIELDS[:5]
SEGMENT_FIELDS = ("kv_begin", "kv_end", "full")

NO_ROW_MAP = -1
ALL_HEADS = -1
FINAL_OUTPUT = -1


@dataclass(frozen=True)
class TileClass:
    """A size of tile that an implementation has a kernel for.

    tile_q: packed rows a CTA holds; tile_kv: keys per step; num_ctas: persistent workers of its launch;
    every_head: items may stand for every kv head where few CTAs idle for it; False: each names its own;
    section_keys: where items name their head and several share their keys: keys, of all requests and heads, that are
    worked on at a time, as many as a cache holds; 0: no limit;
    counted: its CTAs count the items they take, in the workspace, so that idle ones can run those of others.
    """

    tile_q: int
    tile_kv: int
    num_ctas: int
    every_head: bool = True
    section_keys: int = 0
    counted: bool = False


@dataclass(frozen=True)
class ClassPlan(Stored):
    """The work of one tile class.

    items          int32 [n, 8], `ITEM_FIELDS`; kv_head = -1 stands for every kv head
    item_segments  int32 [n, 2], (start, count) into segments
    segments       int32 [m, 3], `SEGMENT_FIELDS`: ascending runs of non-empty kv tiles, full = no mask needed
    work_indptr    int32 [num_ctas + 1]; CTA c runs the items of group ``c // heads_per_item``
                   for kv head ``c % heads_per_item`` (heads_per_item 1: the item names its head)
    """

    tile: TileClass
    heads_per_item: int
    items: torch.Tensor
    item_segments: torch.Tensor
    segments: torch.Tensor
    work_indptr: torch.Tensor

    COLUMNS: ClassVar[dict[str, Column]] = {
        "segments": Column(0, len(SEGMENT_FIELDS)),
        "items": Column(1, len(ITEM_FIELDS)),
        "item_segments": Column(2, 2),
        "work_indptr": Column(3),
    }

    @property
    def num_items(self) -> int:
        """Work items of this class."""
        return self.rows("items")


@dataclass(frozen=True)
class PageView(Stored):
    """Where the keys of each sequence lie; one per level of a composed format.

    pages       int32 flat page ids (CSR indices or a block table read in place), None for ragged KV
    page_start  int64 [batch]: index into pages of a sequence's first page; ragged: its first row of k and v
    kv_len      int32 [batch]
    page_size   tokens a page, 1 for ragged
    positions   int32 logical first position per page entry, for sparse views; None: pages are in order
    """

    pages: torch.Tensor | None
    page_start: torch.Tensor
    kv_len: torch.Tensor
    page_size: int
    positions: torch.Tensor | None = None

    COLUMNS: ClassVar[dict[str, Column]] = {"page_start": Column(0, wide=True), "kv_len": Column(1), "pages": Column(2)}


@dataclass(frozen=True)
class MergeList(Stored):
    """Tiles whose kv was split, and the partial states that make each up, in kv order.

    entries  int32 [n, 5], `MERGE_FIELDS`
    indptr   int32 [n + 1] into slots
    slots    int32 [k, 2]: (class index, partial slot of that class); kv_head = -1: slot * num_kv_heads + head
    """

    entries: torch.Tensor
    indptr: torch.Tensor
    slots: torch.Tensor

    COLUMNS: ClassVar[dict[str, Column]] = {
        "entries": Column(0, len(MERGE_FIELDS)),
        "indptr": Column(1),
        "slots": Column(2, 2),
    }

    @property
    def num_entries(self) -> int:
        """Tiles that were split."""
        return self.rows("entries")


@dataclass(frozen=True)
class Plan(Stored):
    """Everything a launch needs besides the tensors.

    A composed format has several levels: its sequences are numbered through (``level_indptr``), and rows
    that are not neighbours are gathered through ``row_maps`` (item.row_map is an offset into it).

    whole  under declared maxima: the buffers that this plan's arrays are the beginnings of, in their full
           extent and the same for every plan. ``work_indptr`` says which items are real, and the merge list's
           indptr repeats its last value; so a launch of `whole` does the work of whatever plan was made last.
    """

    batch: int
    total_q: int
    total_kv: int
    num_qo_heads: int
    num_kv_heads: int
    qo_indptr: torch.Tensor  # int32 [batch + 1]
    kv_indptr: torch.Tensor  # int64 [batch + 1], tokens: where a request's kv_pos values start
    levels: tuple[PageView, ...]
    level_indptr: tuple[int, ...]
    classes: tuple[ClassPlan, ...]
    merges: MergeList
    row_maps: torch.Tensor | None
    deterministic: bool
    has_q_pos: bool
    has_kv_pos: bool
    whole: Plan | None = None

    COLUMNS: ClassVar[dict[str, Column]] = {"kv_indptr": Column(0, wide=True), "qo_indptr": Column(1)}

    @property
    def group_size(self) -> int:
        """Query heads per kv head."""
        return self.num_qo_heads // self.num_kv_heads
