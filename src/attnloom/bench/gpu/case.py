"""A line of the GPU benchmark: what is run beside what, how its work is counted, and what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnloom.bench.case import Case
from attnloom.bench.gpu.record import OURS

# Matrix products that attention can hope for on the card of the targets: the roofline's ceiling, flop/s.
ATTAINABLE_FLOPS = 600e12

# What a target may compare with beside the ids of peers: a plain read of as many bytes, and a fixed time.
READ_CEILING = "read-ceiling"
PLAN_LIMIT = "plan-limit"


@dataclass(frozen=True)
class Target:
    """The contender `subject` is to be at least `at_least` times as fast as the quickest of `peers`.

    peers: ids, or starts of ids, or READ_CEILING, or PLAN_LIMIT (then the subject's plan is compared with
    `plan_seconds`); label: the figure that this cell belongs to; geomean: what the figure's cells must reach
    together; alternative: reaching that one instead suffices.
    """

    peers: tuple[str, ...]
    at_least: float
    label: str = ""
    subject: str = OURS
    geomean: float | None = None
    plan_seconds: float | None = None
    alternative: Target | None = None

    def names(self, peer: str) -> bool:
        """Whether the peer with that id is one of those compared with."""
        return any(peer == name or peer.startswith(f"{name}-") for name in self.peers)


@dataclass(frozen=True)
class Beside:
    """AttnLoom once more in the same rounds, on a case that differs.

    id, engine: as of a peer; changes: fields of the case that differ; parts: fields of several cases that are run
    one after another instead; one_split: with the most CTAs by which no request's keys are divided.
    """

    id: str
    engine: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Mapping[str, Any], ...] = ()
    one_split: bool = False


@dataclass(frozen=True)
class GpuCase:
    """A case on a GPU and its targets.

    section: part of the run that it belongs to; beside: other cases of AttnLoom in its rounds; peers: ids, or starts
    of ids, of the peers to measure (None: all).
    """

    case: Case
    targets: tuple[Target, ...] = ()
    section: str = ""
    beside: tuple[Beside, ...] = ()
    peers: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """Mode, type, storage, workload and heads."""
        qo, kv = self.case.heads
        dim = "" if self.case.head_dim == _USUAL_HEAD_DIM else f", head_dim {self.case.head_dim}"
        return f"{self.case.name}, {qo}/{kv} heads{dim}"

    @property
    def decodes(self) -> bool:
        """One query row a request: bound by memory."""
        return self.case.mode == "decode"

    @property
    def replayed(self) -> bool:
        """Timed as a replayed CUDA graph: all but whole prompts."""
        return self.case.mode != "prefill"

    @property
    def counted_bytes(self) -> int:
        """K and V; q and out too where a request has more than one query row."""
        return self.case.kv_bytes + (0 if self.decodes else self.case.qo_bytes)

    def wants(self, peer: str) -> bool:
        """Whether the peer with that id is measured in this case."""
        return self.peers is None or any(peer == name or peer.startswith(f"{name}-") for name in self.peers)

    def roofline(self, read_bytes_per_second: float) -> float:
        """Seconds that reading the bytes or computing the products takes at least, whichever is longer."""
        return max(self.counted_bytes / read_bytes_per_second, self.case.flops / ATTAINABLE_FLOPS)


_USUAL_HEAD_DIM = 128
