"""Every public parameter changes a result or a plan, or raises: none is accepted and ignored."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnloom as al
from attnloom.testing.inputs import Heads, Placement, random_sequences

pytestmark = pytest.mark.not_interpreted("what the public parameters do before a launch is the same in every process")

HEADS = Heads(4, 2, 32, 16, torch.float32)  # a wide and a narrow dim, as `Runner.like` has them
NOT_YET = al.errors.NotYetSupported


def scaled(logits, gain):
    return logits * gain


GAIN = {"gain": 1.0}


class World:
    """One batch, and its outcome under changed arguments."""

    def __init__(self, runner) -> None:
        self.runner = runner
        fitting = runner.like(HEADS)
        self.wide, self.narrow = fitting.dim_qk, fitting.dim_vo
        self.heads = Heads.of(4, 2, self.wide, fitting.dtype)
        sequences = random_sequences([2, 5, 40], [900, 30, 40], self.heads, seed=3)
        self.batch = runner.place(sequences, Placement("table", 16, q_padding=1))
        self.variant = al.variants.causal() & al.Variant(logits_transform=scaled, params=GAIN)

    def engine(self, **options: Any) -> al.BatchAttention:
        defaults = {
            "num_qo_heads": 4,
            "num_kv_heads": 2,
            "head_dim": self.wide,
            "dtype": self.heads.dtype,
            "variant": self.variant,
            "device": self.runner.device,
            "implementation": self.runner.implementation,
        }
        return al.BatchAttention(**{**defaults, **options})

    def planned(self, options: dict | None = None, plan: dict | None = None) -> al.BatchAttention:
        attn = self.engine(**(options or {}))
        attn.plan(**{"qo_indptr": self.batch.qo_indptr, "kv": self.batch.kv, "num_ctas": 24, **(plan or {})})
        return attn

    def items(self, **given: Any) -> list:
        plan = self.planned(**given).current_plan
        return [c.items.tolist() for c in plan.classes] + [c.work_indptr.tolist() for c in plan.classes]

    def out(self, options: dict | None = None, plan: dict | None = None, run: dict | None = None) -> Any:
        attn = self.planned(options, plan)
        return attn.run(**{"q": self.batch.q, "k_cache": self.k, "v_cache": self.v, **(run or {})})

    @property
    def other(self) -> torch.dtype:
        """A 16-bit type other than the batch's."""
        return torch.bfloat16 if self.heads.dtype == torch.float16 else torch.float16

    @property
    def k(self) -> torch.Tensor:
        return self.batch.caches[0]

    @property
    def v(self) -> torch.Tensor:
        return self.batch.caches[1]

    def differs(self, **given: Any) -> bool:
        """Whether out is another than the default's; by shape, dtype or value."""
        default, other = self.out(), self.out(**given)
        return default.shape != other.shape or default.dtype != other.dtype or not torch.equal(default, other)

    def exceeds(self, **least: int) -> bool:
        """Whether the batch, of 3 requests, 47 rows and 3 x 57 pages, is one too large for a maximum."""
        maxima = {"max_batch_size": 3, "max_total_q": 47, "max_pages": 171}
        self.out(maxima)
        [name] = least
        with pytest.raises(al.errors.MaximumExceeded, match=f"{name}: {least[name]} was declared.*{maxima[name]}"):
            self.planned(maxima | least)
        return True


def raises(error: type[Exception], what: Callable[[], object]) -> bool:
    with pytest.raises(error):
        what()
    return True


