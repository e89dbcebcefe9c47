"""Work items of the Plan: their fields, their rows of q, and the runs of kv tiles that they visit.

All of it can be read one item ahead, so that its latency passes while another item is computed.
"""

import triton
import triton.language as tl

from attnloom.kernels.triton.rows import load_rows, packed_rows
from attnloom.schedule.work import ITEM_FIELDS, SEGMENT_FIELDS

FIELDS = tl.constexpr(len(ITEM_FIELDS))
BOUNDS = tl.constexpr(len(SEGMENT_FIELDS))


@triton.jit
def read_item(items_ptr, item_segments_ptr, item, some, cta, heads_per_item):
    """(request, row_start, row_count, kv_head, kv_begin, kv_end, out_slot, first segment, behind the last).

    Every-head items are resolved for this CTA's head. All zero unless `some`.
    """
    at = items_ptr + item * FIELDS
    request = tl.load(at, mask=some, other=0)
    row_start = tl.load(at + 1, mask=some, other=0)
    row_count = tl.load(at + 2, mask=some, other=0)
    kv_head = tl.load(at + 4, mask=some, other=0)
    kv_begin = tl.load(at + 5, mask=some, other=0)
    kv_end = tl.load(at + 6, mask=some, other=0)
    slot = tl.load(at + 7, mask=some, other=0)
    first = tl.load(item_segments_ptr + item * 2, mask=some, other=0)
    count = tl.load(item_segments_ptr + item * 2 + 1, mask=some, other=0)
    head = cta % heads_per_item
    slot = tl.where((kv_head < 0) & (slot >= 0), slot * heads_per_item + head, slot)
    kv_head = tl.where(kv_head < 0, head, kv_head)
    return request, row_start, row_count, kv_head, kv_begin, kv_end, slot, first, first + count


@triton.jit
def read_request(sequences, request):
    """(first row of q, qo_len, kv_len, start in the page table) of a request."""
    qo_indptr_ptr, _, kv_len_ptr, _, page_start_ptr = sequences
    q_begin = tl.load(qo_indptr_ptr + request)
    qo_len = tl.load(qo_indptr_ptr + request + 1) - q_begin
    return q_begin, qo_len, tl.load(kv_len_ptr + request), tl.load(page_start_ptr + request)


@triton.jit
def locate_rows(item, of_request, cfg: tl.constexpr):
    """(inside, q_idx, row of q int64, query head) of an item's packed rows, each [TILE_Q]."""
    _, row_start, row_count, kv_head, _, _, _, _, _ = item
    inside, q_idx, head_in_group = packed_rows(row_start, row_count, cfg.TILE_Q, cfg.GROUP)
    return inside, q_idx, (of_request[0] + q_idx).to(tl.int64), kv_head * cfg.GROUP + head_in_group


@triton.jit
def load_queries(q_tensor, item, of_request, cfg: tl.constexpr):
    """The two pieces of an item's rows of q; the first again where the head dim is one piece."""
    q_ptr, stride_row, stride_head = q_tensor
    inside, _, q_row, qo_head = locate_rows(item, of_request, cfg)
    base = q_ptr + q_row * stride_row + qo_head.to(tl.int64) * stride_head
    q0 = load_rows(base, 0, inside, cfg.K0, cfg.DIM_QK)
    q1 = load_rows(base, cfg.K0, inside, cfg.K1, cfg.DIM_QK) if cfg.K1 > 0 else q0
    return q0, q1


@triton.jit
def read_segment(segments_ptr, segment, last):
    """(begin, end, full) of a segment; none begins at -1."""
    at = segments_ptr + segment * BOUNDS
    some = segment < last
    begin = tl.load(at, mask=some, other=-1)
    end = tl.load(at + 1, mask=some, other=-1)
    return begin, end, tl.load(at + 2, mask=some, other=0) != 0


@triton.jit
def next_run(segments_ptr, segment, last):
    """Up to three neighbouring segments, at most one of them full, as one run of tiles without a break.

    Returns (segment behind the run, begin, end, begin and end of its full segment or two times the run's end).
    """
    begin, end, full = read_segment(segments_ptr, segment, last)
    begin1, end1, full1 = read_segment(segments_ptr, segment + 1, last)
    begin2, end2, full2 = read_segment(segments_ptr, segment + 2, last)
    joins1 = (begin1 == end) & ~(full & full1)
    joins2 = joins1 & (begin2 == end1) & ~((full | full1) & full2)
    full1 = full1 & joins1
    full2 = full2 & joins2
    run_end = tl.where(joins2, end2, tl.where(joins1, end1, end))
    full_begin = tl.where(full, begin, tl.where(full1, begin1, tl.where(full2, begin2, run_end)))
    full_end = tl.where(full, end, tl.where(full1, end1, tl.where(full2, end2, run_end)))
    return segment + 1 + joins1.to(tl.int32) + joins2.to(tl.int32), begin, run_end, full_begin, full_end
