"""append_kv on a GPU: bf16, pools past 2^31 and 2^32 elements, no synchronisation, CUDA graphs."""

from __future__ import annotations

import pytest
import torch

import attnloom as al

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def rows(count: int, heads: int, dim: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, heads, dim, generator=generator).to(device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("size", "dim"), [(1, 128), (5, 80), (16, 64), (64, 192)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_bf16_rows_reach_their_slots_and_nothing_else(layout, size, dim, dtype):
    pool = torch.full((9, 2, size, 4, dim) if layout == "NHD" else (9, 2, 4, size, dim), float("nan"))
    pool = pool.to(torch.bfloat16)
    count = 5 * size
    order = torch.randperm(9 * size, generator=torch.Generator().manual_seed(0))[:count]
    slots = torch.cat([order, torch.tensor([-1, 9 * size, 2**31 - 1])]).to(dtype)
    k, v = rows(count + 3, 4, dim, 1), rows(count + 3, 4, dim, 2)
    on_device, slots_there = pool.pin_memory().cuda(), slots.pin_memory().cuda()
    torch.cuda.set_sync_debug_mode("error")
    al.append_kv(k, v, on_device[:, 0], on_device[:, 1], slots_there, kv_layout=layout)
    torch.cuda.set_sync_debug_mode("default")
    for index, values in enumerate((k.cpu(), v.cpu())):
        view = pool[:, index] if layout == "NHD" else pool[:, index].transpose(1, 2)
        for value, slot in zip(values[:count], order.tolist(), strict=True):
            view[slot // size, slot % size] = value
    assert torch.equal(on_device.cpu().view(torch.int16), pool.view(torch.int16))


@pytest.mark.case(22)
def test_slots_past_2_to_the_32_elements():
    """Every slot near 2^31 and 2^32 elements lies apart from what a 32-bit product would make of it."""
    size, dim = 16, 512
    pages = 2**32 // (size * dim) + 3
    cache = torch.zeros(pages, size, 1, dim, dtype=torch.bfloat16, device="cuda")
    slots = torch.tensor([0, 2**31 // dim, 2**32 // dim - 1, 2**32 // dim, 2**32 // dim + 7], device="cuda")
    k = rows(5, 1, dim, 3)
    al.append_kv(k, k, cache, cache, slots)
    flat = cache.view(-1, dim)
    assert torch.equal(flat[slots], k[:, 0])
    assert int((flat[:, 0] != 0).sum()) == 5


def test_capture_reads_slots_at_replay():
    cache = torch.zeros(8, 16, 2, 128, dtype=torch.bfloat16, device="cuda")
    k, slots = rows(3, 2, 128, 4), torch.tensor([-1, -1, -1], device="cuda")
    al.append_kv(k, k, cache, cache, slots)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        al.append_kv(k, k, cache, cache, slots)
    slots.copy_(torch.tensor([5, 127, 64]))
    k.add_(1)
    graph.replay()
    flat = cache.view(-1, 2, 128)
    assert torch.equal(flat[[5, 127, 64]], k)
    cache.view(-1, 2, 128)[[5, 127, 64]] = 0
    assert not cache.any()


def test_host_slots_are_checked_before_any_launch():
    cache = torch.zeros(2, 4, 1, 64, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(al.errors.InvalidMetadata, match=r"slots: 0\.\.8; expected -1\.\.7"):
        al.append_kv(rows(2, 1, 64), rows(2, 1, 64), cache, cache, [0, 8])
    assert not cache.any()
