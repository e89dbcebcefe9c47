"""fp8 caches on a GPU, what only it shows: its own conversions, scales read at a graph's replay, a negative scale."""

from __future__ import annotations

import pytest
import torch

import attnloom as al
from attnloom.testing.inputs import Batch, Heads, Placement, place, random_sequences

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.case(61),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

FORMATS = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
each_format = pytest.mark.parametrize("fp8", FORMATS, ids=str)


def planned(fp8: torch.dtype, dtype: torch.dtype = torch.bfloat16) -> tuple[al.BatchAttention, Batch]:
    """Two requests of 700 and 33 keys, two kv heads, pages of 16."""
    batch = place(random_sequences([1, 1], [700, 33], Heads(8, 2, 128, 128, dtype, fp8)), Placement(), "cuda")
    attn = al.BatchAttention(
        num_qo_heads=8, num_kv_heads=2, head_dim=128, dtype=dtype, kv_dtype=fp8, page_size=16, device="cuda"
    )
    attn.plan(batch.qo_indptr, batch.kv)
    return attn, batch


@each_format
def test_a_graph_reads_the_scales_of_its_replay(fp8):
    attn, batch = planned(fp8)
    q, caches = batch.q, batch.caches
    k_scale, v_scale = torch.ones(2, device="cuda"), torch.ones((), device="cuda")
    out = attn.run(q, *caches, k_scale=k_scale, v_scale=v_scale)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attn.run(q, *caches, k_scale=k_scale, v_scale=v_scale, out=out)
    keys, values = (x.float().double() for x in batch.keys(0))
    for new_k, new_v in (([0.5, 2.0], 0.25), ([3.0, 0.1], 7.0)):
        k_scale.copy_(torch.tensor(new_k))
        v_scale.fill_(new_v)
        graph.replay()
        k, v = ((x.repeat_interleave(4, 1)) for x in (keys * k_scale.double()[:, None], values * new_v))
        weights = torch.softmax(torch.einsum("hd,khd->hk", q[0].double(), k) * 128**-0.5, -1)
        wanted = torch.einsum("hk,khd->hd", weights, v)
        assert (out[0].double() - wanted).abs().max() <= 2.0**-7 * wanted.abs().max()


@each_format
def test_a_negative_scale_on_the_device_is_not_silent(fp8):
    attn, batch = planned(fp8)
    q, caches = batch.q, batch.caches
    scale = torch.tensor([1.0, -1.0], device="cuda")
    for name in ("k_scale", "v_scale"):
        out = attn.run(q, *caches, **{name: scale})
        assert out[:, :4].isfinite().all()
        assert out[:, 4:].isnan().all()


@each_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_byte_is_the_number_that_torch_reads(fp8, dtype):
    numbers = torch.arange(256, dtype=torch.uint8, device="cuda").view(fp8).view(4, 1, 1, 64)
    attn = al.BatchAttention(
        num_qo_heads=1, num_kv_heads=1, head_dim=64, dtype=dtype, kv_dtype=fp8, page_size=1, device="cuda"
    )
    attn.plan(range(5), al.PagedKV(list(range(5)), list(range(4)), [1] * 4, 1))
    q, k = torch.zeros(4, 1, 64, dtype=dtype, device="cuda"), torch.zeros(4, 1, 1, 64, device="cuda").to(fp8)
    out, wanted = attn.run(q, k, numbers).view(-1), numbers.float().to(dtype).view(-1)
    assert torch.equal(out.isnan(), wanted.isnan())
    assert torch.equal(out[~wanted.isnan()], wanted[~wanted.isnan()])


@each_format
def test_appended_rows_are_torchs_own_rounding(fp8):
    torch.manual_seed(0)
    rows = torch.randn(500, 2, 128, device="cuda") * torch.exp2(torch.randint(-20, 18, (500, 2, 128), device="cuda"))
    batch = place(random_sequences([1], [512], Heads(2, 2, 128, 128, kv_dtype=fp8)), Placement(), "cuda")
    caches = batch.caches
    scale = torch.tensor([0.3, 2.0], device="cuda")
    al.append_kv(rows, rows, *caches, torch.arange(500, device="cuda"), k_scale=scale, v_scale=0.7)
    for cache, divisor in zip(caches, (scale[:, None], 0.7), strict=True):
        wanted = (rows / divisor).clamp(-FORMATS[fp8], FORMATS[fp8]).to(fp8)
        assert torch.equal(cache.view(-1, 2, 128)[:500].view(torch.uint8), wanted.view(torch.uint8))
