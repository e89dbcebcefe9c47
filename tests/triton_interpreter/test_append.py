"""append_kv's kernel: every layout, stride, slot type and dtype; whatever is not a slot's own row keeps its bytes."""

from __future__ import annotations

import pytest
import torch

import attnloom as al
from attnloom.testing.inputs import random_sequences
from attnloom.testing.placement import Heads, Placement

ARRANGEMENTS = ("separate", "packed", "interleaved", "layers", "padded", "mixed")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Elements as integers, so that NaN equals the same NaN."""
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32, 1: torch.uint8}[tensor.dtype.itemsize])


def pool_of(heads: Heads, page_size: int, layout: str, arrangement: str):
    """A poisoned pool of 7 pages and more, and its two caches in the declared layout."""
    from attnloom.testing.inputs import place

    tokens = 7 * page_size
    batch = place(random_sequences([1], [tokens], heads), Placement("csr", page_size, layout, arrangement))
    for parent in batch.pool.parents:
        parent.fill_(float("nan"))
    caches = batch.caches
    return batch.pool, (caches if len(caches) == 2 else (caches[0][:, 0], caches[0][:, 1]))


def expected_of(pool, rows, slots, page_size):
    """Both caches after the call: a loop over rows, by the definition of a slot."""
    views = [pool.k_nhd.clone(), pool.v_nhd.clone()]
    for view, values in zip(views, rows, strict=True):
        for value, slot in zip(values, slots, strict=True):
            if 0 <= slot < view.shape[0] * page_size:
                view[slot // page_size, slot % page_size] = value
    return views


def append_and_check(heads, page_size, layout, arrangement, *, slot_dtype=torch.int64, strided=False):
    pool, caches = pool_of(heads, page_size, layout, arrangement)
    order = torch.randperm(7 * page_size, generator=torch.Generator().manual_seed(1))
    slots = torch.cat([order[: max(2, 5 * page_size // 2)], torch.tensor([-1, -1])])
    slots = slots[torch.randperm(slots.numel(), generator=torch.Generator().manual_seed(2))].to(slot_dtype)
    count = slots.numel()
    rows = [torch.randn(count, heads.num_kv, dim).to(heads.dtype) for dim in (heads.dim_qk, heads.dim_vo)]
    rows[0][slots == -1] = float("inf")
    expected = expected_of(pool, rows, slots.tolist(), page_size)
    if strided:
        rows = [
            torch.cat([rows[0], rows[0], rows[0]], 2)[..., heads.dim_qk : 2 * heads.dim_qk],
            rows[1].transpose(0, 1).contiguous().transpose(0, 1),
        ]
        slots = torch.stack([slots, torch.full_like(slots, 3)], 1)[:, 0]
        assert not any(x.is_contiguous() for x in (*rows, slots))
    before = [p.clone() for p in pool.parents]
    al.append_kv(*rows, *caches, slots, kv_layout=layout)
    assert torch.equal(bits(pool.k_nhd), bits(expected[0]))
    assert torch.equal(bits(pool.v_nhd), bits(expected[1]))
    # with the rows themselves poisoned again, nothing of the allocation differs from what it was
    pool.k_nhd.fill_(float("nan"))
    pool.v_nhd.fill_(float("nan"))
    for old, new in zip(before, pool.parents, strict=True):
        assert torch.equal(bits(old), bits(new))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_layouts(arrangement, layout, dtype):
    append_and_check(Heads.of(4, 2, 32, dtype), 4, layout, arrangement)


@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
def test_slots_and_strides(slot_dtype, page_size, strided):
    append_and_check(Heads.of(3, 3, 16), page_size, "NHD", "separate", slot_dtype=slot_dtype, strided=strided)


@pytest.mark.parametrize("dims", [(80, 80), (96, 112), (192, 128), (576, 512), (16, 64)], ids=str)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_head_dims(dims, layout):
    append_and_check(Heads(2, 1, *dims, torch.float16), 4, layout, "interleaved")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float64], ids=str)
def test_other_dtypes_are_copied_bit_by_bit(dtype):
    cache = torch.zeros(3, 2, 1, 16, dtype=dtype)
    rows = torch.randn(2, 1, 16).to(dtype)
    al.append_kv(rows, rows, cache, cache.clone(), [5, 0])
    assert torch.equal(cache[2, 1].view(torch.uint8), rows[0].view(torch.uint8))
    assert torch.equal(cache[0, 0].view(torch.uint8), rows[1].view(torch.uint8))


def test_slots_outside_the_pool_are_left_out():
    """What a device's slots may hold: the host cannot see them, so the kernel must."""
    from attnloom.impl.append import append_rows

    memory = torch.full((5, 2, 2, 16), float("nan"))
    cache = memory[1:4]
    rows = torch.randn(6, 2, 16)
    for dtype, far in ((torch.int32, 2**31 - 1), (torch.int64, 2**62)):
        memory.fill_(float("nan"))
        append_rows((rows, rows), (cache, cache.clone()), torch.tensor([6, -2, 5, far, -far, 7], dtype=dtype))
        assert torch.equal(cache[2, 1], rows[2])
        cache[2, 1].fill_(float("nan"))
        assert memory.isnan().all()


def test_empty_and_host_slots_out_of_range():
    cache = torch.full((3, 2, 1, 16), float("nan"))
    al.append_kv(cache[:0, 0], cache[:0, 0], cache, cache.clone(), [])
    with pytest.raises(al.errors.InvalidMetadata, match=r"slots: 6\.\.6; expected -1\.\.5"):
        al.append_kv(torch.ones(1, 1, 16), torch.ones(1, 1, 16), cache, cache.clone(), torch.tensor([6]))
    assert cache.isnan().all()


def test_the_kernel_ran(monkeypatch):
    """The tests above are of the kernel, not of torch's indexing."""
    from attnloom.impl import append
    from attnloom.impl.triton import append as launcher

    grids = []
    monkeypatch.setattr(append, "_index", None)
    monkeypatch.setattr(launcher, "append_kernel", _Recording(launcher.append_kernel, grids))
    cache = torch.zeros(3, 2, 1, 16)
    al.append_kv(torch.ones(1, 1, 16), torch.ones(1, 1, 16), cache, cache.clone(), [4])
    assert grids == [(1, 1, 1)]
    assert cache.sum() == 16


class _Recording:
    def __init__(self, kernel, grids):
        self._kernel, self._grids = kernel, grids

    def __getitem__(self, grid):
        self._grids.append(grid)
        return self._kernel[grid]
