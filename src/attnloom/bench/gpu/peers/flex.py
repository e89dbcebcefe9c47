"""FlexAttention, compiled: causal by a block mask; unequal lengths packed into one row with a document mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peer import Peer, Prepared, Setting, no_cuda_reason


class Flex(Peer):
    """Contiguous K and V, torch.compile's default mode; the block mask counts as its plan."""

    id = "flex"
    engine = "FlexAttention"

    def unavailable_reason(self) -> str | None:
        """See Peer."""
        return no_cuda_reason()

    def unfit_reason(self, gpu_case: GpuCase) -> str | None:
        """See Peer."""
        if not gpu_case.case.causal:
            return "measured with a causal mask only"
        lengths = gpu_case.case.lengths
        return None if lengths.qo == lengths.kv else "measured on whole prompts only"

    def settings(self, batch: DeviceBatch) -> Sequence[Setting]:
        """See Peer."""
        found = [Setting("packed, document mask", lambda: _packed(batch))]
        return [Setting("batched", lambda: _batched(batch))] if batch.is_constant else found


def _batched(batch: DeviceBatch) -> Prepared:
    q, k, v = (x.transpose(1, 2) for x in batch.stacked())

    def plan() -> Any:
        return create_block_mask(_causal, None, None, q.shape[2], k.shape[2], batch.device)

    return _compiled((q, k, v), plan)


def _packed(batch: DeviceBatch) -> Prepared:
    q, k, v = (x.transpose(0, 1)[None] for x in (batch.q, *batch.contiguous))
    lengths = torch.tensor(batch.qo_lens, device=batch.device)
    document = torch.repeat_interleave(torch.arange(len(batch.qo_lens), device=batch.device), lengths)

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (document[q_idx] == document[kv_idx]) & _causal(b, h, q_idx, kv_idx)

    return _compiled((q, k, v), lambda: create_block_mask(mask, None, None, q.shape[2], k.shape[2], batch.device))


def _compiled(qkv: tuple[torch.Tensor, ...], plan: Callable[[], Any]) -> Prepared:
    torch.compiler.reset()  # past its limit of shapes, dynamo would run the slow eager form without a word
    attend: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    block_mask = plan()
    return Prepared(
        lambda: attend(*qkv, block_mask=block_mask, enable_gqa=True),
        lambda out: out.transpose(1, 2).flatten(0, 1),
        plan,
    )


def _causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx
