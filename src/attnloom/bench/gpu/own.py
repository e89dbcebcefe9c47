"""AttnLoom beside itself: other pages, types, head dims or rows in the rounds of a case."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attnloom.bench.gpu import engine
from attnloom.bench.gpu.case import Beside, GpuCase
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peer import Peer, Prepared, Setting
from attnloom.bench.gpu.whole import wrong

# Changes that leave q, k and v as they are, and those that leave k and v.
_SAME_TENSORS = frozenset({"num_ctas", "capacity", "implementation"})
_SAME_KEYS = _SAME_TENSORS | {"qo_lens", "mode"}


class Own(Peer):
    """One `Beside` of a case."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self.id, self.engine = beside.id, beside.engine

    def unavailable_reason(self) -> str | None:
        """See Peer."""
        return None

    def unfit_reason(self, gpu_case: GpuCase) -> str | None:
        """See Peer."""
        del gpu_case
        return None

    def settings(self, batch: DeviceBatch) -> Sequence[Setting]:
        """See Peer."""
        return [Setting("", lambda: self._parts(batch) if self._beside.parts else self._other(batch))]

    def _other(self, batch: DeviceBatch) -> Prepared:
        gpu_case = _changed(batch, self._beside.changes)
        changed = set(self._beside.changes)
        same_result = changed <= _SAME_TENSORS or changed == {"page_size"}
        if changed <= _SAME_KEYS:
            other = batch.asking(gpu_case)
        else:
            other = batch.repaged(gpu_case) if same_result else DeviceBatch(gpu_case)
        prepared = engine.prepare(other, one_split=self._beside.one_split)
        if same_result:
            return prepared
        return dataclasses.replace(prepared, check=lambda rows: wrong(other, rows), work=gpu_case)

    def _parts(self, batch: DeviceBatch) -> Prepared:
        """Every part in turn, on tensors of its own."""
        batches = [DeviceBatch(_changed(batch, changes), seed=i) for i, changes in enumerate(self._beside.parts)]
        prepared = [engine.prepare(each) for each in batches]
        counts = [each.total_q for each in batches]
        out = torch.empty(sum(counts), *batch.q.shape[1:], dtype=batch.dtype, device=batch.device)

        def call() -> list[torch.Tensor]:
            return [each.call() for each in prepared]

        def check(rows: torch.Tensor) -> str | None:
            found = (wrong(each, part) for each, part in zip(batches, rows.split(counts), strict=True))
            return next((reason for reason in found if reason is not None), None)

        return Prepared(call, lambda results: torch.cat(results, out=out), None, prepared[0].label, check)


def _changed(batch: DeviceBatch, changes: Mapping[str, Any]) -> GpuCase:
    return GpuCase(dataclasses.replace(batch.case, **changes))
