"""Identity: equal for the same computation, different for any other, and never guessed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from attnloom.errors import VariantError
from attnloom.variant import Variant, fast_tanh, library, param
from attnloom.variant.expr import Const, Dtype, Expr, op
from attnloom.variant.identity import canonical_lines, identity

SLOPES = torch.ones(4)


def digest(**functors):
    return Variant(**functors).program.identity


def test_names_of_functions_and_the_order_of_their_parameters_do_not_matter():
    def mine(kv_pos, q_pos):
        """With a docstring."""
        limit = q_pos
        return kv_pos <= limit

    assert digest(logits_mask=mine) == library.causal().program.identity
    assert digest(logits_mask=lambda q_pos, kv_pos: q_pos >= kv_pos) == library.causal().program.identity
    assert digest(logits_mask=mine, name="other") == library.causal().program.identity


def test_values_of_operands_do_not_matter():
    same = {library.alibi(torch.rand(heads)).program.identity for heads in (2, 8)} | {library.alibi().program.identity}
    assert len(same) == 1
    assert library.sigmoid(0.5).program.identity == library.sigmoid(-2.0).program.identity
    assert library.prefix_lm(3).program.identity == library.prefix_lm(4).program.identity


def different():
    yield {}
    yield {"logits_mask": lambda q_pos, kv_pos: kv_pos <= q_pos}
    yield {"logits_mask": lambda q_pos, kv_pos: kv_pos < q_pos}
    yield {"logits_mask": lambda q_pos, kv_pos: q_pos <= kv_pos}
    yield {"logits_mask": lambda q_idx, kv_pos: kv_pos <= q_idx}
    for width in (3, 4, 3.0, 3.5):
        yield {"logits_mask": lambda q_pos, kv_pos, width=width: kv_pos - q_pos <= width}
    yield {"logits_mask": lambda q_pos, kv_pos, width: kv_pos - q_pos <= width, "params": {"width": 3}}
    yield {"logits_mask": lambda q_pos, kv_pos, width: kv_pos - q_pos <= width, "params": {"width": 3.0}}
    yield {"logits_mask": lambda q_pos, kv_pos, left: kv_pos - q_pos <= left, "params": {"left": 3}}
    yield {"logits_transform": lambda logits: torch.tanh(logits * 2)}
    yield {"logits_transform": lambda logits: fast_tanh(logits * 2)}
    yield {"logits_transform": lambda logits: torch.tanh(logits * 2), "use_softmax": False}
    yield {"output_transform": lambda x: torch.tanh(x * 2)}
    yield {"logits_transform": lambda logits: logits * 0.0}
    yield {"logits_transform": lambda logits: logits * -0.0}
    yield {"logits_transform": lambda logits: logits * float("nan")}
    yield {"logits_transform": lambda logits: logits * float("inf")}
    yield {"logits_transform": lambda logits: (logits + 1) * 2}
    yield {"logits_transform": lambda logits: logits + 1 * 2}
    yield {"logits_transform": lambda logits, kv_pos: logits + kv_pos.long()}
    yield {"logits_transform": lambda logits, kv_pos: logits + kv_pos.float()}
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        yield {
            "logits_transform": lambda logits, qo_head, t: logits + t[qo_head],
            "params": {"t": param(dtype, 1)},
        }
    yield {"logits_transform": lambda logits, qo_head, t: logits + t[qo_head, 0], "params": {"t": param(ndim=2)}}
    yield {"logits_transform": lambda logits, qo_head, t: logits + t[0, qo_head], "params": {"t": param(ndim=2)}}
    yield {"logits_transform": lambda logits, kv_head, t: logits + t[kv_head], "params": {"t": param()}}
    yield {"sink": lambda qo_head, t: t[qo_head], "params": {"t": param()}}


def test_anything_else_differs():
    digests = [digest(**arguments) for arguments in different()]
    assert len(set(digests)) == len(digests)
    assert all(len(one) == 64 for one in digests)


def test_sharing_a_part_is_not_a_difference():
    def shared(logits):
        twice = logits + logits
        return twice * twice

    assert digest(logits_transform=shared) == digest(
        logits_transform=lambda logits: (logits + logits) * (logits + logits)
    )


def test_composition_is_the_same_as_writing_it_out():
    composed = library.causal() & library.sliding_window(4) & library.soft_cap(2.0)
    written = Variant(
        logits_transform=lambda logits: 2.0 * torch.tanh(logits / 2.0),
        logits_mask=lambda q_pos, kv_pos: (kv_pos <= q_pos) & (kv_pos >= q_pos - 4),
    )
    assert composed.program.identity == written.program.identity


def test_equal_in_another_process():
    code = (
        "from attnloom.variant import library\n"
        "v = library.packed_mask() & library.soft_cap(30.0) & library.alibi() & library.sinks()\n"
        "print(v.program.identity)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    here = library.packed_mask() & library.soft_cap(30.0) & library.alibi() & library.sinks()
    assert other == here.program.identity


def test_what_cannot_be_fingerprinted_raises():
    @dataclass(frozen=True, eq=False)
    class Strange(Expr):
        note: object = None

    with pytest.raises(VariantError, match=r"Strange.*no canonical text"):
        canonical_lines(op("exp", (Strange(Dtype.FLOAT),), Dtype.FLOAT))
    with pytest.raises(VariantError, match="no canonical text"):
        identity({"logits": Const(Dtype.FLOAT, SLOPES)}, {}, True)
