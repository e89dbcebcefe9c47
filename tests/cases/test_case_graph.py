"""Cases 32, 33, 34, 35: declared maxima. What a CUDA graph captured is the first launch; every later plan uses it.

Without a GPU the first launch stands for the graph: its arguments are kept, and given to the implementation again.
"""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from harness import Positions, compare, expect, run
from interpreted import sized
from oracle import Functors

import attnloom as al
from attnloom.api import buffers
from attnloom.testing.inputs import Heads, Placement, random_sequences

HEADS = Heads.of(4, 2, 32, torch.float32)
MAXIMA = {"max_batch_size": 6, "max_total_q": 80, "max_pages": 600}

# Batches in the order of planning: short, long and split, mixed with empty requests, none, as many as declared.
LENGTHS = {
    "short": ([1] * 4, [1] * 4),
    "long": ([1] * 4, [sized(1000, 130)] * 4),
    "mixed": sized(([3, 40, 0, 1, 2], [3, 300, 9, 0, 700]), ([3, 20, 0, 1, 2], [3, 70, 9, 0, 100])),
    "classes": sized(([3, 12, 25, 40], [90, 400, 60, 200]), ([3, 12], [9, 40])),  # rows for every tile there is
    "padding": ([1, 1, 3, 3, 0], [50, 0, 70, 0, 0]),
    "empty": ([], []),
    "many": sized(([1, 2, 1, 1, 70, 5], [60, 2, 170, 1, 70, 5]), ([1, 2, 1, 1, 20, 5], [40, 2, 70, 1, 20, 5])),
}
STORAGES = [
    Placement("csr", 16),
    Placement("table", 16, index_device=None),
    Placement("table", 64),
    Placement("ragged"),
]


def declared(runner, batch, **options):
    maxima = {name: options.pop(name, value) for name, value in MAXIMA.items()}
    if batch.placement.storage == "ragged":
        maxima["max_pages"] = 16 * maxima["max_pages"]
    return runner.for_batch(batch, **maxima, **options)


def pointers(attn: al.BatchAttention) -> dict[str, int]:
    """Addresses of every planned buffer and of the workspace."""
    plan = attn.current_plan
    found = {"workspace": attn._workspace.buffer.data_ptr()}
    for which, part in (("whole", plan.whole), ("plan", plan)):
        view = part.levels[0]
        tensors = {"qo_indptr": part.qo_indptr, "kv_indptr": part.kv_indptr, "pages": view.pages}
        tensors |= {"page_start": view.page_start, "kv_len": view.kv_len}
        tensors |= {name: getattr(part.merges, name) for name in part.merges.COLUMNS}
        for i, each in enumerate(part.classes):
            tensors |= {f"{name} {i}": getattr(each, name) for name in each.COLUMNS}
        # an empty tensor has no address
        found |= {f"{which} {name}": x.data_ptr() for name, x in tensors.items() if x is not None and x.numel()}
    found |= {f"operand {name}": x.data_ptr() for name, x in attn._state.operands.items()}
    return found


def batches(runner, placement):
    return {
        name: runner.place(random_sequences(*lengths, runner.like(HEADS), seed=i), placement)
        for i, (name, lengths) in enumerate(LENGTHS.items())
    }


@pytest.mark.case(32)
@pytest.mark.case(34)
@pytest.mark.case(35)
@pytest.mark.parametrize("placement", sized(STORAGES, STORAGES[1::2]), ids=lambda p: f"{p.storage}{p.page_size}")
@pytest.mark.parametrize("planner", ["stream", "algorithm1"])
def test_every_plan_lies_in_the_first_ones_buffers(runner, placement, planner):
    """Results are the oracle's, whatever was planned before; no address changes."""
    made = batches(runner, placement)
    attn = declared(runner, made["short"], variant=al.variants.causal(), planner=planner)
    seen: dict[str, int] = {}
    for name in [*made, "short", "mixed", "long"]:
        batch = made[name]
        attn.plan(batch.qo_indptr, batch.kv, num_ctas=24)
        compare(batch, *run(attn, batch), expect(batch, oracle.causal()), f"{name} ")
        for what, address in pointers(attn).items():
            assert seen.setdefault(what, address) == address, what
    assert 0 not in seen.values()
    if planner == "algorithm1":  # which cuts here, so that every array had elements at some time
        assert {k for k in seen if k.startswith("plan ")} == {k.replace("whole", "plan") for k in seen if "whole" in k}


