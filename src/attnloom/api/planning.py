"""From a caller's lengths and page tables to a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnloom.errors import InvalidArgument, InvalidMetadata
from attnloom.formats import KVFormat, PagedKV, RaggedKV, ResolvedKV, host_ints, host_lengths
from attnloom.formats.index import IntArray
from attnloom.formats.paged import BlockTableKV
from attnloom.schedule.cost import CostModel
from attnloom.schedule.planner import Planner, Problem, schedule
from attnloom.schedule.result import Schedule
from attnloom.schedule.work import TileClass
from attnloom.spec import AttentionSpec, positive_int
from attnloom.variant.bounds import BoundsProgram

MAX_CTAS = 1 << 16  # workers beyond any device's, and a workspace that is still an ordinary one


@dataclass(frozen=True)
class PlanInputs:
    """Validated host copies of what `plan` was given; enough to schedule again.

    qo_indptr int64 [batch + 1]; kv: lengths and pages; q_pos, kv_pos: int64 host copies or None.
    """

    qo_indptr: IntArray
    qo_len: IntArray
    kv: ResolvedKV
    q_pos: IntArray | None
    kv_pos: IntArray | None

    @property
    def lengths(self) -> tuple[IntArray, IntArray]:
        """(qo_len, kv_len) per request."""
        return self.qo_len, self.kv.kv_len

    @property
    def total_q(self) -> int:
        """Query rows of the whole batch."""
        return int(self.qo_indptr[-1])


def gather_inputs(
    qo_indptr: Any, kv: Any, *, spec: AttentionSpec, device: torch.device, q_pos: Any, kv_pos: Any
) -> PlanInputs:
    """Validate and copy. Raises from attnloom.errors before anything is launched."""
    if not isinstance(kv, KVFormat):
        raise InvalidArgument(
            name="kv",
            given=type(kv).__name__,
            supported="RaggedKV, PagedKV or PagedKV.from_block_table",
            fix="Wrap the page table: al.PagedKV(kv_indptr, kv_indices, kv_last_page_len, page_size=...).",
        )
    _check_page_size(spec, kv)
    indptr, qo_len = host_lengths("qo_indptr", qo_indptr)
    resolved = kv.resolve(qo_len.shape[0], device)
    positions = _positions("q_pos", q_pos, qo_len), _positions("kv_pos", kv_pos, resolved.kv_len)
    return PlanInputs(indptr, qo_len, resolved, *positions)


def make_schedule(
    inputs: PlanInputs,
    *,
    spec: AttentionSpec,
    bounds: BoundsProgram,
    operands: Mapping[str, Any],
    classes: tuple[TileClass, ...],
    cost: CostModel,
    planner: Planner,
) -> Schedule:
    """Schedule the batch; operands: values on the host of those that shape its tiles."""
    default_positions = inputs.q_pos is None and inputs.kv_pos is None
    problem = Problem(
        qo_indptr=inputs.qo_indptr,
        kv_len=inputs.kv.kv_len,
        group_size=spec.group_size,
        num_kv_heads=spec.num_kv_heads,
        bands=bounds.bands(inputs.qo_len, inputs.kv.kv_len, operands, default_positions),
        q_pos=inputs.q_pos,
        kv_pos=inputs.kv_pos,
    )
    return schedule(problem, classes, planner=planner, cost=cost)


def check_num_ctas(num_ctas: Any) -> int | None:
    """num_ctas as an int, or None for the device's default; InvalidArgument for anything else."""
    if num_ctas is None:
        return None
    given = positive_int("num_ctas", num_ctas)
    if given > MAX_CTAS:
        raise InvalidArgument(
            name="num_ctas", given=given, supported=f"at most {MAX_CTAS}", fix="Leave it out for the device's default."
        )
    return given


def check_page_ids(kv: ResolvedKV) -> None:
    """No page id is negative; reads the page table on the host (one synchronisation on a GPU)."""
    low, _ = kv.host_page_bounds()
    if low < 0:
        raise InvalidMetadata(
            name="page table",
            given=f"page id {low}",
            expected="ids >= 0",
            fix="Check the ids of the requests' own pages.",
        )


def check_pages(kv: ResolvedKV, num_rows: int, *, name: str) -> None:
    """Every page (or row) of the plan lies in a cache of `num_rows` pages (rows)."""
    if kv.pages is None:
        if kv.capacity > num_rows:
            raise InvalidMetadata(
                name=name,
                given=f"{num_rows} rows",
                expected=f"at least kv_indptr[-1] = {kv.capacity}",
                fix="Plan for the lengths that you run.",
            )
        return
    low, high = kv.host_page_bounds()
    if low < 0 or high >= num_rows:
        raise InvalidMetadata(
            name="page table",
            given=f"page ids {low}..{high}",
            expected=f"0..{num_rows - 1} ({name} has {num_rows} pages)",
            fix="Check the ids of the requests' own pages.",
        )


def _check_page_size(spec: AttentionSpec, kv: KVFormat) -> None:
    if spec.page_size is None or isinstance(kv, RaggedKV):
        return
    if isinstance(kv, (PagedKV, BlockTableKV)) and kv.page_size != spec.page_size:
        raise InvalidArgument(
            name="kv.page_size",
            given=kv.page_size,
            supported=f"{spec.page_size}, as the constructor was given",
            fix="Construct with page_size=None to choose it at plan.",
        )


def _positions(name: str, value: Any, lengths: IntArray) -> IntArray | None:
    if value is None:
        return None
    expected = int(lengths.sum())
    host = host_ints(name, value)
    if host.shape[0] != expected:
        raise InvalidMetadata(
            name=name, given=f"{host.shape[0]} elements", expected=f"{expected}, one a packed row", fix=""
        )
    limit = 2**31 - 1
    if host.shape[0] and (int(host.max()) > limit or int(host.min()) < -limit):
        raise InvalidMetadata(name=name, given="values outside int32", expected="int32 positions", fix="")
    return host
