"""A line of the GPU benchmark: what is run, how its work is counted, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass

from attnloom.bench.case import Case

# Matrix products that attention can hope for on the card of the targets: the roofline's ceiling, flop/s.
ATTAINABLE_FLOPS = 600e12


@dataclass(frozen=True)
class Target:
    """AttnLoom is to be at least `at_least` times as fast as the quickest of `peers` (ids, or starts of ids)."""

    peers: tuple[str, ...]
    at_least: float

    def names(self, peer: str) -> bool:
        """Whether the peer with that id is one of those compared with."""
        return any(peer == name or peer.startswith(f"{name}-") for name in self.peers)


@dataclass(frozen=True)
class GpuCase:
    """A case on a GPU and its targets."""

    case: Case
    targets: tuple[Target, ...] = ()

    @property
    def name(self) -> str:
        """Mode, type, storage, workload and heads."""
        qo, kv = self.case.heads
        return f"{self.case.name}, {qo}/{kv} heads"

    @property
    def decodes(self) -> bool:
        """One query row a request: bound by memory, timed as a CUDA graph."""
        return self.case.mode == "decode"

    @property
    def counted_bytes(self) -> int:
        """K and V; q and out too where a request has more than one query row."""
        return self.case.kv_bytes + (0 if self.decodes else self.case.qo_bytes)

    def roofline(self, read_bytes_per_second: float) -> float:
        """Seconds that reading the bytes or computing the products takes at least, whichever is longer."""
        return max(self.counted_bytes / read_bytes_per_second, self.case.flops / ATTAINABLE_FLOPS)
