"""The merge kernel: partial states of each split tile become its final rows, whatever its tile class."""

import triton
import triton.language as tl

from attnloom.kernels.triton.finish import finish_rows, write_final
from attnloom.kernels.triton.rows import packed_rows, row_positions
from attnloom.kernels.triton.softmax import LN2, LOG2E, NEG_INF
from attnloom.kernels.triton.tile import empty_state


@triton.jit
def region_of(regions, class_index, CLASSES: tl.constexpr):
    """(first element of out, of lse, tile_q) of a class's partial states in the workspace."""
    out_at, lse_at, tile_q = regions[0], regions[1], regions[2]
    for index in tl.static_range(1, CLASSES):
        this = class_index == index
        out_at = tl.where(this, regions[3 * index], out_at)
        lse_at = tl.where(this, regions[3 * index + 1], lse_at)
        tile_q = tl.where(this, regions[3 * index + 2], tile_q)
    return out_at, lse_at, tile_q


@triton.jit
def load_states(base, dim_begin: tl.constexpr, there, WIDTH: tl.constexpr, DIM: tl.constexpr):
    """[rows, slots, WIDTH] elements from dim_begin on; 0 outside `there` and past DIM."""
    dim = dim_begin + tl.arange(0, WIDTH)
    mask = there[:, :, None]
    if dim_begin + WIDTH > DIM:
        mask = mask & (dim < DIM)[None, None, :]
    return tl.load(base[:, :, None] + dim[None, None, :], mask=mask, other=0.0)


@triton.jit
def add_states(acc, top, total, parts, part_lse, cfg: tl.constexpr):
    """Several states a row under the running maximum `top` (natural log); what lies under lse = -inf is not used."""
    acc0, acc1 = acc
    part0, part1 = parts
    if cfg.SOFTMAX:
        new_top = tl.maximum(top, tl.max(part_lse, 1))
        anchor = tl.where(new_top == NEG_INF, 0.0, new_top)
        keep = tl.exp2((top - anchor) * LOG2E)
        weight = tl.exp2((part_lse - anchor[:, None]) * LOG2E)
        some = (weight > 0)[:, :, None]
        acc0 = acc0 * keep[:, None] + tl.sum(tl.where(some, part0 * weight[:, :, None], 0.0), 1)
        if cfg.V1 > 0:
            acc1 = acc1 * keep[:, None] + tl.sum(tl.where(some, part1 * weight[:, :, None], 0.0), 1)
        return acc0, acc1, new_top, total * keep + tl.sum(weight, 1)
    acc0 = acc0 + tl.sum(part0, 1)
    if cfg.V1 > 0:
        acc1 = acc1 + tl.sum(part1, 1)
    return acc0, acc1, top, total


@triton.jit
def merged(workspace, region, slots_ptr, some_slots, heads, row_begin, inside, cfg: tl.constexpr):
    """(acc0, acc1, lse) of rows of one entry; some_slots: (first, behind the last), heads: (all of them, this one).

    TILE_KV states of each row are read at once, so that a long chain does not wait for one after the other.
    """
    out_at, lse_at, tile_q = region
    first, last = some_slots
    num_heads, head = heads
    acc0, acc1, top, total = empty_state(cfg)
    for index in range(first, last, cfg.TILE_KV):
        place = index + tl.arange(0, cfg.TILE_KV)
        slot = tl.load(slots_ptr + place * 2 + 1, mask=place < last, other=0) * num_heads + head
        there = inside[:, None] & (place < last)[None, :]
        row = slot.to(tl.int64)[None, :] * tile_q + (row_begin + tl.arange(0, cfg.TILE_Q))[:, None]
        out = workspace + out_at + row * cfg.DIM_VO
        part0 = load_states(out, 0, there, cfg.V0, cfg.DIM_VO)
        part1 = load_states(out, cfg.V0, there, cfg.V1, cfg.DIM_VO) if cfg.V1 > 0 else part0
        lse = tl.load(workspace + lse_at + row, mask=there, other=NEG_INF) if cfg.SOFTMAX else 0.0
        acc0, acc1, top, total = add_states((acc0, acc1), top, total, (part0, part1), lse, cfg)
    if cfg.SOFTMAX:
        empty = total == 0.0
        top = tl.where(empty, NEG_INF, top + tl.log2(tl.where(empty, 1.0, total)) * LN2)
        acc0 = tl.where(empty[:, None], 0.0, acc0 / tl.where(empty, 1.0, total)[:, None])
        acc1 = tl.where(empty[:, None], 0.0, acc1 / tl.where(empty, 1.0, total)[:, None])
    return acc0, acc1, top


