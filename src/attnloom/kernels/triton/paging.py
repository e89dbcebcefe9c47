"""Where keys and values lie: the rows of one kv tile, gathered through the page table."""

import triton
import triton.language as tl


@triton.jit
def row_offsets(
    tile_begin,
    kv_len,
    table,
    stride_page,
    stride_token,
    TILE_KV: tl.constexpr,
    PAGED: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TAIL: tl.constexpr,
):
    """Element offsets of the tile's rows from the cache's base, int64 [TILE_KV].

    tile_begin is a multiple of TILE_KV; table is (pages, page_start, page_size, num_pages). With PAGE_SIZE a power of
    two the place of a row inside its page is known at compile time; PAGE_SIZE 0 takes the run-time page_size.
    TAIL: rows past kv_len repeat a page or row that the request owns, so that nothing else is touched.
    Page ids of a table on the device are not checked anywhere else: clamped, none leads out of the pool.
    """
    pages_ptr, page_start, page_size, num_pages = table
    row = tl.arange(0, TILE_KV)
    if not PAGED:
        at = tile_begin + row
        if TAIL:
            at = tl.minimum(at, kv_len - 1)
        return (page_start + at).to(tl.int64) * stride_page
    if PAGE_SIZE > 0:
        if PAGE_SIZE <= TILE_KV:
            number = tile_begin // PAGE_SIZE + row // PAGE_SIZE
            within = row % PAGE_SIZE
        else:
            number = tile_begin // PAGE_SIZE + tl.zeros_like(row)
            within = tile_begin % PAGE_SIZE + row
        if TAIL:
            number = tl.minimum(number, (kv_len - 1) // PAGE_SIZE)
    else:
        at = tile_begin + row
        if TAIL:
            at = tl.minimum(at, kv_len - 1)
        number = at // page_size
        within = at - number * page_size
    page = tl.load(pages_ptr + (page_start + number))
    page = tl.minimum(tl.maximum(page, 0), num_pages - 1)
    return page.to(tl.int64) * stride_page + within.to(tl.int64) * stride_token
