"""Emitted device functions: their exact text, and that it follows from what is computed alone."""

from __future__ import annotations

import ast

import torch

import attnloom as al
from attnloom.variant.emit import OperandSlots, emit

HEADER = '''"""Device functions of one variant; emitted by attnloom.variant.emit, do not edit."""

import triton
import triton.language as tl

from attnloom.kernels import vocabulary as voc


@triton.jit
'''
CAUSAL_ALIBI = (
    HEADER
    + """def logits_transform(logits, q_pos, kv_pos, q_idx, qo_head, kv_head, batch, qo_len, kv_len, operands):
    t0 = voc.element(operands[0] + (voc.clamp_index(qo_head, operands[1]) * operands[2]), tl.float32)
    t1 = kv_pos - q_pos
    t2 = t0 * t1
    t3 = logits + t2
    return t3


@triton.jit
def logits_mask(q_pos, kv_pos, q_idx, qo_head, kv_head, batch, qo_len, kv_len, operands):
    t0 = kv_pos <= q_pos
    return t0
"""
)
BLOCKS = (
    HEADER
    + """def logits_mask(q_pos, kv_pos, q_idx, qo_head, kv_head, batch, qo_len, kv_len, operands):
    t0 = voc.floordiv_int(q_pos, 4)
    t1 = voc.floordiv_int(kv_pos, 4)
    t2 = t0 == t1
    t3 = voc.mod_int(q_pos, voc.scalar(operands[0], tl.int32))
    t4 = t3 == 0
    t5 = t2 | t4
    return t5
"""
)


def test_golden_causal_alibi():
    assert emit((al.variants.causal() & al.variants.alibi()).program) == CAUSAL_ALIBI


def test_golden_floor_operations():
    variant = al.Variant(
        logits_mask=lambda q_pos, kv_pos, step: (q_pos // 4 == kv_pos // 4) | (q_pos % step == 0), params={"step": 3}
    )
    assert emit(variant.program) == BLOCKS


def test_values_do_not_enter_the_text():
    one, other = al.variants.sinks(torch.zeros(4)), al.variants.sinks(torch.ones(4))
    assert emit(one.program) == emit(other.program)


def test_everything_emitted_is_python():
    variants = al.variants
    for variant in (
        variants.causal() & variants.soft_cap(30.0, fast_math=True) & variants.sinks(),
        variants.sigmoid() & variants.custom_mask(),
        variants.packed_mask() & variants.sliding_window(4),
        variants.document_mask() & variants.prefix_lm(3),
        al.Variant(output_transform=lambda x, lse, pos: torch.where(lse > 0, x**2, torch.round(x / (pos + 1)))),
    ):
        tree = ast.parse(emit(variant.program))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert names <= {"logits_transform", "logits_mask", "sink", "output_transform"}


def test_operands_are_numbered_by_name():
    variant = al.variants.sinks() & al.variants.alibi()
    slots = OperandSlots.of(variant.program.params)
    assert dict(slots.first) == {"sinks": 0, "slopes": 3}
    assert slots.count == 6
