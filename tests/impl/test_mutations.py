"""The Plan is all that `cpu` goes by: any work item dropped, done twice or shifted shows in the output."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import attnloom as al
from attnloom.schedule.work import KV_BEGIN, KV_END, OUT_SLOT, ClassPlan, Plan
from attnloom.testing.inputs import Batch, place, random_sequences
from attnloom.testing.placement import Heads, Placement

HEADS = Heads.of(4, 2, 32, torch.float32)
QO, KV = [3, 1, 70, 0, 1], [130, 3000, 90, 5, 0]


def planned(num_ctas: int) -> tuple[al.BatchAttention, Batch]:
    batch = place(random_sequences(QO, KV, HEADS, seed=0), Placement("csr", 5))
    attn = al.BatchAttention(
        num_qo_heads=4,
        num_kv_heads=2,
        head_dim=32,
        dtype=torch.float32,
        page_size=5,
        variant=al.variants.causal(),
        device="cpu",
        implementation="cpu",
    )
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=num_ctas)
    return attn, batch


def outputs(attn: al.BatchAttention, batch: Batch, plan: Plan) -> torch.Tensor:
    """out and lse as one vector of a run of `plan`, into buffers of NaN, with nothing left in the workspace."""
    attn._state.plan = plan
    attn._workspace.buffer.fill_(0xFF)
    out = torch.full((*batch.q.shape[:2], HEADS.dim_vo), torch.nan)
    lse = torch.full(batch.q.shape[:2], torch.nan)
    attn.run(batch.q, *batch.caches, out=out, lse=lse)
    both = torch.cat([out.flatten(), lse.flatten()])
    return torch.nan_to_num(both, nan=1e30, neginf=-1e31)


def with_items(plan: Plan, index: int, items: torch.Tensor, dropped: int | None = None) -> Plan:
    """`plan` with other items in class `index`; `dropped` is the place of one that is left out."""
    part = plan.classes[index]
    keep = torch.ones(part.num_items, dtype=torch.bool)
    indptr = part.work_indptr.clone()
    if dropped is not None:
        keep[dropped] = False
        indptr[indptr > dropped] -= 1
    changed = dataclasses.replace(part, items=items[keep], item_segments=part.item_segments[keep], work_indptr=indptr)
    return dataclasses.replace(plan, classes=tuple(changed if i == index else c for i, c in enumerate(plan.classes)))


def dropped(plan: Plan, index: int, item: int) -> Plan:
    return with_items(plan, index, plan.classes[index].items, item)


def doubled(plan: Plan, index: int, item: int) -> Plan:
    """The item is done in place of its neighbour too; alone in its class, its state is merged twice."""
    part = plan.classes[index]
    other = (item + 1) % part.num_items
    items, segments = part.items.clone(), part.item_segments.clone()
    items[other], segments[other] = items[item], segments[item]
    changed = dataclasses.replace(part, items=items, item_segments=segments)
    return dataclasses.replace(plan, classes=tuple(changed if i == index else c for i, c in enumerate(plan.classes)))


def shifted(plan: Plan, index: int, item: int) -> Plan:
    """The item's keys moved on by one kv tile."""
    part = plan.classes[index]
    items = part.items.clone()
    items[item, KV_BEGIN] += part.tile.tile_kv
    items[item, KV_END] += part.tile.tile_kv
    return with_items(plan, index, items)


def has_keys(part: ClassPlan, item: int) -> bool:
    return int(part.items[item, KV_END]) > int(part.items[item, KV_BEGIN])


@pytest.mark.parametrize("num_ctas", [1, 7, 132])
@pytest.mark.parametrize("mutate", [dropped, doubled, shifted])
def test_every_mutation_of_a_work_item_shows(num_ctas, mutate):
    attn, batch = planned(num_ctas)
    plan = attn.current_plan
    before = outputs(attn, batch, plan)
    assert torch.equal(before, outputs(attn, batch, plan))
    tried = 0
    for index, part in enumerate(plan.classes):
        for item in range(part.num_items):
            if mutate is shifted and not has_keys(part, item):
                continue  # an empty range moved is still empty
            if mutate is doubled and part.num_items == 1:
                continue
            after = outputs(attn, batch, mutate(plan, index, item))
            assert not torch.equal(before, after), f"{mutate.__name__} item {item} of class {index} changed nothing"
            tried += 1
    assert tried >= 8


def test_a_state_merged_twice_shows():
    attn, batch = planned(132)
    plan = attn.current_plan
    before = outputs(attn, batch, plan)
    merges = plan.merges
    assert merges.entries.shape[0], "nothing was split"
    for place_ in range(merges.slots.shape[0]):
        indptr = merges.indptr.clone()
        indptr[indptr > place_] += 1
        slots = torch.cat([merges.slots[: place_ + 1], merges.slots[place_:]])
        twice = dataclasses.replace(plan, merges=dataclasses.replace(merges, indptr=indptr, slots=slots))
        assert not torch.equal(before, outputs(attn, batch, twice))


def test_the_plans_mix_classes_and_splits():
    seen = set()
    for num_ctas in (1, 7, 132):
        attn, _ = planned(num_ctas)
        plan = attn.current_plan
        for part in plan.classes:
            if part.num_items:
                seen.add((part.tile.tile_q, bool((part.items[:, OUT_SLOT] >= 0).any())))
    assert {tile for tile, _ in seen} == {16, 128}
    assert any(split for _, split in seen)
