"""The check of a whole result: attention by hand on some rows, and on a GPU all rows beside FA2 where it takes them."""

from __future__ import annotations

import torch

from attnloom.bench.gpu import engine
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peers.torch_fa2 import TorchFA2, varlen


def wrong(batch: DeviceBatch, out: torch.Tensor) -> str | None:
    """What is wrong with a result ``[total_q, H_qo, D]``, or None."""
    if (reason := engine.wrong_rows(batch, out)) is not None:
        return reason
    if not _fa2_takes(batch):
        return None
    prepared = varlen(batch)
    reason = engine.differs(out, prepared.rows(prepared.call()))
    return None if reason is None else f"beside FA2 (torch): {reason}"


def _fa2_takes(batch: DeviceBatch) -> bool:
    if batch.device.type != "cuda" or batch.case.kv_dtype is not None:
        return False
    fa2 = TorchFA2()
    return fa2.unavailable_reason() is None and fa2.unfit_reason(batch.gpu_case) is None
