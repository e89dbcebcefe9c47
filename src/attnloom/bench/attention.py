"""Time one case: check the result, then AttnLoom and torch in interleaved rounds."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from attnloom.bench.arguments import DTYPES
from attnloom.bench.case import Case, make_batch, make_engine
from attnloom.bench.sdpa import LAYOUTS, Peer, make_peer
from attnloom.bench.timing import Spread, host_seconds, interleave, quickest, spread
from attnloom.testing.inputs import Batch
from attnloom.testing.tolerance import assert_out_close

LAYERS = 36  # one plan serves this many layers where its share of a step is quoted
_PLANS = 15


@dataclass(frozen=True)
class Result:
    """What one case took; seconds per call, one entry per round.

    ratios: torch's time / ours, per round: 2 means twice as fast as torch. plan_seconds: one `plan`, median, not
    part of the others. num_ctas, balance, splits: the plan that ran.
    """

    case: Case
    implementation: str
    peer_layout: str
    seconds: tuple[float, ...]
    peer_seconds: tuple[float, ...]
    plan_seconds: float
    num_ctas: int

    @property
    def ours(self) -> Spread:
        """Our seconds."""
        return spread(self.seconds)

    @property
    def peer(self) -> Spread:
        """Torch's seconds."""
        return spread(self.peer_seconds)

    @property
    def ratio(self) -> Spread:
        """Torch's time / ours, of each round."""
        return spread([p / s for s, p in zip(self.seconds, self.peer_seconds, strict=True)])

    @property
    def meets_target(self) -> bool | None:
        """Whether the median ratio is at least the target; None without one."""
        return None if self.case.target is None else self.ratio.median >= self.case.target


@torch.no_grad()
def measure(case: Case, rounds: int) -> Result:
    """Run one case. Raises AssertionError, before any timing, when the result is not within tolerance."""
    batch = make_batch(case)
    attn = make_engine(case)
    attn.plan(batch.qo_indptr, batch.kv, num_ctas=case.num_ctas)
    out = attn.run(batch.q, *batch.caches)
    peers = [make_peer(batch, layout) for layout in LAYOUTS]
    _check(case, batch, out, peers[0])
    peer = peers[quickest(peers, host_seconds)]
    plan_seconds = _plan_seconds(case, batch)
    seconds, peer_seconds = interleave(lambda: attn.run(batch.q, *batch.caches), peer, rounds, host_seconds)
    return Result(
        case=case,
        implementation=attn.implementation,
        peer_layout=peer.layout,
        seconds=tuple(seconds),
        peer_seconds=tuple(peer_seconds),
        plan_seconds=plan_seconds,
        num_ctas=attn.current_plan.classes[0].tile.num_ctas,
    )


def _check(case: Case, batch: Batch, out: torch.Tensor, peer: Peer) -> None:
    """Every request within the derived tolerance of torch in a wider type, whose own error sets the bound."""
    wide = torch.float64 if DTYPES[case.dtype] == torch.float32 else torch.float32
    shown = (i for i, (q, k) in enumerate(zip(batch.sequences.q, batch.sequences.k, strict=True)) if len(q) and len(k))
    for request, arguments in zip(shown, peer.requests, strict=True):
        q, k, v, how = arguments
        exact = Peer("", ((q.to(wide), k.to(wide), v.to(wide), how),))()[0]
        model = Peer("", (arguments,))()[0]
        rows = out[batch.rows(request)].transpose(0, 1)[None]
        assert_out_close(rows, exact, model, f"{case.name}, request {request}")


def _plan_seconds(case: Case, batch: Batch) -> float:
    """Median of warm plans, on an object of its own."""
    attn = make_engine(case)
    taken = []
    for _ in range(_PLANS):
        begin = time.perf_counter()
        attn.plan(batch.qo_indptr, batch.kv, num_ctas=case.num_ctas)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[2:])