@triton.jit(do_not_specialize=["operands", "regions", "num_kv_heads"])
def merge_kernel(
    out_tensor,  # (pointer, row stride, head stride)
    lse_tensor,  # (pointer, row stride)
    workspace,  # fp32
    regions,  # per class: first element of its partial states' out and lse in the workspace, tile_q
    merges,  # (entries, indptr, slots)
    sequences,  # (qo_indptr, kv_indptr, kv_len, pages, page_start)
    positions,
    operands,
    num_kv_heads,
    SINK: tl.constexpr,
    OUTPUT: tl.constexpr,
    CLASSES: tl.constexpr,
    cfg: tl.constexpr,
):
    """Entry `program_id(0)`, kv head `program_id(1)` of an every-head entry, and its share of the tile's rows.

    Entries without slots do nothing: the list's buffer may be longer than the list.
    """
    entries_ptr, indptr_ptr, slots_ptr = merges
    entry = tl.program_id(0)
    first = tl.load(indptr_ptr + entry)
    last = tl.load(indptr_ptr + entry + 1)
    at = entries_ptr + entry * 5
    row_count = tl.load(at + 2)
    kv_head = tl.load(at + 4)
    every = kv_head < 0
    if (first < last) & (every | (tl.program_id(1) == 0)):
        heads = (tl.where(every, num_kv_heads, 1), tl.where(every, tl.program_id(1), 0))
        kv_head = tl.where(every, tl.program_id(1), kv_head)
        region = region_of(regions, tl.load(slots_ptr + first * 2), CLASSES)
        request = tl.load(at)
        qo_indptr_ptr, _kv_indptr_ptr, kv_len_ptr, _pages_ptr, _page_start_ptr = sequences
        q_begin = tl.load(qo_indptr_ptr + request)
        qo_len = tl.load(qo_indptr_ptr + request + 1) - q_begin
        kv_len = tl.load(kv_len_ptr + request)
        row_start = tl.load(at + 1)
        out_ptr, out_stride_row, out_stride_head = out_tensor
        lse_ptr, lse_stride_row = lse_tensor
        for row_begin in range(tl.program_id(2) * cfg.TILE_Q, row_count, tl.num_programs(2) * cfg.TILE_Q):
            inside, q_idx, head_in_group = packed_rows(
                row_start + row_begin, row_count - row_begin, cfg.TILE_Q, cfg.GROUP
            )
            acc0, acc1, lse = merged(workspace, region, slots_ptr, (first, last), heads, row_begin, inside, cfg)
            q_pos = row_positions(positions[0], q_begin, q_idx, qo_len, kv_len, cfg.HAS_Q_POS)
            qo_head = kv_head * cfg.GROUP + head_in_group
            acc0, acc1, lse = finish_rows(
                (acc0, acc1), lse, (q_pos, qo_head, kv_head, request), operands, SINK, OUTPUT, cfg
            )
            write_final(
                (acc0, acc1),
                lse,
                (out_ptr, lse_ptr),
                (out_stride_row, out_stride_head, lse_stride_row),
                (q_begin + q_idx).to(tl.int64),
                qo_head,
                inside,
                cfg,
            )
