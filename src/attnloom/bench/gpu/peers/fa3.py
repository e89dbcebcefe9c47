"""FlashAttention-3 from the package fa3-fwd: contiguous K and V, batched or by cumulative lengths."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peer import (
    Peer,
    Prepared,
    Setting,
    import_reason,
    older_than_hopper_reason,
    same,
)

_MODULE = "fa3_fwd_interface"

# A cache padded to the longest request is tried up to this many times the tokens that are there.
_MOST_PADDING = 2.0


class FA3(Peer):
    """Every combination of pack_gqa, num_splits (0 lets it choose) and memory layout."""

    id = "fa3"
    engine = "FA3"

    def unavailable_reason(self) -> str | None:
        """See Peer."""
        return older_than_hopper_reason() or import_reason(_MODULE)

    def unfit_reason(self, gpu_case: GpuCase) -> str | None:
        """See Peer."""
        return None if gpu_case.case.dtype == "bf16" else "this build takes bf16 only"

    def settings(self, batch: DeviceBatch) -> Sequence[Setting]:
        """See Peer."""
        decodes = batch.gpu_case.decodes
        found = []
        for pack_gqa, num_splits in itertools.product((None, True, False), (0, 1) if decodes else (1,)):
            options = {"causal": batch.case.causal and not decodes, "pack_gqa": pack_gqa, "num_splits": num_splits}
            words = f"pack_gqa {pack_gqa}, num_splits {num_splits}"
            found.append(Setting(f"varlen, {words}", functools.partial(_varlen, batch, options)))
            if decodes and _padding(batch) <= _MOST_PADDING:
                found.append(Setting(f"padded cache, {words}", functools.partial(_cached, batch, options)))
            elif not decodes and batch.is_constant:
                found.append(Setting(f"batched, {words}", functools.partial(_batched, batch, options)))
        return found


def _varlen(batch: DeviceBatch, options: dict[str, Any]) -> Prepared:
    attend = importlib.import_module(_MODULE).flash_attn_varlen_func
    k, v = batch.contiguous
    cumulative = [x.to(batch.device) for x in (batch.qo_indptr, batch.token_indptr)]
    longest = max(batch.qo_lens), max(batch.kv_lens)
    return Prepared(lambda: _first(attend(batch.q, k, v, *cumulative, *longest, **options)), same)


def _batched(batch: DeviceBatch, options: dict[str, Any]) -> Prepared:
    attend = importlib.import_module(_MODULE).flash_attn_func
    q, k, v = batch.stacked()
    return Prepared(lambda: _first(attend(q, k, v, **options)), _flat)


def _cached(batch: DeviceBatch, options: dict[str, Any]) -> Prepared:
    attend = importlib.import_module(_MODULE).flash_attn_with_kvcache
    k, v = batch.padded()
    q = batch.q[:, None]
    lengths = torch.tensor(batch.kv_lens, dtype=torch.int32, device=batch.device)
    return Prepared(lambda: _first(attend(q, k, v, cache_seqlens=lengths, **options)), _flat)


def _padding(batch: DeviceBatch) -> float:
    return max(batch.kv_lens) * len(batch.kv_lens) / max(1, sum(batch.kv_lens))


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def _flat(out: torch.Tensor) -> torch.Tensor:
    return out.flatten(0, 1)