@pytest.mark.case(33)
def test_a_small_plan_after_a_large_one_on_one_workspace(runner):
    heads = Heads.of(16, 2, 128)
    size = runner.attention(heads).workspace_size(132)
    workspace = torch.empty(size, dtype=torch.uint8, device=runner.device)
    for storage in ("csr", "ragged"):
        placement = Placement(storage, 1)
        attn = None
        for count in (sized(64, 12), 2):
            batch = runner.place(random_sequences([1] * count, [40 + i for i in range(count)], heads), placement)
            maxima = {"max_batch_size": 64, "max_total_q": 64, "max_pages": 8000}
            attn = attn or runner.for_batch(batch, workspace=workspace, **maxima)
            attn.plan(batch.qo_indptr, batch.kv, num_ctas=132)
            compare(batch, *run(attn, batch), expect(batch, Functors()))


@pytest.mark.case(35)
def test_beyond_the_maxima_plan_raises_and_writes_nothing(runner):
    batch = runner.place(random_sequences([1, 2], [30, 40], runner.like(HEADS)), Placement("csr", 16))
    attn = runner.for_batch(batch, max_batch_size=2, max_total_q=3, max_pages=5)
    attn.plan(batch.qo_indptr, batch.kv)
    before = attn._declared.buffers.buffer.clone()
    for lengths, message in (
        (([1, 1, 0], [1, 1, 1]), r"max_batch_size: 2 was declared.*3 requests"),
        (([1, 3], [1, 3]), r"max_total_q: 3 was declared.*4 query rows"),
        (([1, 1], [40, 41]), r"max_pages: 5 was declared.*6 page-table entries"),
    ):
        larger = runner.place(random_sequences(*lengths, runner.like(HEADS)), Placement("csr", 16))
        with pytest.raises(al.errors.MaximumExceeded, match=message):
            attn.plan(larger.qo_indptr, larger.kv)
        with pytest.raises(al.errors.PlanRequired):
            attn.run(larger.q, *larger.caches)
        assert torch.equal(attn._declared.buffers.buffer, before)
    attn.plan(batch.qo_indptr, batch.kv)
    compare(batch, *run(attn, batch), expect(batch, Functors()))


@pytest.mark.case(35)
def test_what_a_captured_launch_holds_fast_is_refused(runner):
    """Each change, and the name of it in the message; afterwards the first form still plans."""
    batch = runner.place(random_sequences([1, 2], [30, 40], runner.like(HEADS)), Placement("csr", 16))
    other = runner.place(random_sequences([1, 2], [30, 40], runner.like(HEADS)), Placement("csr", 8))
    ragged = runner.place(random_sequences([1, 2], [30, 40], runner.like(HEADS)), Placement("ragged"))
    variant = al.variants.causal() & al.variants.sinks()
    attn = declared(runner, batch, variant=variant, page_size=None)
    [name] = variant.params
    sinks = torch.zeros(4, device=runner.device)
    attn.plan(batch.qo_indptr, batch.kv, params={name: sinks}, num_ctas=7)
    classes = getattr(attn._config, "classes", None)  # of a class, triton launches several CTAs a worker
    eight = 8 * (classes[0].ctas_per_sm if classes else 1)
    for changed, message in (
        ({"kv": other.kv}, r"kv.page_size: 8.*had 16"),
        ({"kv": ragged.kv}, r"kv: ragged.*had paged"),
        ({"num_ctas": 8}, rf"num_ctas: \[{eight}"),
        ({"q_pos": [0, 1, 2]}, r"q_pos: given.*not given"),
        ({"kv_pos": list(range(70))}, r"kv_pos: given.*not given"),
        ({"params": None}, rf"params: values at plan for none.*'{name}'"),
    ):
        arguments = {"kv": batch.kv, "params": {name: sinks}, "num_ctas": 7} | changed
        with pytest.raises(al.errors.PlanFormChanged, match=message):
            attn.plan(batch.qo_indptr, **arguments)
    attn.plan(batch.qo_indptr, batch.kv, params={name: sinks + 1}, num_ctas=7)
    compare(batch, *run(attn, batch), expect(batch, oracle.causal() & oracle.sinks(torch.ones(4))))


