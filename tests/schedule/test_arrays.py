"""The arrays of a plan in one buffer: what is known without a tensor is what the tensor says."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from attnloom.schedule.arrays import ArrayBuffer
from attnloom.schedule.work import ClassPlan, PageView, TileClass

TILE = TileClass(16, 64, 3)
NUMBERS = torch.arange(64, dtype=torch.int32)


def class_plan() -> ClassPlan:
    """One segment, two items, four entries of work_indptr; the second place is the first of the class."""
    places = [(0, 1), (8, 3), (16, 16), (32, 4), (40, 4)]
    return ClassPlan.stored(ArrayBuffer(NUMBERS, places), 1, tile=TILE, heads_per_item=1)


def test_tensors_are_those_of_the_buffer():
    plan = class_plan()
    assert plan.segments.tolist() == [[8, 9, 10]]
    assert plan.items.tolist() == [list(range(16, 24)), list(range(24, 32))]
    assert plan.item_segments.tolist() == [[32, 33], [34, 35]]
    assert plan.work_indptr.tolist() == [40, 41, 42, 43]
    assert plan.items is plan.items


@pytest.mark.parametrize("made", [False, True], ids=["address first", "tensor first"])
def test_addresses_and_extents_are_the_tensors(made):
    plan = class_plan()
    if made:
        assert all(getattr(plan, name) is not None for name in plan.COLUMNS)
    assert plan.num_items == 2
    for name in plan.COLUMNS:
        address, rows = plan.address(name), plan.rows(name)
        assert (address, rows) == (getattr(plan, name).data_ptr(), getattr(plan, name).shape[0]), name


def test_int64_fields_and_fields_that_are_given():
    starts = torch.tensor([5, 2**40], dtype=torch.int64)
    whole = torch.cat([torch.zeros(8, dtype=torch.int32), starts.view(torch.int32), NUMBERS])
    pages = torch.tensor([7, 8], dtype=torch.int32)
    view = PageView.stored(ArrayBuffer(whole, [(8, 4), (16, 2)]), 0, page_size=16, pages=pages)
    assert view.rows("page_start") == 2
    assert view.page_start.tolist() == [5, 2**40]
    assert view.kv_len.tolist() == [4, 5]
    assert view.pages is pages
    assert view.address("pages") == pages.data_ptr()
    assert view.positions is None


def test_no_elements():
    plan = ClassPlan.stored(ArrayBuffer(NUMBERS, [(0, 0), (0, 0), (0, 0), (0, 4)]), 0, tile=TILE, heads_per_item=1)
    assert (plan.num_items, plan.items.shape, plan.segments.shape) == (0, (0, 8), (0, 3))


def test_replaced_as_any_dataclass():
    changed = dataclasses.replace(class_plan(), items=torch.zeros((1, 8), dtype=torch.int32))
    assert changed.num_items == 1
    assert changed.work_indptr.tolist() == [40, 41, 42, 43]


def test_another_name_is_no_attribute():
    with pytest.raises(AttributeError, match="'ClassPlan' object has no attribute 'slots'"):
        _ = class_plan().slots
