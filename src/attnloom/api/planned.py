"""What `plan` leaves for `run`."""

from __future__ import annotations

import torch

from attnloom.api import buffers, planning
from attnloom.api.placing import Placed
from attnloom.schedule.work import Plan, TileClass


class Planned:
    """One plan and what it was made from."""

    def __init__(self, inputs: planning.PlanInputs, classes: tuple[TileClass, ...], placed: Placed) -> None:
        self.inputs = inputs
        self.classes = classes
        self.placed = placed
        self.plan: Plan = placed.plan
        self.operands = placed.operands
        self._device = placed.buffers[0].device
        self._stream = buffers.stream_of(self._device)
        self._checked_rows: int | None = None

    def use_on_current_stream(self, workspace: torch.Tensor | None) -> None:
        """Keep the plan's memory, and the workspace, from others until the current stream has read it."""
        device = self._device
        if buffers.stream_of(device) == self._stream:
            return
        for buffer in (*self.placed.buffers, workspace):
            if buffer is not None:
                buffer.record_stream(torch.cuda.current_stream(device))

    def check_rows(self, num_rows: int) -> None:
        """Once per cache size, where page ids lie on the host: all of them are inside the cache."""
        kv = self.inputs.kv
        if self._checked_rows == num_rows or (kv.pages is not None and kv.pages.device.type != "cpu"):
            return
        planning.check_pages(kv, num_rows, name="k_cache and v_cache")
        self._checked_rows = num_rows
