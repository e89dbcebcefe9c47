"""What the case tests share: implementations as a parameter, placements, variants in pairs, and the check."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import oracle
import pytest
import torch
from interpreted import sized
from oracle import Functors, Request
from variant_pairs import VARIANTS, Pair

import attnloom as al
from attnloom.impl.dispatch import registry
from attnloom.spec import HEAD_DIMS, AttentionSpec
from attnloom.target import Target
from attnloom.testing.inputs import Batch, Heads, Placement, Sequences, place
from attnloom.testing.poison import dirty_bytes_, guarded
from attnloom.testing.tolerance import State, assert_state_close

# Both tile classes with and without splits, and the merges of many parts.
NUM_CTAS = sized((1, 7, 132), (1, 7))

# Under the interpreter, whose products take operands that were cast to fp32 first, each type meets some of the
# combinations; where a test runs with every type, bf16 is left to those and to the tests that know only bf16.
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
EACH_DTYPE = sized(DTYPES, (torch.float16, torch.float32))

# Every storage, layout and arrangement at least once; page sizes of one token, odd, usual and large.
PLACEMENTS = (
    Placement("csr", 16, "NHD"),
    Placement("csr", 5, "HND", "interleaved"),
    Placement("table", 1, "NHD", "layers"),
    Placement("table", 64, "HND", "packed"),
    Placement("ragged", kv_layout="NHD", arrangement="padded"),
    Placement("ragged", kv_layout="HND", arrangement="mixed"),
)

# What the runs of the suite met, for the assertion at its end.
OBSERVED: collections.Counter[str] = collections.Counter()


def placement_id(placement: Placement) -> str:
    return f"{placement.storage}{placement.page_size}-{placement.kv_layout}-{placement.arrangement}"


def dtype_id(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


each_placement = pytest.mark.parametrize("placement", PLACEMENTS, ids=placement_id)


def crossed(name: str, values: Sequence[Any]) -> pytest.MarkDecorator:
    """Every value of `name` with every placement; the dtypes take turns, so that each meets each of both.

    Under the interpreter each value and each placement at least once.
    """
    combinations = [
        pytest.param(value, placement, DTYPES[(i + j) % 3], id=f"{value}-{placement_id(placement)}")
        for i, value in enumerate(values)
        for j, placement in enumerate(PLACEMENTS)
        if sized(True, i % len(PLACEMENTS) == j or (i == j % len(values) and j >= len(values)))
    ]
    return pytest.mark.parametrize((name, "placement", "dtype"), combinations)


each_dtype = pytest.mark.parametrize("dtype", EACH_DTYPE, ids=dtype_id)


@dataclasses.dataclass(frozen=True)
class Runner:
    """One implementation on one device: a column of the table of cases."""

    implementation: str
    device: str = "cpu"

    def fit(self, heads: Heads) -> Heads:
        """`heads` with the smallest head dims, of those at least as wide, that the implementation takes.

        Equal dims stay equal, different ones different, so that the case stays what it is. What no dims can help
        stays as it is, and `attention` skips with the reason.
        """
        return _fit(self, heads)

    def dtype(self, wanted: torch.dtype) -> torch.dtype:
        """`wanted`, or a type that the implementation has: for a case of which the type is not the point."""
        return min((wanted, *DTYPES), key=lambda dtype: len(_reasons(self, _fit(self, Heads(dtype=dtype)))))

    def like(self, heads: Heads) -> Heads:
        """`heads` with dims and a dtype that the implementation takes: see `fit` and `dtype`."""
        return self.fit(dataclasses.replace(heads, dtype=self.dtype(heads.dtype)))

    def require(self, heads: Heads) -> Heads:
        """`heads` with dims that fit, or a skip with the reasons: for calls that make their engine themselves."""
        fitting = self.fit(heads)
        if reasons := _reasons(self, fitting):
            pytest.skip(f"{self.implementation}: {'; '.join(reasons)}")
        return fitting

    def attention(self, heads: Heads, **options: Any) -> al.BatchAttention:
        """An engine for `heads`, or a skip that gives the implementation's own reasons."""
        try:
            return al.BatchAttention(
                num_qo_heads=heads.num_qo,
                num_kv_heads=heads.num_kv,
                head_dim=heads.dim_qk,
                head_dim_vo=heads.dim_vo,
                dtype=heads.dtype,
                kv_dtype=heads.kv_dtype,
                device=self.device,
                implementation=self.implementation,
                **options,
            )
        except al.errors.UnsupportedSpec as refusal:
            pytest.skip(str(refusal))

    def for_batch(self, batch: Batch, **options: Any) -> al.BatchAttention:
        """An engine for the heads, page size and layout of `batch`."""
        paged = batch.placement.storage != "ragged"
        options.setdefault("page_size", batch.placement.page_size if paged else None)
        return self.attention(batch.sequences.heads, kv_layout=batch.placement.kv_layout, **options)

    def place(self, sequences: Sequences, placement: Placement) -> Batch:
        """The sequences in a fresh poisoned pool on this device."""
        return place(sequences, placement, self.device)

    def pair(self, name: str, sequences: Sequences) -> Pair:
        """A variant of `VARIANTS` for these sequences."""
        return VARIANTS[name](sequences, self.device)