def constructor() -> dict[str, Callable[[World], bool]]:
    def workspace(w: World) -> bool:
        memory = torch.zeros(w.engine().workspace_size(24) - 1, dtype=torch.uint8, device=w.runner.device)
        return raises(al.errors.BufferTooSmall, lambda: w.planned({"workspace": memory}))

    def num_qo_heads(w: World) -> bool:
        return w.differs(options={"num_qo_heads": 2}, run={"q": w.batch.q[:, :2]})

    return {
        "num_qo_heads": num_qo_heads,
        "num_kv_heads": lambda w: w.differs(
            options={"num_kv_heads": 1}, run={"k_cache": w.k[:, :, :1], "v_cache": w.v[:, :, :1]}
        ),
        "head_dim": lambda w: w.differs(
            options={"head_dim": w.narrow, "head_dim_vo": w.wide},
            run={"q": w.batch.q[..., : w.narrow], "k_cache": w.k[..., : w.narrow]},
        ),
        "head_dim_vo": lambda w: w.differs(options={"head_dim_vo": w.narrow}, run={"v_cache": w.v[..., : w.narrow]}),
        "dtype": lambda w: w.differs(
            options={"dtype": w.other},
            run={"q": w.batch.q.to(w.other), "k_cache": w.k.to(w.other), "v_cache": w.v.to(w.other)},
        ),
        "kv_dtype": lambda w: not torch.equal(quantised(w), w.out()),
        "page_size": lambda w: raises(al.errors.InvalidArgument, lambda: w.planned({"page_size": 8})),
        "kv_layout": lambda w: raises(al.errors.PlanMismatch, lambda: w.out({"kv_layout": "HND"})),
        "variant": lambda w: w.differs(options={"variant": None}),
        "sm_scale": lambda w: w.differs(options={"sm_scale": 0.5}),
        "device": lambda w: raises(al.errors.AttnLoomError, lambda: w.out({"device": "meta"})),
        "implementation": lambda w: raises(al.errors.AttnLoomError, lambda: w.engine(implementation="no such")),
        "workspace": workspace,
        "deterministic": lambda w: raises(NOT_YET, lambda: w.engine(deterministic=True)),
        "max_batch_size": lambda w: w.exceeds(max_batch_size=2),
        "max_total_q": lambda w: w.exceeds(max_total_q=46),
        "max_pages": lambda w: w.exceeds(max_pages=170),
        "planner": lambda w: w.items() != w.items(options={"planner": "algorithm1"}),
    }


def plan() -> dict[str, Callable[[World], bool]]:
    def positions(w: World, count: int) -> torch.Tensor:
        return torch.arange(count, dtype=torch.int32) % 7

    def validate(w: World) -> bool:
        table = w.batch.kv.block_table.clone()
        table[0, 1] = -1
        kv = al.PagedKV.from_block_table(table, w.batch.kv.seq_lens, 16)
        w.planned(plan={"kv": kv, "validate": False})
        return raises(al.errors.InvalidMetadata, lambda: w.planned(plan={"kv": kv, "validate": True}))

    def kv(w: World) -> bool:
        other = al.PagedKV.from_block_table(w.batch.kv.block_table, [700, 30, 40], 16)
        return w.differs(plan={"kv": other})

    return {
        "qo_indptr": lambda w: w.items() != w.items(plan={"qo_indptr": [0, 1, 2, 40]}),
        "kv": kv,
        "params": lambda w: w.differs(plan={"params": {"gain": 0.1}}),
        "q_pos": lambda w: w.differs(plan={"q_pos": positions(w, 47)}),
        "kv_pos": lambda w: w.differs(plan={"kv_pos": positions(w, 970)}),
        "num_ctas": lambda w: w.items() != w.items(plan={"num_ctas": 5}),
        "share_prefixes": lambda w: raises(NOT_YET, lambda: w.planned(plan={"share_prefixes": True})),
        "validate": validate,
    }


