"""FlashAttention-2 as torch brings it: scaled_dot_product_attention's back end, and the operator below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peer import Peer, Prepared, Setting, no_cuda_reason, same


class TorchFA2(Peer):
    """Contiguous K and V; batches of unequal lengths through the operator's cumulative lengths."""

    id = "torch-fa2"
    engine = "FA2 (torch)"

    def unavailable_reason(self) -> str | None:
        """See Peer."""
        if torch.backends.cuda.is_flash_attention_available():
            return None
        return no_cuda_reason() or "this torch was built without flash attention"

    def unfit_reason(self, gpu_case: GpuCase) -> str | None:
        """See Peer."""
        return half_types_only(gpu_case) or square_or_decode_only(gpu_case)

    def settings(self, batch: DeviceBatch) -> Sequence[Setting]:
        """See Peer."""
        found = [Setting("operator, cumulative lengths", lambda: varlen(batch))]
        if batch.is_constant:
            found += [
                Setting("sdpa, enable_gqa", lambda: sdpa(batch, SDPBackend.FLASH_ATTENTION, expand=False)),
                Setting("sdpa, expanded heads", lambda: sdpa(batch, SDPBackend.FLASH_ATTENTION, expand=True)),
            ]
        return found


def half_types_only(gpu_case: GpuCase) -> str | None:
    """The reason for types other than bf16 and fp16."""
    return None if gpu_case.case.dtype in ("bf16", "fp16") else "takes bf16 and fp16 only"


def square_or_decode_only(gpu_case: GpuCase) -> str | None:
    """The reason for chunks of a prompt: torch's causal masks start at the top left."""
    lengths = gpu_case.case.lengths
    if gpu_case.decodes or lengths.qo == lengths.kv:
        return None
    return "its causal mask needs as many query rows as keys"


def sdpa(batch: DeviceBatch, backend: SDPBackend, *, expand: bool) -> Prepared:
    """One call of scaled_dot_product_attention on ``[batch, heads, tokens, D]``, for constant lengths."""
    q, k, v = (x.transpose(1, 2) for x in batch.stacked())
    if expand:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    options: dict[str, Any] = {"is_causal": batch.case.causal and not batch.gpu_case.decodes, "enable_gqa": not expand}

    def call() -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, **options)

    return Prepared(call, lambda out: out.transpose(1, 2).flatten(0, 1))


def varlen(batch: DeviceBatch) -> Prepared:
    """The operator on packed tensors and cumulative lengths."""
    k, v = batch.contiguous
    cumulative = [x.to(batch.device) for x in (batch.qo_indptr, batch.token_indptr)]
    arguments = (
        *(batch.q, k, v, *cumulative, max(batch.qo_lens), max(batch.kv_lens)),
        *(0.0, batch.case.causal and not batch.gpu_case.decodes, False),  # dropout, causal, return_debug_mask
    )
    return Prepared(lambda: torch.ops.aten._flash_attention_forward(*arguments)[0], same)