@functools.lru_cache(maxsize=1024)
def _reasons(runner: Runner, heads: Heads) -> tuple[str, ...]:
    """Why the implementation cannot compute plain attention of `heads` on the device; empty: it can."""
    spec = AttentionSpec.create(
        num_qo_heads=heads.num_qo,
        num_kv_heads=heads.num_kv,
        head_dim=heads.dim_qk,
        head_dim_vo=heads.dim_vo,
        dtype=heads.dtype,
        kv_dtype=heads.kv_dtype,
    )
    target = Target.of(torch.device(runner.device))
    return tuple(registry()[runner.implementation].unsupported_reasons(spec, al.variants.full().program, target))


@functools.lru_cache(maxsize=1024)
def _fit(runner: Runner, heads: Heads) -> Heads:
    asked = heads.dim_qk, heads.dim_vo

    def same_case(dims: tuple[int, int]) -> bool:
        wide_enough = all(new >= old for new, old in zip(dims, asked, strict=True))
        order = (dims[0] > dims[1], dims[0] == dims[1])
        return wide_enough and order == (asked[0] > asked[1], asked[0] == asked[1])

    wider = sorted(filter(same_case, itertools.product(HEAD_DIMS, repeat=2)), key=lambda dims: (sum(dims), dims))
    candidates = [heads] + [dataclasses.replace(heads, dim_qk=qk, dim_vo=vo) for qk, vo in wider]
    return min(candidates, key=lambda one: len(_reasons(runner, one)))


@dataclasses.dataclass(frozen=True)
class Positions:
    """Positions given at plan, packed over the batch."""

    q_pos: torch.Tensor | None = None
    kv_pos: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Scales:
    """What `run` gets for an fp8 cache; None is not given."""

    k: Any = None
    v: Any = None

    @property
    def given(self) -> dict[str, Any]:
        return {f"{name}_scale": scale for name, scale in vars(self).items() if scale is not None}


def dequantised(cache: torch.Tensor, scale: Any) -> torch.Tensor:
    """[keys, H_kv, D] of the cache, times its scale (None, one number or one a head), in float64 if it is of fp8."""
    if cache.dtype.itemsize > 1:
        assert scale is None
        return cache
    scale = torch.as_tensor(1.0 if scale is None else scale).double().cpu()
    return cache.float().double() * (scale[:, None] if scale.numel() > 1 else scale)


def requests_of(batch: Batch, positions: Positions = Positions(), scales: Scales = Scales()) -> list[Request]:
    """The oracle's view of a batch: K and V gathered through the page table, fp8 ones dequantised."""
    out, q_start, kv_start = [], 0, 0
    for i, (qo, kv) in enumerate(zip(batch.sequences.qo_len, batch.sequences.kv_len, strict=True)):
        k, v = (dequantised(x.cpu(), scale) for x, scale in zip(batch.keys(i), (scales.k, scales.v), strict=True))
        q_pos = None if positions.q_pos is None else positions.q_pos[q_start : q_start + qo]
        kv_pos = None if positions.kv_pos is None else positions.kv_pos[kv_start : kv_start + kv]
        out.append(Request(batch.q[batch.rows(i)].cpu(), k, v, i, q_pos, kv_pos))
        q_start, kv_start = q_start + qo, kv_start + kv
    return out


def default_scale(batch: Batch) -> float:
    return batch.sequences.heads.dim_qk**-0.5


@dataclasses.dataclass(frozen=True)
class Expected:
    """Exact results and the low-precision model's, request by request."""

    exact: list[State]
    model: list[State]


def expect(
    batch: Batch,
    functors: Functors,
    *,
    sm_scale: float | None = None,
    positions: Positions = Positions(),
    scales: Scales = Scales(),
    out_dtype: torch.dtype | None = None,
    luck: float = 1.0,
) -> Expected:
    """The oracle's results. `luck` widens the model's float32 error where examples are drawn until one fails."""
    scale = default_scale(batch) if sm_scale is None else sm_scale
    exact, model = [], []
    for request in requests_of(batch, positions, scales):
        result = oracle.attend(request, functors, scale)
        exact.append(State(result.out, result.lse))
        result = oracle.model(request, functors, scale, out_dtype, orders=8 if luck == 1 else 2)
        if result.out.dtype == torch.float32:
            out = exact[-1].out + luck * (result.out.double() - exact[-1].out)
            result = oracle.Result(out, result.lse)
        model.append(State(result.out, result.lse))
    return Expected(exact, model)