@pytest.mark.case(35)
def test_one_or_two_maxima_alone_are_refused(runner):
    for left_out in MAXIMA:
        with pytest.raises(al.errors.InvalidArgument, match=left_out):
            runner.attention(runner.like(HEADS), **{k: v for k, v in MAXIMA.items() if k != left_out})
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(al.errors.InvalidArgument, match="max_pages"):
            runner.attention(runner.like(HEADS), **{**MAXIMA, "max_pages": wrong})


@pytest.mark.case(35)
def test_operands_and_positions_have_buffers_too(runner):
    """Numbers, tensors, structural ones, computed ones and positions change from plan to plan."""

    def mask(q_pos, kv_pos, batch, reach, prefix):
        return (kv_pos <= q_pos + reach) | (kv_pos < prefix[batch])

    def transform(logits, qo_head, gain):
        return logits * gain[qo_head]

    def functors(gain, reach, prefix) -> Functors:
        params = {"gain": gain, "reach": reach, "prefix": prefix}
        return Functors(logits=(transform,), mask=mask, params=params)

    declared_params = {"gain": al.param(torch.float32, 1), "reach": 0, "prefix": al.param(torch.int32, 1)}
    variant = al.Variant(logits_transform=transform, logits_mask=mask, params=declared_params)
    attn, seen = None, {}
    for turn, (qo, kv) in enumerate([([2, 5], [40, 5]), ([1], [90]), ([3, 1, 4, 1, 5, 9], [30, 1, 40, 1, 5, 200])]):
        batch = runner.place(random_sequences(qo, kv, runner.like(HEADS), seed=turn), Placement("csr", 16))
        gain, reach = torch.linspace(0.2, 1.5, 4) * (turn + 1), 5 * turn - 2
        prefix = torch.arange(len(qo), dtype=torch.int32) * 3 + 10 * turn
        positions = Positions(torch.arange(sum(qo)) * 3 % 50, torch.arange(sum(kv)) * 7 % 60)
        attn = attn or declared(runner, batch, variant=variant)
        wanted = expect(batch, functors(gain.clone(), reach, prefix.clone()), positions=positions)
        given = {"gain": gain.to(runner.device), "reach": reach, "prefix": prefix}
        where = {"q_pos": positions.q_pos, "kv_pos": positions.kv_pos}
        attn.plan(batch.qo_indptr, batch.kv, params=given, num_ctas=24, **where)
        given["gain"].fill_(99)
        prefix.fill_(-1)
        compare(batch, *run(attn, batch), wanted, f"turn {turn} ")
        for what, address in pointers(attn).items():
            assert seen.setdefault(what, address) == address, what
    assert {"operand gain", "operand reach", "operand prefix"} <= seen.keys()
    with pytest.raises(al.errors.ParamError, match=r"prefix.*comes with plan"):
        attn.run(batch.q, *batch.caches, params={"prefix": prefix})


