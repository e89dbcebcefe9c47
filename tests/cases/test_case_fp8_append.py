"""Case 61, append: rows divided by a scale, rounded to the nearest fp8 number, saturated; NaN stays NaN."""

from __future__ import annotations

import pytest
import torch
from harness import dtype_id

import attnloom as al
from attnloom.testing.inputs import Heads

pytestmark = pytest.mark.case(61)

FORMATS = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
HEADS, DIM, PAGE = 2, 64, 4

each_format = pytest.mark.parametrize("fp8", FORMATS, ids=dtype_id)


def numbers(fp8: torch.dtype) -> torch.Tensor:
    """Every finite number of the format in fp64, ascending; their codes are those of the magnitudes."""
    every = torch.arange(256, dtype=torch.uint8).view(fp8).double()
    return every[every.isfinite()].sort().values


def nearest(x: torch.Tensor, fp8: torch.dtype) -> torch.Tensor:
    """The number of the format that is nearest to each of `x`, of two the one with the even code; by looking at all."""
    codes = torch.arange(128, dtype=torch.uint8)
    sizes = codes.view(fp8).double()
    sizes, codes = sizes[sizes.isfinite()], codes[sizes.isfinite()]
    distance = (x.double().abs().clamp(max=float(sizes.max()))[..., None] - sizes).abs()
    best = distance.amin(-1, keepdim=True)
    even = torch.where(distance == best, codes.int() % 2, 2).argmin(-1)
    return torch.where(x.isnan(), torch.nan, torch.copysign(sizes[even], x.double()))


