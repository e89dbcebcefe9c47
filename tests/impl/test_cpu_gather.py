"""Keys as `cpu` reads them: every element of a pool says where it lies; which ones to expect is arithmetic."""

import numpy as np
import pytest
import torch

from attnloom.impl.cpu.keys import Cache, Index, Pages, Panel, Range
from attnloom.schedule.work import PageView

HEADS, DIM = 3, 8
TABLE = [4, 0, 6, 2, 5, 1, 3]  # request 0 owns the first four pages, request 1 the rest
SIZES = [1, 3, 16]


def label(page, slot, head, dim):
    """Distinct and exact in fp32."""
    return ((page * 16 + slot) * HEADS + head) * DIM + dim


def pool(size, layout, dtype=torch.float32):
    """[7 pages, size, HEADS, DIM] in memory as `layout` says, each element its label."""
    index = np.indices((7, size, HEADS, DIM))
    content = torch.from_numpy(label(*index)).to(dtype)
    big = torch.full((9, 2, size + 3, HEADS + 2, DIM + 5), torch.nan, dtype=dtype)
    views = {
        "NHD": lambda: torch.empty(7, size, HEADS, DIM, dtype=dtype),
        "HND": lambda: torch.empty(7, HEADS, size, DIM, dtype=dtype).transpose(1, 2),
        "packed": lambda: torch.full((7, 2, size, HEADS, DIM), torch.nan, dtype=dtype)[:, 1],
        "packed HND": lambda: torch.full((7, 2, HEADS, size, DIM), torch.nan, dtype=dtype)[:, 0].transpose(1, 2),
        "odd": lambda: big[1:8, 1, 2 : 2 + size, 1 : 1 + HEADS, 3 : 3 + DIM],
        "odd HND": lambda: torch.full((7, HEADS, size + 1, DIM + 3), torch.nan, dtype=dtype)[..., 1:, 2:-1].transpose(
            1, 2
        ),
        "heads apart": lambda: torch.full((HEADS, 7, size, DIM), torch.nan, dtype=dtype).permute(1, 2, 0, 3),
    }
    return views[layout]().copy_(content)


LAYOUTS = ["NHD", "HND", "packed", "packed HND", "odd", "odd HND", "heads apart"]


def view_of(size, starts=(0, 4)):
    return PageView(
        pages=torch.tensor(TABLE, dtype=torch.int32),
        page_start=torch.tensor(starts, dtype=torch.int64),
        kv_len=torch.tensor([4 * size, 3 * size], dtype=torch.int32),
        page_size=size,
    )