def compare(batch: Batch, out: torch.Tensor, lse: torch.Tensor | None, expected: Expected, name: str = "") -> None:
    """Within the derived tolerance: over the batch in float32, in low precision request by request.

    A long request's small outputs would pass within the rounding of a short one's large outputs, so low precision
    is held to more than the rule. In float32 the model's error over one small request is a matter of luck.
    """
    out, lse = out.cpu(), None if lse is None else lse.cpu()
    if out.dtype == torch.float32 and expected.exact:
        rows = slice(0, batch.total_q)
        given = State(out[rows], None if lse is None else lse[rows])
        assert_state_close(given, together(expected.exact), together(expected.model), name)
        return
    for i, (exact, model) in enumerate(zip(expected.exact, expected.model, strict=True)):
        rows = batch.rows(i)
        given = State(out[rows], None if lse is None else lse[rows])
        assert_state_close(given, exact, model, f"{name}request {i} ")


def together(states: list[State]) -> State:
    """The states of a batch's requests as one."""
    softmax = states[0].lse is not None
    return State(torch.cat([s.out for s in states]), torch.cat([s.lse for s in states]) if softmax else None)


def run(
    attn: al.BatchAttention,
    batch: Batch,
    *,
    return_lse: bool = True,
    params: Mapping[str, Any] | None = None,
    scales: Scales = Scales(),
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`run` into dirty guarded buffers; checks that nothing else was written."""
    heads, rows = batch.sequences.heads, batch.q.shape[0]
    out = guarded((rows, heads.num_qo, heads.dim_vo), heads.dtype, batch.q.device)
    lse = guarded((rows, heads.num_qo), torch.float32, batch.q.device)
    buffers = {"out": out.tensor, "lse": lse.tensor} if return_lse else {"out": out.tensor}
    result = attn.run(batch.q, *batch.caches, params=params, return_lse=return_lse, **buffers, **scales.given)
    given = result[0] if return_lse else result
    assert given.data_ptr() == out.tensor.data_ptr() or not given.numel()
    assert out.intact()
    assert lse.intact()
    assert out.tensor[batch.total_q :].isnan().all(), "a row past the plan was written"
    assert lse.tensor[batch.total_q :].isnan().all(), "an lse row past the plan was written"
    return out.tensor, lse.tensor if return_lse else None


def check(
    runner: Runner,
    batch: Batch,
    pair: Pair | None = None,
    *,
    num_ctas: Sequence[int] = NUM_CTAS,
    sm_scale: float | None = None,
    positions: Positions = Positions(),
    scales: Scales = Scales(),
    expected: Expected | None = None,
) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Run `batch` at every `num_ctas` and compare each result with the oracle; returns the results."""
    pair = pair or Pair(None, Functors())
    if expected is None:
        expected = expect(batch, pair.functors, sm_scale=sm_scale, positions=positions, scales=scales)
    attn = runner.for_batch(batch, variant=pair.variant, sm_scale=sm_scale)
    results = []
    for count in num_ctas:
        attn.plan(
            batch.qo_indptr,
            batch.kv,
            params=pair.plan_params,
            num_ctas=count,
            q_pos=positions.q_pos,
            kv_pos=positions.kv_pos,
        )
        observe(attn, count)
        out, lse = run(attn, batch, return_lse=pair.functors.use_softmax, params=pair.run_params, scales=scales)
        compare(batch, out, lse, expected, f"num_ctas {count} ")
        results.append((out, lse))
    return results


def observe(attn: al.BatchAttention, num_ctas: int) -> None:
    """Count what a plan contains."""
    plan = attn.current_plan
    used = [c for c in plan.classes if c.num_items]
    for each in used:
        OBSERVED[f"{attn.implementation} class {each.tile.tile_q}"] += 1
        OBSERVED[f"{attn.implementation} splits"] += int((each.items[:, 7] >= 0).sum())
    OBSERVED[f"{attn.implementation} both classes in one plan"] += len(used) > 1
    OBSERVED[f"{attn.implementation} merges"] += plan.merges.entries.shape[0]
    OBSERVED[f"{attn.implementation} num_ctas {num_ctas}"] += 1


def dirty(workspace: torch.Tensor) -> torch.Tensor:
    return dirty_bytes_(workspace)