def appended(runner, rows: torch.Tensor, fp8: torch.dtype, **scales) -> tuple[torch.Tensor, torch.Tensor]:
    """Both caches as float32 [rows, H, D], written at permuted slots of a pool whose other bytes must stay."""
    count = rows.shape[0]
    pages = -(-count // PAGE) + 2
    caches = [torch.full((pages, PAGE, HEADS, DIM), 0.5, device=runner.device).to(fp8) for _ in range(2)]
    slots = torch.randperm(pages * PAGE, generator=torch.Generator().manual_seed(0))[:count]
    there = rows.to(runner.device)
    al.append_kv(there, there.flip(0), *caches, slots, **scales)
    found = []
    for cache in caches:
        flat = cache.cpu().float().view(-1, HEADS, DIM)
        found.append(flat[slots])
        others = torch.ones(flat.shape[0], dtype=torch.bool)
        others[slots] = False
        assert (flat[others] == 0.5).all()
    return found[0], found[1].flip(0)


def same(given: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal, signs of zeros included; NaN where NaN is wanted."""
    nan = wanted.isnan()
    agree = (given.double() == wanted.double()) & (given.signbit() == wanted.signbit())
    return bool(torch.equal(given.isnan(), nan) and agree[~nan].all())


def as_rows(values: torch.Tensor) -> torch.Tensor:
    padded = torch.zeros(-(-values.numel() // (HEADS * DIM)) * HEADS * DIM, dtype=values.dtype)
    padded[: values.numel()] = values
    return padded.view(-1, HEADS, DIM)


@each_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=dtype_id)
def test_rows_become_the_nearest_numbers(runner, fp8, dtype):
    """The format's numbers, what lies between two, a little beside that, and numbers of every size."""
    every = numbers(fp8).float()
    middle = (every[1:] + every[:-1]) / 2
    beside = [torch.nextafter(middle, torch.tensor(edge)) for edge in (1e30, -1e30)]
    generator = torch.Generator().manual_seed(0)
    sizes = torch.exp2(torch.randint(-20, 17, (500,), generator=generator).float())
    random = torch.randn(500, generator=generator) * sizes
    values = as_rows(torch.cat([every, middle, *beside, random])).to(dtype)
    values = torch.where(values.isinf(), 1.0, values)
    for cache in appended(runner, values, fp8):
        assert same(cache, nearest(values, fp8))


@each_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=dtype_id)
def test_what_lies_beyond_the_range_saturates(runner, fp8, dtype):
    largest = FORMATS[fp8]
    values = torch.tensor([1000.0, -1000.0, 465.0, 480.0, 60000.0, -60000.0, torch.inf, -torch.inf, torch.nan, -0.0])
    cache, _ = appended(runner, as_rows(values.to(dtype)), fp8)
    given = cache.flatten()[:10]
    assert given[6:8].tolist() == [largest, -largest]
    assert given[8].isnan()
    if fp8 is torch.float8_e4m3fn:
        assert given[:6].tolist() == [448.0, -448.0, 448.0, 448.0, 448.0, -448.0]
    else:  # 1000 lies between 896 and 1024, 465 between 448 and 512, 480 halfway, 60000 past the largest
        assert given[:6].tolist() == [1024.0, -1024.0, 448.0, 512.0, 57344.0, -57344.0]
    assert given[9] == 0
    assert given[9].signbit()


@each_format
@pytest.mark.parametrize("kind", ["number", "0-d", "per head", "strided"])
def test_rows_are_divided_by_their_scale(runner, fp8, kind):
    generator = torch.Generator().manual_seed(1)
    rows = (torch.randn(7, HEADS, DIM, generator=generator) * 40).half()
    table = torch.tensor([[0.3, 7.0], [2.5, 0.01]])
    k_scale, v_scale = {
        "number": (0.3, 7.0),
        "0-d": (table[0, 0], table[0, 1]),
        "per head": (table[0], table[1]),
        "strided": (table[:, 0], table[:, 1]),
    }[kind]
    there = (x.to(runner.device) if isinstance(x, torch.Tensor) else x for x in (k_scale, v_scale))
    found = appended(runner, rows, fp8, **dict(zip(("k_scale", "v_scale"), there, strict=True)))
    for cache, scale in zip(found, (k_scale, v_scale), strict=True):
        divisor = torch.as_tensor(scale, dtype=torch.float32)
        divided = rows.float() / (divisor[:, None] if divisor.ndim else divisor)
        assert same(cache, nearest(divided, fp8))


def test_formats_of_k_and_v_may_differ_and_one_may_be_plain(runner):
    rows = torch.linspace(-700, 700, 3 * HEADS * DIM).view(3, HEADS, DIM).half().to(runner.device)
    e4m3, e5m2, plain = (
        torch.zeros(1, PAGE, HEADS, DIM, dtype=dtype, device=runner.device) for dtype in (*FORMATS, torch.float16)
    )
    al.append_kv(rows, rows, e4m3, plain, [2, 0, 3], k_scale=2.0)
    assert same(e4m3[0, [2, 0, 3]].cpu().float(), nearest(rows.cpu() / 2, torch.float8_e4m3fn))
    assert torch.equal(plain[0, [2, 0, 3]], rows)
    al.append_kv(rows, e5m2[0, :3], e4m3, e5m2, [0, 1, -1])
    assert same(e4m3[0, :2].cpu().float(), nearest(rows[:2].cpu(), torch.float8_e4m3fn))


def test_scales_that_do_not_belong(runner):
    rows = torch.ones(1, HEADS, DIM, dtype=torch.float16, device=runner.device)
    plain, fp8 = (torch.zeros(1, PAGE, HEADS, DIM, device=runner.device).to(t) for t in (rows.dtype, *[*FORMATS][:1]))
    wrong = [
        ((rows, rows, plain, fp8), {"k_scale": 1.0}, al.errors.InvalidArgument, "k_scale = 1.0.*not quantised"),
        ((rows.to(fp8.dtype), rows, fp8, fp8), {"k_scale": 1.0}, al.errors.InvalidArgument, "rows are copied"),
        ((rows, rows, fp8, fp8), {"v_scale": 0.0}, al.errors.InvalidArgument, "v_scale = 0.0.*> 0"),
        ((rows, rows, fp8, fp8), {"v_scale": torch.ones(3)}, al.errors.AttnLoomError, "v_scale"),
        ((rows.double(), rows, fp8, fp8), {}, al.errors.DtypeMismatch, "k_cache.*float8.*float64"),
        ((rows.int(), rows, fp8, fp8), {}, al.errors.DtypeMismatch, "k_cache.*float8.*int32"),
    ]
    for tensors, scales, error, message in wrong:
        with pytest.raises(error, match=message):
            al.append_kv(*tensors, [0], **scales)
    assert not fp8.float().any()


@each_format
def test_a_cache_written_here_is_read_there(runner, fp8):
    """What was appended with scales, attended with the same: the error is that of rounding to the format."""
    generator = torch.Generator().manual_seed(2)
    rows = (torch.randn(40, HEADS, DIM, generator=generator) * 30).half()
    cache = torch.zeros(10, PAGE, HEADS, DIM, device=runner.device).to(fp8)
    there = rows.to(runner.device)
    scale = torch.tensor([0.5, 0.25], device=runner.device)
    al.append_kv(there, there, cache, cache, list(range(40)), k_scale=scale, v_scale=scale)
    attn = runner.attention(Heads(HEADS, HEADS, DIM, DIM, torch.float16, fp8), page_size=PAGE)
    attn.plan([0, 1], al.PagedKV([0, 10], list(range(10)), [PAGE], PAGE))
    q = torch.zeros(1, HEADS, DIM, dtype=torch.float16, device=runner.device)
    mean = attn.run(q, cache, cache, k_scale=scale, v_scale=scale).cpu().float()
    error = 2.0 ** (-4 if fp8 is torch.float8_e4m3fn else -3) * rows.float().abs().mean(0) + 0.01
    assert ((mean[0] - rows.float().mean(0)).abs() <= error).all()
