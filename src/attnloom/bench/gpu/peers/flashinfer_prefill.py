"""FlashInfer's batched prefill: paged and ragged K and V, back ends fa2 and fa3, each a peer of its own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peer import Build, Peer, Prepared, Setting, same
from attnloom.bench.gpu.peers import flashinfer_modules as modules

WORKSPACE_BYTES = 256 * 2**20


class FlashInferPrefill(Peer):
    """storage: "paged" (the case's own pages) or "ragged" (contiguous copies); backend: "fa2" or "fa3"."""

    def __init__(self, storage: str, backend: str) -> None:
        self._storage, self._backend = storage, backend
        self.id = f"flashinfer-{storage}-{backend}"
        self.engine = f"FlashInfer {storage}"

    def unavailable_reason(self) -> str | None:
        """See Peer."""
        return modules.unavailable_reason(self._backend)

    def unfit_reason(self, gpu_case: GpuCase) -> str | None:
        """See Peer."""
        if gpu_case.decodes:
            return "a prefill kernel"
        if self._storage == "paged" and gpu_case.case.page_size is None:
            return "the case has no pages"
        return modules.unfit_reason(gpu_case)

    def settings(self, batch: DeviceBatch) -> Sequence[Setting]:
        """See Peer."""
        make = _paged if self._storage == "paged" else _ragged
        return [Setting("NHD", lambda: make(batch, self._backend))]

    def build(self, cases: Sequence[GpuCase]) -> Build | None:
        """See Peer."""
        return modules.build([case for case in cases if self.unfit_reason(case) is None], (self._backend,))


def _options(batch: DeviceBatch) -> dict[str, Any]:
    return {
        "num_qo_heads": batch.case.heads[0],
        "num_kv_heads": batch.case.heads[1],
        "head_dim_qk": batch.case.head_dim,
        "causal": batch.case.causal,
        "q_data_type": batch.dtype,
        "kv_data_type": batch.dtype,
    }


def workspace(batch: DeviceBatch) -> torch.Tensor:
    """A wrapper's workspace, zeroed as it asks."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=batch.device)


def _paged(batch: DeviceBatch, backend: str) -> Prepared:
    flashinfer = importlib.import_module("flashinfer")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(batch), "NHD", backend=backend)
    pages = (batch.kv_indptr, batch.page_ids, batch.last_page_len)
    options = _options(batch) | {"page_size": batch.case.page_size}
    out = torch.empty_like(batch.q)

    def plan() -> None:
        wrapper.plan(batch.qo_indptr, *pages, **options)

    plan()
    return Prepared(lambda: wrapper.run(batch.q, (batch.k, batch.v), out=out), same, plan)


def _ragged(batch: DeviceBatch, backend: str) -> Prepared:
    flashinfer = importlib.import_module("flashinfer")
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(batch), "NHD", backend=backend)
    k, v = batch.contiguous
    out = torch.empty_like(batch.q)

    def plan() -> None:
        wrapper.plan(batch.qo_indptr, batch.token_indptr, **_options(batch))

    plan()
    return Prepared(lambda: wrapper.run(batch.q, k, v, out=out), same, plan)