@pytest.mark.case(35)
def test_an_operand_has_the_room_of_the_first_plan(runner):
    variant = al.variants.custom_mask()
    attn = None
    for qo, kv in (([3, 2], [9, 20]), ([1, 4], [5, 12]), ([2, 2], [10, 30])):
        batch = runner.place(random_sequences(qo, kv, runner.like(HEADS)), Placement("csr", 16))
        attn = attn or declared(runner, batch, variant=variant)
        masks = [torch.rand(a, b) > 0.4 for a, b in zip(qo, kv, strict=True)]
        mask = torch.cat([m.reshape(-1) for m in masks])
        if mask.numel() > 67:
            with pytest.raises(al.errors.MaximumExceeded, match=r"'mask'.*\(67,\).*\(80,\)"):
                attn.plan(batch.qo_indptr, batch.kv, params={"mask": mask})
            continue
        attn.plan(batch.qo_indptr, batch.kv, params={"mask": mask})
        compare(batch, *run(attn, batch), expect(batch, oracle.custom_mask(masks)))


@pytest.mark.case(35)
def test_a_capture_asks_for_tensors_that_serve_every_plan(runner, launched, monkeypatch):
    """Under capture: rows for the largest plan, operands on the device, no plan; what lies past a plan is zero."""
    batch = runner.place(random_sequences([1, 2], [30, 40], runner.like(HEADS)), Placement("csr", 16))
    variant = al.variants.causal() & al.Variant(
        logits_transform=lambda logits, gain: logits * gain, params={"gain": 1.0}
    )
    attn = declared(runner, batch, variant=variant)
    attn.plan(batch.qo_indptr, batch.kv)
    under_capture = [True]
    monkeypatch.setattr(buffers, "capturing", lambda device: under_capture[0])
    with pytest.raises(al.errors.CaptureRefused, match="plan was called while"):
        attn.plan(batch.qo_indptr, batch.kv)
    under_capture[0] = False
    attn.plan(batch.qo_indptr, batch.kv)
    under_capture[0] = True
    with pytest.raises(al.errors.PlanMismatch, match=r"q: got 3 rows while.*max_total_q = 80"):
        attn.run(batch.q, *batch.caches)
    rows = torch.cat([batch.q, batch.q.new_zeros(77, *batch.q.shape[1:])])
    with pytest.raises(al.errors.CaptureRefused, match=r"'gain' from the host"):
        attn.run(rows, *batch.caches, params={"gain": 2.0})
    with pytest.raises(al.errors.ShapeMismatch, match="80 rows"):
        attn.run(rows, *batch.caches, out=torch.empty_like(batch.q))
    out = attn.run(rows, *batch.caches)
    assert not out[3:].any()
    assert len(launched) == 1


@pytest.mark.case(35)
def test_a_copy_has_buffers_of_its_own(runner):
    import copy

    batch = runner.place(random_sequences([1, 2], [30, 40], runner.like(HEADS)), Placement("csr", 16))
    other = runner.place(random_sequences([2, 1], [7, 300], runner.like(HEADS), seed=1), Placement("csr", 16))
    attn = declared(runner, batch)
    attn.plan(batch.qo_indptr, batch.kv)
    second = copy.copy(attn)
    with pytest.raises(al.errors.PlanRequired, match="plans for itself"):
        second.run(batch.q, *batch.caches)
    second.plan(other.qo_indptr, other.kv)
    compare(batch, *run(attn, batch), expect(batch, Functors()))
    compare(other, *run(second, other), expect(other, Functors()))


def test_index_pointers_end_in_empty_entries(runner):
    """The merge kernel runs over the whole buffer: what lies past the list has no slots."""
    batch = runner.place(random_sequences([1] * 4, [1000] * 4, runner.like(HEADS)), Placement("csr", 16))
    attn = declared(runner, batch, planner="algorithm1")
    for count in (4, 1):
        few = runner.place(random_sequences([1] * count, [1000] * count, runner.like(HEADS)), Placement("csr", 16))
        attn.plan(few.qo_indptr, few.kv, num_ctas=24)
        plan = attn.current_plan
        indptr = plan.whole.merges.indptr.cpu().numpy()
        entries = plan.merges.entries.shape[0]
        assert entries
        assert (np.diff(indptr[: entries + 1]) > 1).all()
        assert (indptr[entries:] == plan.merges.slots.shape[0]).all()
