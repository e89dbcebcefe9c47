"""The merge kernel: partial states of each split tile become its final rows, in kv order."""

import triton
import triton.language as tl

from attnloom.kernels.triton.finish import finish_rows, write_final
from attnloom.kernels.triton.rows import load_rows, packed_rows, row_positions
from attnloom.kernels.triton.softmax import LN2, LOG2E, NEG_INF
from attnloom.kernels.triton.tile import empty_state


@triton.jit
def add_state(acc, top, total, part, part_lse, cfg: tl.constexpr):
    """One more state under the running maximum `top` (natural log); what lies under lse = -inf is not used."""
    acc0, acc1 = acc
    part0, part1 = part
    if cfg.SOFTMAX:
        new_top = tl.maximum(top, part_lse)
        anchor = tl.where(new_top == NEG_INF, 0.0, new_top)
        keep = tl.exp2((top - anchor) * LOG2E)
        weight = tl.exp2((part_lse - anchor) * LOG2E)
        some = (weight > 0)[:, None]
        acc0 = acc0 * keep[:, None] + tl.where(some, part0 * weight[:, None], 0.0)
        acc1 = acc1 * keep[:, None] + tl.where(some, part1 * weight[:, None], 0.0)
        return acc0, acc1, new_top, total * keep + weight
    return acc0 + part0, acc1 + part1, top, total


@triton.jit(do_not_specialize=["operands", "num_kv_heads", "class_index"])
def merge_kernel(
    out_tensor,  # (pointer, row stride, head stride)
    lse_tensor,  # (pointer, row stride)
    parts,  # (out, lse) of the class that the entry's slots belong to
    merges,  # (entries, indptr, slots)
    sequences,  # (qo_indptr, kv_indptr, kv_len, pages, page_start)
    positions,
    operands,
    num_kv_heads,
    class_index,
    SINK: tl.constexpr,
    OUTPUT: tl.constexpr,
    cfg: tl.constexpr,
):
    """Entry `program_id(0)`, kv head `program_id(1)` of an every-head entry; entries of other classes do nothing.

    Nor do entries without slots: the list's buffer may be longer than the list.
    """
    entries_ptr, indptr_ptr, slots_ptr = merges
    entry = tl.program_id(0)
    first = tl.load(indptr_ptr + entry)
    last = tl.load(indptr_ptr + entry + 1)
    at = entries_ptr + entry * 5
    kv_head = tl.load(at + 4)
    every = kv_head < 0
    mine = (first < last) & (tl.load(slots_ptr + first * 2, mask=first < last, other=-1) == class_index)
    if every:
        kv_head = tl.program_id(1)
    elif tl.program_id(1) > 0:
        mine = False
    if mine:
        request = tl.load(at)
        inside, q_idx, head_in_group = packed_rows(tl.load(at + 1), tl.load(at + 2), cfg.TILE_Q, cfg.GROUP)
        acc0, acc1, top, total = empty_state(cfg)
        part_out, part_lse = parts
        for index in range(first, last):
            slot = tl.load(slots_ptr + index * 2 + 1)
            if every:
                slot = slot * num_kv_heads + kv_head
            row = slot.to(tl.int64) * cfg.TILE_Q + tl.arange(0, cfg.TILE_Q)
            part0 = load_rows(part_out + row * cfg.DIM_VO, 0, inside, cfg.V0, cfg.DIM_VO)
            part1 = load_rows(part_out + row * cfg.DIM_VO, cfg.V0, inside, cfg.V1, cfg.DIM_VO) if cfg.V1 > 0 else acc1
            lse = tl.load(part_lse + row, mask=inside, other=NEG_INF) if cfg.SOFTMAX else top
            acc0, acc1, top, total = add_state((acc0, acc1), top, total, (part0, part1), lse, cfg)
        lse = top
        if cfg.SOFTMAX:
            empty = total == 0.0  # also where every state is NaN, `top` stays -inf
            lse = tl.where(empty, NEG_INF, top + tl.log2(tl.where(empty, 1.0, total)) * LN2)
            acc0 = tl.where(empty[:, None], 0.0, acc0 / tl.where(empty, 1.0, total)[:, None])
            acc1 = tl.where(empty[:, None], 0.0, acc1 / tl.where(empty, 1.0, total)[:, None])
        qo_indptr_ptr, _kv_indptr_ptr, kv_len_ptr, _pages_ptr, _page_start_ptr = sequences
        q_begin = tl.load(qo_indptr_ptr + request)
        qo_len = tl.load(qo_indptr_ptr + request + 1) - q_begin
        q_pos = row_positions(positions[0], q_begin, q_idx, qo_len, tl.load(kv_len_ptr + request), cfg.HAS_Q_POS)
        qo_head = kv_head * cfg.GROUP + head_in_group
        acc0, acc1, lse = finish_rows(
            (acc0, acc1), lse, (q_pos, qo_head, kv_head, request), operands, SINK, OUTPUT, cfg
        )
        out_ptr, out_stride_row, out_stride_head = out_tensor
        lse_ptr, lse_stride_row = lse_tensor
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
