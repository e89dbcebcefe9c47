"""Several documents packed into one sequence do not see each other."""

from __future__ import annotations

from typing import Any

import torch

from attnloom.variant.library.operands import operand, starts, total
from attnloom.variant.params import param
from attnloom.variant.variant import Variant


def document_mask(q_ids: torch.Tensor | None = None, kv_ids: torch.Tensor | None = None) -> Variant:
    """Visible iff query row and key have the same document id.

    Args:
        q_ids: int32 ``[total_q]``, packed by request in batch order.
        kv_ids: int32 ``[total_kv]``, likewise. None: to be given as params={"q_ids": ..., "kv_ids": ...}.
    """

    def same(*, q_idx: Any, kv_pos: Any, batch: Any, q_ids: Any, kv_ids: Any, q_start: Any, kv_start: Any) -> Any:
        return q_ids[q_start[batch] + q_idx] == kv_ids[kv_start[batch] + kv_pos]

    return Variant(
        logits_mask=same,
        params={
            "q_ids": operand("q_ids", q_ids, torch.int32, shape=lambda qo_len, kv_len: total(qo_len)),
            "kv_ids": operand("kv_ids", kv_ids, torch.int32, shape=lambda qo_len, kv_len: total(kv_len)),
            "q_start": param(torch.int64, 1, from_lengths=lambda qo_len, kv_len: starts(qo_len)),
            "kv_start": param(torch.int64, 1, from_lengths=lambda qo_len, kv_len: starts(kv_len)),
        },
        name="document_mask",
    )
