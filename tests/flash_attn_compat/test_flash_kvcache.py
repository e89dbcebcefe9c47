"""flash_attn_with_kvcache against dense fp64: what is appended where, and what is attended to."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from flash_dense import DTYPES, OPTIONS, check, ints, normal
from hypothesis import given, settings
from hypothesis import strategies as st

import attnloom as al
from attnloom.integrations.flash_attn import flash_attn_with_kvcache

H, HKV, D = 4, 2, 32
ROOM = 24


@dataclass
class World:
    """A poisoned cache with `before` keys a sequence; where sequence b's position p lies is `at(b)[p]`."""

    before: list[int]
    new: int
    q_len: int
    page_size: int | None = None
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    leftpad: list[int] | None = None
    rows: list[int] | None = None
    named: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        batch = len(self.before)
        generator = torch.Generator().manual_seed(sum(self.before) + self.new)
        if self.page_size is None:
            rows = list(range(batch)) if self.rows is None else self.rows
            slots, shape = [[r * ROOM + p for p in range(ROOM)] for r in rows], (max(rows) + 2, ROOM)
            if self.rows is not None:
                self.named["cache_batch_idx"] = ints(rows, self.device)
        else:
            size, each = self.page_size, -(-ROOM // self.page_size)
            pages = torch.randperm(batch * each + 2, generator=generator)[: batch * each].view(batch, each)
            slots = [[int(pages[b, p // size]) * size + p % size for p in range(ROOM)] for b in range(batch)]
            shape = (batch * each + 2, size)
            for b, length in enumerate(self.before):  # columns that no key of the call reaches
                pages[b, -(-max(length + self.new, 0) // size) :] = -1 if b % 2 else 2**31 - 1
            self.named["block_table"] = pages.to(self.device, torch.int32)
        self.slots = torch.tensor(slots)
        wide = torch.full(
            (*shape, HKV, 2 * D), torch.nan, dtype=self.dtype
        )  # k and v share rows: strides are not dense
        for b, length in enumerate(self.before):
            start = 0 if self.leftpad is None else self.leftpad[b]
            own = self.slots[b, start : max(length, 0)]
            wide.view(-1, HKV, 2 * D)[own] = normal(len(own), HKV, 2 * D, dtype=self.dtype, seed=b)
        self.wide = wide.to(self.device)
        self.k_cache, self.v_cache = self.wide[..., :D], self.wide[..., D:]
        self.q = normal(batch, self.q_len, H, D, dtype=self.dtype, seed=50, device=self.device)
        self.k, self.v = (
            normal(batch, self.new, HKV, D, dtype=self.dtype, seed=seed, device=self.device) for seed in (51, 52)
        )
        if self.leftpad is not None:
            self.named["cache_leftpad"] = ints(self.leftpad, self.device)

    def call(self, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if self.new:
            options |= {"k": self.k, "v": self.v}
        lengths = ints(self.before, self.device)
        return flash_attn_with_kvcache(
            self.q, self.k_cache, self.v_cache, cache_seqlens=lengths, return_softmax_lse=True, **self.named, **options
        )

    def keys(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v of sequence b as the cache holds them now."""
        start = 0 if self.leftpad is None else self.leftpad[b]
        own = self.slots[b, start : max(self.before[b] + self.new, 0)]
        return tuple(x.cpu()[own // x.shape[1], own % x.shape[1]] for x in (self.k_cache, self.v_cache))

    def verify(self, *, turned: torch.Tensor | None = None, slopes: torch.Tensor | None = None, **options: Any) -> None:
        """Call, then compare the cache bit by bit and every sequence's out and lse; `turned`: q and k after rotary."""
        wide, q, k = self.wide.clone(), self.q, self.k
        out, lse = self.call(**options, **({} if slopes is None else {"alibi_slopes": slopes.to(self.device)}))
        for name in ("rotary_cos", "rotary_sin", "rotary_interleaved", "num_splits"):
            options.pop(name, None)
        q, k = (q, k) if turned is None else turned
        for b, length in enumerate(self.before):
            for i in range(self.new):
                if length + i >= 0:
                    slot = self.slots[b, length + i]
                    wide.view(-1, HKV, 2 * D)[slot] = torch.cat((k[b, i], self.v[b, i]), -1)
        assert torch.equal(wide.nan_to_num(nan=1e4), self.wide.nan_to_num(nan=1e4)), "written beside the new slots"
        assert out.shape == self.q.shape
        assert lse.shape == (len(self.before), H, self.q_len)
        for b in range(len(self.before)):
            own = slopes if slopes is None or slopes.ndim == 1 else slopes[b]
            check((out[b], lse[b]), (q[b], *self.keys(b)), slopes=own, **options)


LENGTHS = [7, 0, 13]


@pytest.mark.parametrize("page_size", [None, 1, 3, 16, 256])
@pytest.mark.parametrize(("new", "q_len"), [(0, 1), (1, 1), (4, 4), (2, 5), (5, 2)])
def test_append_and_attend(device, new, q_len, page_size):
    World(LENGTHS, new, q_len, page_size, device=device).verify(causal=True)


@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(device, name, page_size):
    slopes = normal(3, H, seed=4).abs() if name in ("all", "both") else None
    World(LENGTHS, 3, 3, page_size, device=device).verify(slopes=slopes, **OPTIONS[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [None, 16])
def test_every_dtype(device, page_size, dtype):
    World(LENGTHS, 2, 2, page_size, dtype, device).verify(slopes=normal(H, seed=4).abs(), **OPTIONS["all"])


@pytest.mark.parametrize("new", [0, 2])
def test_rows_of_the_cache_by_index(device, new):
    World(LENGTHS, new, 2, rows=[3, 0, 2], device=device).verify(causal=True)


@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize("new", [0, 2])
@pytest.mark.parametrize("name", ["full", "causal", "both", "all"])
def test_keys_before_the_leftpad_are_not_read(device, name, new, page_size):
    """The first keys of two sequences are poison; masks and ALiBi are relative, so they count from what remains."""
    world = World([9, 5, 13], new, 2, page_size, leftpad=[4, 0, 12], device=device)
    world.verify(slopes=normal(H, seed=4).abs(), **OPTIONS[name])


@pytest.mark.parametrize("new", [1, 2])
def test_a_negative_length_is_an_unused_row(device, new):
    World([-1, 6, -1], new, 1, 4, device=device).verify(causal=True)


@settings(max_examples=40, deadline=None)
@given(
    before=st.lists(st.integers(0, 18), min_size=1, max_size=4),
    new=st.integers(0, 6),
    q_len=st.integers(1, 6),
    page_size=st.sampled_from([None, 1, 2, 5, 16]),
    name=st.sampled_from(sorted(OPTIONS)),
)
def test_any_lengths(before, new, q_len, page_size, name):
    World(before, new, q_len, page_size).verify(**OPTIONS[name])


def table(positions: int, rotary_dim: int) -> torch.Tensor:
    """Angles fp64 [positions, rotary_dim / 2]."""
    return torch.arange(positions)[:, None] * 10000.0 ** -(torch.arange(0, rotary_dim, 2) / rotary_dim)


def turn(x: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x [B, S, H, D] by angles fp64 [B, S, rotary_dim / 2]: pairs are complex numbers, multiplied by e^(i angle)."""
    half = angles.shape[-1]
    turned = x[..., : 2 * half].double()
    pairs = turned.unflatten(-1, (half, 2)) if interleaved else turned.unflatten(-1, (2, half)).transpose(-1, -2)
    after = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * angles[:, :, None]))
    flat = after.flatten(-2) if interleaved else after.transpose(-1, -2).flatten(-2)
    return torch.cat((flat, x[..., 2 * half :].double()), -1)


@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize("rotary_dim", [16, 32])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("name", ["full", "causal", "both"])
def test_rotary(device, name, interleaved, rotary_dim, page_size):
    """With a mask by rows each row of q has its own position, otherwise all have that of the first new key."""
    world = World(LENGTHS, 3, 3, page_size, device=device)
    angles = table(ROOM, rotary_dim)
    positions = torch.tensor(LENGTHS)[:, None] + torch.arange(3)
    k = turn(world.k.cpu(), angles[positions], interleaved)
    q = turn(world.q.cpu(), angles[positions[:, :1].expand(3, 3) if name == "full" else positions], interleaved)
    own = {"rotary_cos": angles.cos().float().to(device), "rotary_sin": angles.sin().float().to(device)}
    out, lse = world.call(**own, rotary_interleaved=interleaved, **OPTIONS[name])
    for b, length in enumerate(LENGTHS):
        kept_k, kept_v = world.keys(b)
        torch.testing.assert_close(kept_k[length:].double(), k[b], atol=1e-6, rtol=1e-6)
        assert torch.equal(kept_v[length:], world.v[b].cpu())
        check((out[b], lse[b]), (q[b].float(), kept_k, kept_v), **OPTIONS[name])


def test_rotary_rounds_once(device):
    """bf16 with fp32 tables: the appended key is the nearest bf16 to the exact product."""
    world = World([5], 2, 2, dtype=torch.bfloat16, device=device)
    angles = table(ROOM, 32)
    cos, sin = angles.cos().float(), angles.sin().float()
    world.call(rotary_cos=cos.to(device), rotary_sin=sin.to(device), causal=True)
    exact = turn(world.k.cpu(), torch.atan2(sin.double(), cos.double())[torch.tensor([[5, 6]])], True)
    error = (world.keys(0)[0][5:].double() - exact[0]).abs()
    assert (error <= 2.0**-8 * exact[0].abs() + 1e-6).all()


@pytest.mark.parametrize("given", [6, None])
def test_one_length_for_all_and_the_whole_cache(device, given):
    cache = normal(3, 6, HKV, D, seed=1, device=device), normal(3, 6, HKV, D, seed=2, device=device)
    q = normal(2, 2, H, D, seed=3, device=device)
    out, lse = flash_attn_with_kvcache(q, *cache, cache_seqlens=given, causal=True, return_softmax_lse=True)
    for b in range(2):
        check((out[b], lse[b]), (q[b], cache[0][b], cache[1][b]), causal=True)
    shorter = flash_attn_with_kvcache(q, *cache, cache_seqlens=4, causal=True, return_softmax_lse=True)
    check((shorter[0][1], shorter[1][1]), (q[1], cache[0][1, :4], cache[1][1, :4]), causal=True)


def test_pages_shared_by_sequences_and_splits_of_the_caller(device):
    pool = normal(3, 4, HKV, D, seed=1, device=device), normal(3, 4, HKV, D, seed=2, device=device)
    q = normal(2, 1, H, D, seed=3, device=device)
    shared = ints([[2, 0], [2, 1]], device)
    given = {"cache_seqlens": ints([7, 6], device), "block_table": shared, "return_softmax_lse": True}
    out, lse = flash_attn_with_kvcache(q, *pool, **given)
    for b, length in enumerate((7, 6)):
        k, v = (x[shared[b].long()].flatten(0, 1)[:length] for x in pool)
        check((out[b], lse[b]), (q[b], k, v))
    for splits in (1, 7, 128):
        assert torch.equal(flash_attn_with_kvcache(q, *pool, **given, num_splits=splits)[0], out)


def test_empty_batch_and_cache(device):
    cache = torch.zeros(0, 6, HKV, D, device=device)
    assert flash_attn_with_kvcache(torch.zeros(0, 1, H, D, device=device), cache, cache).shape == (0, 1, H, D)
    cache = torch.zeros(2, 0, HKV, D, device=device)
    assert not flash_attn_with_kvcache(torch.ones(2, 1, H, D, device=device), cache, cache).any()


ROWS = torch.zeros(1, 1, HKV, D)
ANGLES = torch.zeros(ROOM, 8)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"k": ROWS}, al.errors.InvalidArgument),
        ({"v": ROWS}, al.errors.InvalidArgument),
        ({"k": ROWS, "v": ROWS, "cache_seqlens": None}, al.errors.InvalidArgument),
        ({"k": ROWS, "v": ROWS, "cache_seqlens": ROOM}, al.errors.InvalidMetadata),
        ({"k": ROWS.half(), "v": ROWS}, al.errors.DtypeMismatch),
        ({"k": ROWS[:, :, :1], "v": ROWS[:, :, :1]}, al.errors.ShapeMismatch),
        ({"cache_seqlens": ROOM + 1}, al.errors.InvalidMetadata),
        ({"cache_seqlens": ints([3, 4])}, al.errors.InvalidMetadata),
        ({"cache_seqlens": torch.tensor([3.0])}, al.errors.InvalidMetadata),
        ({"rotary_cos": ANGLES, "rotary_sin": ANGLES}, al.errors.InvalidArgument),
        ({"rotary_cos": ANGLES, "k": ROWS, "v": ROWS}, al.errors.InvalidArgument),
        ({"rotary_cos": ANGLES[:3], "rotary_sin": ANGLES[:3], "k": ROWS, "v": ROWS}, al.errors.InvalidMetadata),
        ({"rotary_cos": ANGLES, "rotary_sin": ANGLES[:4], "k": ROWS, "v": ROWS}, al.errors.ShapeMismatch),
        ({"rotary_interleaved": "yes"}, al.errors.InvalidArgument),
        ({"cache_batch_idx": ints([0]), "block_table": ints([[0]])}, al.errors.InvalidArgument),
        ({"cache_batch_idx": ints([0, 1])}, al.errors.InvalidMetadata),
        ({"cache_batch_idx": ints([9])}, al.errors.InvalidMetadata),
        ({"cache_leftpad": ints([4])}, al.errors.InvalidMetadata),
        ({"cache_leftpad": ints([-1])}, al.errors.InvalidMetadata),
        ({"cache_leftpad": 2}, al.errors.InvalidMetadata),
        ({"num_splits": -1}, al.errors.InvalidArgument),
        ({"num_splits": 129}, al.errors.InvalidArgument),
        ({"q": torch.zeros(3, 1, H, D)}, al.errors.InvalidMetadata),
        ({"v_cache": torch.zeros(2, ROOM, HKV, D, dtype=torch.float16)}, al.errors.DtypeMismatch),
        ({"v_cache": torch.zeros(2, ROOM, D, HKV).transpose(2, 3)}, al.errors.StrideUnsupported),
    ],
)
def test_what_is_refused_leaves_the_cache_alone(changed, error):
    cache = [torch.zeros(2, ROOM, HKV, D) for _ in range(2)]
    defaults = {"q": torch.zeros(1, 1, H, D), "k_cache": cache[0], "v_cache": cache[1], "cache_seqlens": 3}
    with pytest.raises(error):
        flash_attn_with_kvcache(**{**defaults, **changed})
    assert not any(x.any() for x in cache)


@pytest.mark.parametrize("name", ["q", "k", "v", "k_cache", "v_cache"])
def test_gradients_are_refused_before_anything_is_written(name):
    cache = [torch.zeros(1, ROOM, HKV, D) for _ in range(2)]
    given = {"q": torch.ones(1, 1, H, D), "k": ROWS + 1, "v": ROWS + 1, "k_cache": cache[0], "v_cache": cache[1]}
    given[name].requires_grad_(True)
    with pytest.raises(al.errors.GradientRequired):
        flash_attn_with_kvcache(**given, cache_seqlens=2)
    assert not any(x.any() for x in cache)
