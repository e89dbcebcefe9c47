"""Rows of new keys and values into their slots of a paged cache."""

import triton
import triton.language as tl

from attnloom.kernels.fp8 import quantised, scale_of
from attnloom.kernels.triton.rows import load_rows, store_rows


@triton.jit
def write_slots(
    source, token, head, cache, scale, slot, inside, WIDTH: tl.constexpr, DIM: tl.constexpr, FORMAT: tl.constexpr
):
    """Row (token, head) of source into `slot` of cache; a slot below 0 or past the pool is left out.

    source is (pointer, token stride, head stride), cache (pointer, page stride, token stride, head stride,
    page_size, num_pages); products with a stride are int64. FORMAT: that of an fp8 cache, for which elements are
    divided by the head's scale, (number or pointer, stride), and quantised; "" copies.
    """
    from_ptr, from_token, from_head = source
    to_ptr, to_page, to_token, to_head, page_size, num_pages = cache
    page = slot // page_size
    within = slot - page * page_size
    kept = inside & (slot >= 0) & (page < num_pages)
    values = load_rows(from_ptr + token * from_token + head * from_head, 0, kept, WIDTH, DIM)
    if FORMAT != "":
        divisor = tl.zeros([token.shape[0]], tl.float32) + scale_of(scale[0], scale[1], head)
        values = quantised(tl.div_rn(values.to(tl.float32), divisor[:, None]), FORMAT)
    place = page.to(tl.int64) * to_page + within.to(tl.int64) * to_token + head * to_head
    store_rows(to_ptr + place, values, 0, kept, DIM)


@triton.jit(do_not_specialize=["num_rows", "num_heads", "pools", "kv_scales"])
def append_kernel(
    k_rows,  # (pointer, token stride, head stride)
    v_rows,
    k_cache,  # (pointer, page stride, token stride, head stride)
    v_cache,
    slots,  # (pointer, stride), int32 or int64
    num_rows,  # tokens times heads
    num_heads,
    pools,  # (page_size, num_pages) of k, then of v
    kv_scales,  # (scale of k, stride, scale of v, stride), read for fp8 caches: numbers, or pointers
    DIMS: tl.constexpr,  # (head dim of k, of v)
    WIDTHS: tl.constexpr,  # the powers of two that hold them
    ROWS: tl.constexpr,
    K_FORMAT: tl.constexpr,  # of an fp8 cache: "e4m3", "e5m2"; "" copies
    V_FORMAT: tl.constexpr,
):
    """Rows ``program_id(0) * ROWS`` and on, counted over (token, head), of k and of v."""
    slots_ptr, slots_stride = slots
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    token = row // num_heads
    head = row - token * num_heads
    slot = tl.load(slots_ptr + token * slots_stride, mask=inside, other=-1)
    k_ptr, k_page, k_token, k_head = k_cache
    v_ptr, v_page, v_token, v_head = v_cache
    k_size, k_pages, v_size, v_pages = pools
    k_pool = (k_ptr, k_page, k_token, k_head, k_size, k_pages)
    v_pool = (v_ptr, v_page, v_token, v_head, v_size, v_pages)
    k_scale, k_step, v_scale, v_step = kv_scales
    write_slots(k_rows, token, head, k_pool, (k_scale, k_step), slot, inside, WIDTHS[0], DIMS[0], K_FORMAT)
    write_slots(v_rows, token, head, v_pool, (v_scale, v_step), slot, inside, WIDTHS[1], DIMS[1], V_FORMAT)
