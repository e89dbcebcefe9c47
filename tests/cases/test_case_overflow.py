"""Cases 21 and 22: pools beyond 2^31 and 2^32 elements, as virtual memory of which only a few pages are touched."""

import math

import pytest
import torch
from oracle import Functors, Request, attend, model

import attnloom as al
from attnloom.testing.inputs import Heads
from attnloom.testing.tolerance import State, assert_state_close


def normal(*shape: int, seed: int, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(device)


def expect_equal(out: torch.Tensor, lse: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """One decode row against the oracle."""
    request = Request(q.cpu(), k.cpu(), v.cpu())
    results = [f(request, Functors(), q.shape[-1] ** -0.5) for f in (attend, model)]
    exact, low = (State(r.out, r.lse) for r in results)
    assert_state_close(State(out.cpu(), lse.cpu()), exact, low)


def decode(attn: al.BatchAttention, q: torch.Tensor, caches: tuple, pages: list[int], lengths: list[int]):
    """One row per request, each on a page of its own."""
    count = len(pages)
    size = lengths[0]
    kv = al.PagedKV(list(range(count + 1)), pages, lengths, page_size=size)
    attn.plan(list(range(count + 1)), kv)
    return attn.run(q, *caches, return_lse=True)


@pytest.mark.case(21)
def test_page_ids_at_the_edge_of_2_to_the_31_elements(runner):
    size, heads, dim = 16, 8, 128
    pool = torch.empty(65_540, 2, size, heads, dim, dtype=torch.bfloat16, device=runner.device)
    assert pool.numel() > 2**31
    content = normal(2, size, heads, dim, seed=1, device=runner.device)
    pool[65_535], pool[65_536] = content, content
    q = normal(1, 16, dim, seed=2, device=runner.device).repeat(2, 1, 1)
    attn = runner.attention(Heads.of(16, heads, dim), page_size=size)
    out, lse = decode(attn, q, (pool,), [65_535, 65_536], [size, size])
    assert torch.equal(out[0], out[1])
    assert torch.equal(lse[0], lse[1])
    expect_equal(out[1:], lse[1:], q[1:], content[0], content[1])


@pytest.mark.case(21)
def test_slots_of_one_wide_token(runner):
    """576 wide keys whose first 512 are the values, one token a page."""
    slots = [3_728_270, 3_728_271]
    pool = torch.empty(3_728_272, 1, 1, 576, dtype=torch.bfloat16, device=runner.device)
    assert slots[1] * 576 > 2**31 - 576
    content = normal(1, 1, 576, seed=3, device=runner.device)
    for slot in slots:
        pool[slot] = content
    q = normal(1, 16, 576, seed=4, device=runner.device).repeat(2, 1, 1)
    attn = runner.attention(Heads(16, 1, 576, 512), page_size=1)
    out, lse = decode(attn, q, (pool, pool[..., :512]), slots, [1, 1])
    assert torch.equal(out[0], out[1])
    expect_equal(out[1:], lse[1:], q[1:], content, content[..., :512])


@pytest.mark.case(22)
def test_page_ids_past_2_to_the_32_elements_do_not_wrap(runner):
    """Page p and page p + 2^32 / stride hold different contents."""
    size, heads, dim, far = 32, 4, 64, 262_144
    pool = torch.empty(far + 6, 2, size, heads, dim, dtype=torch.bfloat16, device=runner.device)
    assert pool.stride(0) * far == 2**32
    q = normal(1, 8, dim, seed=5, device=runner.device)
    attn = runner.attention(Heads.of(8, heads, dim), page_size=size)
    for page in (0, 5):
        near_content, far_content = (normal(2, size, heads, dim, seed=s, device=runner.device) for s in (6, 7))
        pool[page], pool[page + far] = near_content, far_content
        for where, content in ((page, near_content), (page + far, far_content)):
            out, lse = decode(attn, q, (pool,), [where], [size])
            expect_equal(out, lse, q, content[0], content[1])
        row = normal(1, heads, dim, seed=8, device=runner.device)
        al.append_kv(row, row, pool[:, 0], pool[:, 1], torch.tensor([(page + far) * size + 3]))
        assert torch.equal(pool[page], near_content)
        assert torch.equal(pool[page + far, 0, 3], row[0])
        far_content[:, 3] = row
        assert torch.equal(pool[page + far], far_content)


@pytest.mark.case(22)
@pytest.mark.parametrize("fp8", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_pages_of_fp8_past_2_to_the_32_bytes_do_not_wrap(runner, fp8):
    """As above with a byte an element: page p, page p + 2^32 / stride, and rows quantised into the latter."""
    size, heads, dim, far = 32, 4, 64, 262_144
    pool = torch.empty(far + 6, 2, size, heads, dim, dtype=fp8, device=runner.device)
    assert pool.stride(0) * far == 2**32
    q = normal(1, 8, dim, seed=5, device=runner.device)
    attn = runner.attention(Heads(8, heads, dim, dim, kv_dtype=fp8), page_size=size)
    for page in (0, 5):
        near, beyond = (normal(2, size, heads, dim, seed=s, device=runner.device).to(fp8) for s in (6, 7))
        pool[page], pool[page + far] = near, beyond
        for where, content in ((page, near), (page + far, beyond)):
            out, lse = decode(attn, q, (pool,), [where], [size])
            expect_equal(out, lse, q, content[0].float(), content[1].float())
        row = normal(1, heads, dim, seed=8, device=runner.device).to(fp8)
        slot = torch.tensor([(page + far) * size + 3])
        al.append_kv(row.bfloat16(), row.bfloat16(), pool[:, 0], pool[:, 1], slot)
        assert torch.equal(pool[page].view(torch.uint8), near.view(torch.uint8))
        beyond[:, 3] = row
        assert torch.equal(pool[page + far].view(torch.uint8), beyond.view(torch.uint8))


@pytest.mark.case(22)
def test_a_ragged_row_past_2_to_the_32_elements(runner):
    rows, heads, dim = 2**32 // (16 * 512) + 70, 16, 512
    k_memory = torch.empty(rows, heads, dim, dtype=torch.bfloat16, device=runner.device)
    k, v = k_memory, k_memory[..., :]
    content = normal(66, heads, dim, seed=9, device=runner.device)
    k[-66:] = content
    q = normal(1, heads, dim, seed=10, device=runner.device)
    attn = runner.attention(Heads.of(heads, heads, dim))
    attn.plan([0, 0, 1], al.RaggedKV([0, rows - 66, rows]))
    out, lse = attn.run(q, k, v, return_lse=True)
    expect_equal(out, lse, q, content, content)
    assert math.isfinite(float(lse.sum()))
