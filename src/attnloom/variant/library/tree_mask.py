"""Speculative trees: all of the prefix, then a small mask among the new tokens."""

from __future__ import annotations

from typing import Any

import torch

from attnloom.variant.library.operands import operand, starts, total
from attnloom.variant.params import param
from attnloom.variant.variant import Variant


def tree_mask(mask: torch.Tensor | None = None) -> Variant:
    """Keys before ``kv_len - qo_len`` are visible; among the last `qo_len` keys a ``[qo_len, qo_len]`` mask decides.

    Args:
        mask: bool ``[sum(qo_len**2)]``, the requests' row-major masks one after another; None: to be given as
            params={"tree": ...}.
    """

    def visible(*, q_idx: Any, kv_pos: Any, batch: Any, qo_len: Any, kv_len: Any, tree: Any, tree_start: Any) -> Any:
        first = kv_len - qo_len
        column = torch.clamp(kv_pos - first, min=0)  # the index stays in bounds where the prefix decides
        return (kv_pos < first) | tree[tree_start[batch] + q_idx * qo_len + column]

    return Variant(
        logits_mask=visible,
        params={
            "tree": operand("tree", mask, torch.bool, shape=_elements),
            "tree_start": param(torch.int64, 1, from_lengths=_starts),
        },
        name="tree_mask",
    )


def packed_tree_mask(bits: torch.Tensor | None = None) -> Variant:
    """`tree_mask` in bits: little-endian, each request starting at a whole byte.

    Args:
        bits: uint8 ``[sum(ceil(qo_len**2 / 8))]``; None: to be given as params={"tree_bits": ...}.
    """

    def visible(
        *, q_idx: Any, kv_pos: Any, batch: Any, qo_len: Any, kv_len: Any, tree_bits: Any, tree_bits_start: Any
    ) -> Any:
        first = kv_len - qo_len
        element = q_idx.long() * qo_len + torch.clamp(kv_pos - first, min=0)
        bit = (tree_bits[tree_bits_start[batch] + (element >> 3)] >> (element & 7)) & 1
        return (kv_pos < first) | (bit != 0)

    return Variant(
        logits_mask=visible,
        params={
            "tree_bits": operand("tree_bits", bits, torch.uint8, shape=_bytes),
            "tree_bits_start": param(torch.int64, 1, from_lengths=_byte_starts),
        },
        name="packed_tree_mask",
    )


def _starts(qo_len: Any, kv_len: Any) -> Any:
    return starts(qo_len * qo_len)


def _elements(qo_len: Any, kv_len: Any) -> tuple[int]:
    return total(qo_len * qo_len)


def _byte_starts(qo_len: Any, kv_len: Any) -> Any:
    return starts((qo_len * qo_len + 7) // 8)


def _bytes(qo_len: Any, kv_len: Any) -> tuple[int]:
    return total((qo_len * qo_len + 7) // 8)