def run() -> dict[str, Callable[[World], bool]]:
    def written(w: World, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        buffer = torch.full(shape, 7.5, dtype=dtype, device=w.runner.device)
        w.out(run={name: buffer})
        return bool((buffer[:47] != 7.5).any() and (buffer[47:] == 7.5).all())

    return {
        "q": lambda w: w.differs(run={"q": w.batch.q * 0.5}),
        "k_cache": lambda w: w.differs(run={"k_cache": w.k * 0.5}),
        "v_cache": lambda w: w.differs(run={"v_cache": w.v * 0.5}),
        "params": lambda w: w.differs(run={"params": {"gain": 0.1}}),
        "k_scale": lambda w: not torch.equal(quantised(w), quantised(w, k_scale=0.5)),
        "v_scale": lambda w: not torch.equal(quantised(w), quantised(w, v_scale=0.5)),
        "out": lambda w: written(w, "out", (48, 4, w.wide), w.heads.dtype),
        "lse": lambda w: written(w, "lse", (48, 4), torch.float32),
        "return_lse": lambda w: len(w.out(run={"return_lse": True})) == 2,
        "return_state": lambda w: len(w.out(run={"return_state": True})) == 2,
    }


def quantised(w: World, **scales: float) -> torch.Tensor:
    """The batch with e4m3 caches."""
    fp8 = torch.float8_e4m3fn
    w.runner.require(Heads(4, 2, w.wide, w.wide, torch.float16, fp8))
    tensors = {"q": w.batch.q.half(), "k_cache": w.k.to(fp8), "v_cache": w.v.to(fp8)}
    return w.out({"dtype": torch.float16, "kv_dtype": fp8}, run={**tensors, **scales}).float()


def flat(w: World, **given: Any) -> torch.Tensor:
    sequences = random_sequences([5], [9], w.heads)
    tensors = {"q": sequences.q[0], "k": sequences.k[0], "v": sequences.v[0]}
    tensors = {n: x.to(w.runner.device) for n, x in tensors.items()}
    return al.attention(**{**tensors, "implementation": w.runner.implementation, **given})


def one_call() -> dict[str, Callable[[World], bool]]:
    def other(w: World, **given: Any) -> bool:
        return not torch.equal(flat(w), flat(w, **given))

    def changed(w: World, name: str, rows: int) -> bool:
        shape = (rows, 4 if name == "q" else 2, w.wide)
        steps = torch.linspace(-1, 1, math.prod(shape), dtype=w.heads.dtype, device=w.runner.device)
        return other(w, **{name: steps.view(shape)})

    def scaled(w: World, **scale: float) -> bool:
        w.runner.require(Heads(4, 2, w.wide, w.wide, torch.float16, torch.float8_e5m2))
        sequences = random_sequences([5], [9], w.heads)
        q, k, v = (x[0].to(w.runner.device) for x in (sequences.q, sequences.k, sequences.v))
        tensors = {"q": q.half(), "k": k.to(torch.float8_e5m2), "v": v.to(torch.float8_e5m2)}
        return not torch.equal(flat(w, **tensors), flat(w, **tensors, **scale))

    indptr = {"qo_indptr": [0, 2, 5], "kv_indptr": [0, 3, 9]}
    return {
        "k_scale": lambda w: scaled(w, k_scale=0.5),
        "v_scale": lambda w: scaled(w, v_scale=0.5),
        "q": lambda w: changed(w, "q", 5),
        "k": lambda w: changed(w, "k", 9),
        "v": lambda w: changed(w, "v", 9),
        "variant": lambda w: other(w, variant=al.variants.causal()),
        "qo_indptr": lambda w: other(w, **indptr) and other(w, **{**indptr, "qo_indptr": [0, 5, 5]}),
        "kv_indptr": lambda w: not torch.equal(flat(w, **indptr), flat(w, **{**indptr, "kv_indptr": [0, 8, 9]})),
        "sm_scale": lambda w: other(w, sm_scale=0.9),
        "return_lse": lambda w: len(flat(w, return_lse=True)) == 2,
        "implementation": lambda w: raises(al.errors.AttnLoomError, lambda: flat(w, implementation="no such")),
    }


def append() -> dict[str, Callable[[World], bool]]:
    def appended(w: World, **given: Any) -> list[torch.Tensor]:
        pool = w.runner.place(random_sequences([1], [20], w.heads), Placement(poison="zero", page_size=2)).pool
        k = torch.ones(2, 2, w.wide, dtype=w.heads.dtype, device=w.runner.device)
        defaults = {"k": k, "v": k * 2, "k_cache": pool.k_nhd, "v_cache": pool.v_nhd, "slots": torch.tensor([3, 5])}
        al.append_kv(**{**defaults, **given})
        return [pool.k_nhd, pool.v_nhd]

    def other(w: World, **given: Any) -> bool:
        return not all(torch.equal(a, b) for a, b in zip(appended(w), appended(w, **given), strict=True))

    def rows(w: World) -> torch.Tensor:
        return torch.full((2, 2, w.wide), 3.0, dtype=w.heads.dtype, device=w.runner.device)

    def scaled(w: World, **scale: float) -> bool:
        heads = Heads(4, 2, w.wide, w.wide, torch.float16, torch.float8_e4m3fn)
        pools = [
            w.runner.place(random_sequences([1], [20], heads), Placement(poison="zero", page_size=2)).pool for _ in "ab"
        ]
        for pool, given in zip(pools, ({}, scale), strict=True):
            appended(w, k_cache=pool.k_nhd, v_cache=pool.v_nhd, **given)
        a, b = ([pool.k_nhd.float(), pool.v_nhd.float()] for pool in pools)
        return not all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    return {
        "k_scale": lambda w: scaled(w, k_scale=0.5),
        "v_scale": lambda w: scaled(w, v_scale=0.5),
        "k": lambda w: other(w, k=rows(w)),
        "v": lambda w: other(w, v=rows(w)),
        "k_cache": lambda w: other(w, k_cache=w.k.clone()),
        "v_cache": lambda w: other(w, v_cache=w.v.clone()),
        "slots": lambda w: other(w, slots=torch.tensor([3, 6])),
        "kv_layout": lambda w: other(w, kv_layout="HND"),
    }


def state(w: World, seed: float) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.full((3, 4, 32), seed, device=w.runner.device)
    return out, torch.full((3, 4), seed * 2, device=w.runner.device)


def merging() -> dict[str, dict[str, Callable[[World], bool]]]:
    def merged(w: World, **given: Any) -> torch.Tensor:
        a, b = state(w, 0.1), state(w, 0.3)
        named = {"out_a": a[0], "lse_a": a[1], "out_b": b[0], "lse_b": b[1]}
        return al.merge_state(**{**named, **given})[0]

    def pair(name: str) -> Callable[[World], bool]:
        return lambda w: not torch.equal(merged(w), merged(w, **{name: state(w, 0.9)[name.startswith("lse")]}))

    def many(w: World, changed: int | None) -> torch.Tensor:
        parts = list(zip(*(state(w, s) for s in (0.1, 0.3, 0.5)), strict=True))
        if changed is not None:
            parts[changed] = tuple(x * (1 + i) for i, x in enumerate(parts[changed]))
        return al.merge_states(list(parts[0]), list(parts[1]))[0]

    def finished(w: World, **given: Any) -> torch.Tensor:
        out, lse = state(w, 0.2)
        return al.finish_state(**{"out": out, "lse": lse, "variant": sink(w), **given})[0]

    def sink(w: World, value: float = 0.5) -> al.Variant:
        return al.variants.sinks(torch.full((4,), value, device=w.runner.device))

    def other(w: World, **given: Any) -> bool:
        return not torch.equal(finished(w), finished(w, **given))

    return {
        "merge_state": {name: pair(name) for name in ("out_a", "lse_a", "out_b", "lse_b")},
        "merge_states": {
            "outs": lambda w: not torch.equal(many(w, None), many(w, 0)),
            "lses": lambda w: not torch.equal(many(w, None), many(w, 1)),
        },
        "finish_state": {
            "out": lambda w: other(w, out=state(w, 0.7)[0]),
            "lse": lambda w: other(w, lse=state(w, 0.7)[1]),
            "variant": lambda w: other(w, variant=None),
            "params": lambda w: other(w, params={next(iter(sink(w).params)): state(w, 2.0)[1][0]}),
        },
    }


def others() -> dict[str, dict[str, Callable[[World], bool]]]:
    def size(w: World) -> bool:
        return w.engine().workspace_size(3) < w.engine().workspace_size(num_ctas=4)

    return {
        "BatchAttention.workspace_size": {"num_ctas": size},
        "implementations": {"device": lambda w: al.implementations("cpu") != al.implementations("meta")},
    }


EFFECTS: dict[str, dict[str, Callable[[World], bool]]] = {
    "BatchAttention": constructor(),
    "BatchAttention.plan": plan(),
    "BatchAttention.run": run(),
    "attention": one_call(),
    "append_kv": append(),
    **merging(),
    **others(),
}


def parameters_of(name: str) -> set[str]:
    target: Any = al
    for part in name.split("."):
        target = getattr(target, part)
    return set(inspect.signature(target).parameters) - {"self"}


@pytest.mark.parametrize("name", EFFECTS)
def test_the_table_below_names_every_parameter(name):
    assert parameters_of(name) == set(EFFECTS[name])


def test_every_public_function_of_the_engine_is_in_the_table():
    functions = {n for n in al.__all__ if inspect.isfunction(getattr(al, n))} - {"from_flex", "param"}
    assert functions <= set(EFFECTS)
    methods = {n for n, m in inspect.getmembers(al.BatchAttention, inspect.isfunction) if not n.startswith("_")}
    assert {m for m in methods if f"BatchAttention.{m}" not in EFFECTS} <= {"compute", "explain"}


@pytest.mark.parametrize(("name", "parameter"), [(n, p) for n, ps in EFFECTS.items() for p in ps])
def test_a_parameter_changes_a_result_or_a_plan_or_raises(runner, name, parameter):
    world = World(runner)
    assert EFFECTS[name][parameter](world), f"{name}({parameter}=...) is accepted and has no effect"


@pytest.mark.parametrize(
    "use",
    [
        lambda: al.Variant(query_transform=lambda x: x),
        lambda: al.Variant(key_transform=lambda x: x),
        lambda: al.Variant(value_transform=lambda x: x),
        lambda: al.BlockSparse([0, 1], [0], block_size=(16, 16), shape=(16, 16)),
        lambda: al.ComposedKV([]),
        lambda: al.Level(None, None),
        lambda: al.from_flex(score_mod=lambda score, b, h, q, kv: score),
        al.variants.rope,
        al.variants.streaming_llm,
    ],
)
def test_what_is_not_there_yet_says_so(use):
    with pytest.raises(NOT_YET, match="not supported yet"):
        use()
