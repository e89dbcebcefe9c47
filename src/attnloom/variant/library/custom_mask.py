"""Masks given as data: a boolean per (query row, key)."""

from __future__ import annotations

from typing import Any

import torch

from attnloom.variant.library.operands import operand, starts, total
from attnloom.variant.params import param
from attnloom.variant.variant import Variant


def custom_mask(mask: torch.Tensor | None = None) -> Variant:
    """Visible where the request's ``[qo_len, kv_len]`` part of a flat mask is True.

    Args:
        mask: bool ``[sum(qo_len * kv_len)]``, the requests' row-major masks one after another; None: to be given
            as params={"mask": ...}. Where each request starts is computed at `plan`.
    """
    return Variant(
        logits_mask=lambda *, q_idx, kv_pos, batch, kv_len, mask, mask_start: mask[
            mask_start[batch] + q_idx.long() * kv_len + kv_pos
        ],
        params={
            "mask": operand("mask", mask, torch.bool, shape=_elements),
            "mask_start": param(torch.int64, 1, from_lengths=_starts),
        },
        name="custom_mask",
    )


def packed_mask(bits: torch.Tensor | None = None) -> Variant:
    """`custom_mask` in bits: little-endian, each request starting at a whole byte.

    Args:
        bits: uint8 ``[sum(ceil(qo_len * kv_len / 8))]``; bit ``i % 8`` of byte ``i // 8`` of a request is element
            ``i`` of its row-major mask. None: to be given as params={"bits": ...}.
    """

    def visible(*, q_idx: Any, kv_pos: Any, batch: Any, kv_len: Any, bits: Any, bits_start: Any) -> Any:
        element = q_idx.long() * kv_len + kv_pos
        return ((bits[bits_start[batch] + (element >> 3)] >> (element & 7)) & 1) != 0

    return Variant(
        logits_mask=visible,
        params={
            "bits": operand("bits", bits, torch.uint8, shape=_bytes),
            "bits_start": param(torch.int64, 1, from_lengths=_byte_starts),
        },
        name="packed_mask",
    )


def _starts(qo_len: Any, kv_len: Any) -> Any:
    return starts(qo_len * kv_len)


def _elements(qo_len: Any, kv_len: Any) -> tuple[int]:
    return total(qo_len * kv_len)


def _byte_starts(qo_len: Any, kv_len: Any) -> Any:
    return starts((qo_len * kv_len + 7) // 8)


def _bytes(qo_len: Any, kv_len: Any) -> tuple[int]:
    return total((qo_len * kv_len + 7) // 8)
