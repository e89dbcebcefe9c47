"""FlashInfer's batched decode over pages: on CUDA cores, and on tensor cores with either back end."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence

import torch

from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peer import Build, Peer, Prepared, Setting, same
from attnloom.bench.gpu.peers import flashinfer_modules as modules
from attnloom.bench.gpu.peers.flashinfer_prefill import workspace


class FlashInferDecode(Peer):
    """cores: "cuda" or "tensor"."""

    def __init__(self, cores: str) -> None:
        self._cores = cores
        self.id = f"flashinfer-decode-{cores}"
        self.engine = "FlashInfer decode"

    def _backends(self) -> tuple[str, ...]:
        return ("cuda",) if self._cores == "cuda" else modules.BACKENDS

    def unavailable_reason(self) -> str | None:
        """See Peer."""
        return modules.unavailable_reason(self._backends()[0])

    def unfit_reason(self, gpu_case: GpuCase) -> str | None:
        """See Peer."""
        if not gpu_case.decodes:
            return "a decode kernel"
        if gpu_case.case.page_size is None:
            return "the case has no pages"
        return modules.unfit_reason(gpu_case)

    def settings(self, batch: DeviceBatch) -> Sequence[Setting]:
        """See Peer."""
        usable = [backend for backend in self._backends() if modules.unavailable_reason(backend) is None]
        return [Setting(f"{self._cores} cores, {b}", functools.partial(_paged, batch, b)) for b in usable]

    def build(self, cases: Sequence[GpuCase]) -> Build | None:
        """See Peer."""
        return modules.build([case for case in cases if self.unfit_reason(case) is None], self._backends())


def _paged(batch: DeviceBatch, backend: str) -> Prepared:
    """Planned for this batch's own grid, which a captured graph then replays: quicker than its padded graph mode."""
    flashinfer = importlib.import_module("flashinfer")
    how = {"use_tensor_cores": False} if backend == "cuda" else {"use_tensor_cores": True, "backend": backend}
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(batch), "NHD", **how)
    case = batch.case
    arguments = (
        *(batch.kv_indptr, batch.page_ids, batch.last_page_len),
        *(case.heads[0], case.heads[1], case.head_dim, case.page_size),
    )
    out = torch.empty_like(batch.q)

    def plan() -> None:
        wrapper.plan(*arguments, q_data_type=batch.dtype, kv_data_type=batch.dtype)

    plan()
    return Prepared(lambda: wrapper.run(batch.q, (batch.k, batch.v), out=out), same, plan)