def expected(r, size, starts=(0, 4)):
    """[heads, keys, DIM] by the definition: page = table[start + p // size], slot p % size."""
    position = np.arange(r.begin, r.end)
    page = np.array(TABLE)[starts[r.request] + position // size]
    head, dim = np.arange(r.first_head, r.last_head)[:, None, None], np.arange(DIM)
    return torch.from_numpy(label(page[:, None], (position % size)[:, None], head, dim)).float()


def ranges(size):
    """Within a page, across pages, from the middle, to the end; all heads, one head, the last two."""
    last = 4 * size
    spans = {(0, last), (0, 1), (size - 1, size + 1), (last - 1, last), (size, 3 * size), (0, size)}
    spans |= {(1, last - 1), (size // 2, 2 * size + size // 2 + 1)}
    return [
        Range(0, begin, end, first, stop)
        for begin, end in sorted(spans)
        if 0 <= begin < end <= last
        for first, stop in ((0, HEADS), (1, 2), (1, HEADS))
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_range_of_every_layout(layout, size, dtype):
    tensor = pool(size, layout, torch.float32)
    if dtype == torch.float16:  # labels above 2048 are not all exact there: keep their remainder
        tensor = pool(size, layout, torch.float16)
        tensor.copy_(pool(size, layout) % 2048)
    cache = Cache("k", tensor, Pages(view_of(size)))
    for r in ranges(size):
        found = cache.read(r, Index())
        wanted = expected(r, size)
        assert found.dtype == torch.float32
        assert torch.equal(found, wanted if dtype == torch.float32 else wanted % 2048), r


@pytest.mark.parametrize("size", SIZES)
def test_each_request_reads_its_own_pages(size):
    cache = Cache("k", pool(size, "NHD"), Pages(view_of(size)))
    for request, length in ((0, 4 * size), (1, 3 * size)):
        r = Range(request, 0, length, 0, HEADS)
        assert torch.equal(cache.read(r, Index()), expected(r, size))


@pytest.mark.parametrize(("k_layout", "v_layout"), [("NHD", "NHD"), ("NHD", "odd"), ("HND", "NHD"), ("odd", "packed")])
def test_v_takes_over_row_numbers_of_k_only_where_strides_agree(k_layout, v_layout):
    size, index = 3, Index()
    pages = Pages(view_of(size))
    k, v = Cache("k", pool(size, k_layout), pages), Cache("v", pool(size, v_layout), pages)
    for r in ranges(size):
        assert torch.equal(k.read(r, index).clone(), expected(r, size))
        assert torch.equal(v.read(r, index), expected(r, size))


def test_a_range_in_one_page_is_a_view_and_across_pages_a_copy():
    tensor = pool(16, "NHD")
    cache = Cache("k", tensor, Pages(view_of(16)))
    inside, across = Range(0, 17, 30, 0, HEADS), Range(0, 15, 17, 0, HEADS)
    assert not cache.copies(inside)
    assert cache.copies(across)
    assert cache.read(inside, Index()).data_ptr() == tensor[TABLE[1], 1].data_ptr()
    assert Cache("k", tensor.half(), Pages(view_of(16))).copies(inside)  # converted


def test_ragged_rows_are_a_range_of_rows():
    """[total, 1, heads, dim]: request 1 begins at row 5."""
    rows = torch.arange(9 * HEADS * DIM, dtype=torch.float32).view(9, 1, HEADS, DIM)
    view = PageView(None, torch.tensor([0, 5]), torch.tensor([5, 4], dtype=torch.int32), 1)
    for strided in (rows, torch.stack((rows, -rows), 1)[:, 0]):
        cache = Cache("k", strided, Pages(view))
        found = cache.read(Range(1, 1, 4, 1, 3), Index())
        assert torch.equal(found, rows[6:9, 0, 1:3].transpose(0, 1))
        assert not cache.copies(Range(1, 1, 4, 1, 3))


@pytest.mark.parametrize("size", SIZES)
def test_page_start_beyond_int32(size):
    """A table of 2^31 + 9 entries without memory: one entry, repeated by a stride of 0."""
    start = 2**31 + 5
    view = PageView(
        torch.tensor([6], dtype=torch.int32).expand(start + 4), torch.tensor([start]), torch.tensor([4 * size]), size
    )
    cache = Cache("k", pool(size, "NHD"), Pages(view))
    found = cache.read(Range(0, size - 1, 2 * size + 1, 0, 1), Index())
    slots = [p % size for p in range(size - 1, 2 * size + 1)]
    assert torch.equal(found[0, :, 0], torch.tensor([float(label(6, slot, 0, 0)) for slot in slots]))


def test_row_numbers_beyond_int32_are_int64():
    """Slots of a pool of 2^33 elements: page 3 of pages 2^31 rows apart."""
    view = PageView(torch.tensor([0, 3, 1], dtype=torch.int32), torch.tensor([0]), torch.tensor([6]), 2)
    slots = Pages(view).slots(Range(0, 1, 5, 0, 1), 2**31, 7)
    assert slots.dtype == np.int64
    assert slots.tolist() == [7, 3 * 2**31, 3 * 2**31 + 7, 2**31]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("layout", ["NHD", "HND", "odd"])
def test_a_panel_gives_any_part_of_its_hull(layout, many):
    size = 3
    pages = Pages(view_of(size))
    hull = Range(0, 1, 11, 0, HEADS)
    k, v = Cache("k", pool(size, layout), pages), Cache("v", pool(size, "packed") + 1, pages)
    panel = Panel(k, v, hull, many)
    assert panel.copies is not many  # gathered once for all tiles, or by each tile
    for begin, end in ((1, 11), (2, 5), (6, 7), (9, 11)):
        wanted = expected(Range(0, begin, end, 0, HEADS), size)
        assert torch.equal(panel.keys(begin, end), wanted)
        assert torch.equal(panel.values(begin, end), wanted + 1)
