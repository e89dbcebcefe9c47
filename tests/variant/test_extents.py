"""A tensor that is indexed by head or request must have an element for each."""

from __future__ import annotations

import pytest
import torch

from attnloom.errors import ParamError
from attnloom.variant import Variant, library, param
from attnloom.variant.extents import Extent, check_extents, extents

COUNTS = {"num_qo_heads": 8, "num_kv_heads": 2, "batch": 3}


def test_what_is_indexed_by_head_or_request():
    assert extents(library.alibi().program) == (Extent("slopes", 0, "num_qo_heads"),)
    assert extents(library.sinks().program) == (Extent("sinks", 0, "num_qo_heads"),)
    assert extents(library.prefix_lm().program) == (Extent("prefix_len", 0, "batch"),)
    assert extents(library.causal().program) == ()
    both = Variant(
        logits_transform=lambda logits, t, kv_head, batch, kv_pos: logits + t[batch, kv_pos % 3, kv_head],
        output_transform=lambda x, head, gate: x * gate[head] + gate[head // 2],
        params={"t": param(ndim=3), "gate": param()},
    )
    assert extents(both.program) == (
        Extent("gate", 0, "num_qo_heads"),
        Extent("t", 0, "batch"),
        Extent("t", 2, "num_kv_heads"),
    )


@pytest.mark.parametrize(
    ("variant", "values", "message"),
    [
        (library.alibi(), {"slopes": torch.ones(7)}, r"slopes.*\(7,\).*8 values \(num_qo_heads\)"),
        (library.sinks() & library.alibi(), {"slopes": torch.ones(8), "sinks": torch.ones(2)}, "sinks.*num_qo_heads"),
        (library.prefix_lm(), {"prefix_len": torch.ones(2)}, "prefix_len.*3 values"),
        (library.custom_mask(), {"mask_start": torch.zeros(0)}, "mask_start"),
    ],
)
def test_too_short(variant, values, message):
    with pytest.raises(ParamError, match=message):
        check_extents(variant.program, values, COUNTS)


def test_long_enough_or_not_given():
    check_extents(library.alibi().program, {"slopes": torch.ones(8)}, COUNTS)
    check_extents(library.alibi().program, {}, COUNTS)
    check_extents(library.sigmoid().program, {"bias": 1.0}, COUNTS)
