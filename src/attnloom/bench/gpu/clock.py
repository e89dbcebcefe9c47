"""Time on a CUDA device: cold L2 before each call, events around it, medians; CUDA graphs for decode."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

R = TypeVar("R")
Call = Callable[[], object]

# Written before each timed call: more than four times the L2 of the largest card known here. It takes longer than
# a launch costs the host, so that the timed kernel is queued by the time the device gets to it.
_FLUSH_BYTES = 512 * 2**20
_HOST_CALLS = 20


class Clock(Protocol):
    """What measuring needs of a device; the tests bring one that counts."""

    def sample(self, call: Call, calls: int) -> float:
        """Median seconds of `calls` calls on the device, each with a cold L2."""

    def capture(self, call: Callable[[], R]) -> tuple[Call, R]:
        """The call as something cheap to replay, and what each replay writes."""

    def host_seconds(self, call: Call) -> float:
        """Seconds that issuing one call takes the host, the device not waited for."""

    def synchronize(self) -> None:
        """Wait for the device."""


class CudaClock:
    """`Clock` of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device)

    def sample(self, call: Call, calls: int) -> float:
        """See `Clock`: calls are queued without waiting for each, as `triton.testing.do_bench` does it."""
        events = []
        for _ in range(calls):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.zero_()
            begin.record()
            call()
            end.record()
            events.append((begin, end))
        self.synchronize()
        return float(statistics.median(begin.elapsed_time(end) for begin, end in events)) * 1e-3

    def capture(self, call: Callable[[], R]) -> tuple[Call, R]:
        """See `Clock`: one call in one CUDA graph, captured after two warm calls on a side stream."""
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):
                call()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            result = call()
        return graph.replay, result

    def host_seconds(self, call: Call) -> float:
        """See `Clock`."""
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(_HOST_CALLS):
            call()
        taken = time.perf_counter() - begin
        self.synchronize()
        return taken / _HOST_CALLS

    def synchronize(self) -> None:
        """See `Clock`."""
        torch.cuda.synchronize(self._device)


def reads(num_bytes: int, device: torch.device) -> dict[str, Call]:
    """Two plain reads of `num_bytes`: the quicker one is the read ceiling. Random bits, no NaN."""
    words = max(1, num_bytes // 4)
    buffer = torch.randint(2**30, (words,), dtype=torch.int32, device=device).view(torch.float32)
    columns = 2**14
    rows = buffer[: words // columns * columns].view(-1, columns)
    found: dict[str, Call] = {"sum": lambda: torch.sum(buffer)}
    if rows.shape[0] * columns >= 0.999 * words:  # the same bytes
        found["sum of rows"] = lambda: torch.sum(rows, 1)
    return found
