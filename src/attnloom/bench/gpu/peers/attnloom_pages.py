"""AttnLoom itself on pages of another size: what small pages cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.engine import prepare
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peer import Peer, Setting

_PAGE_SIZE = 16


class AttnLoomPages(Peer):
    """The same lengths, keys and values on pages of 16, for cases with other pages."""

    id = f"attnloom-page-{_PAGE_SIZE}"
    engine = f"AttnLoom, page {_PAGE_SIZE}"

    def unavailable_reason(self) -> str | None:
        """See Peer."""
        return None

    def unfit_reason(self, gpu_case: GpuCase) -> str | None:
        """See Peer."""
        return "measured beside pages of 1 only" if gpu_case.case.page_size != 1 else None

    def settings(self, batch: DeviceBatch) -> Sequence[Setting]:
        """See Peer."""
        case = dataclasses.replace(batch.gpu_case.case, page_size=_PAGE_SIZE)
        other = batch.repaged(GpuCase(case))
        return [Setting("NHD", lambda: prepare(other))]
