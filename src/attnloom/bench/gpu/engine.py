"""AttnLoom as a contender, and the check of its result against attention by hand."""

from __future__ import annotations

import torch

from attnloom import BatchAttention
from attnloom.bench.case import make_engine
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peer import Prepared, same

# Error of a row as a part of its greatest entry: rounding of bf16 with room, far below what a wrong mask costs.
_TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 1e-2, torch.float32: 1e-3}
_FEW_ROWS = 16


def prepare(batch: DeviceBatch, *, one_split: bool = False) -> Prepared:
    """Planned and ready; the output tensor is made once. one_split: with CTAs so few that no keys are divided."""
    attn = make_engine(batch.case)
    out = torch.empty_like(batch.q)
    num_ctas = _undivided(attn, batch) if one_split else batch.case.num_ctas

    def plan() -> None:
        attn.plan(batch.qo_indptr, batch.kv_format(), num_ctas=num_ctas)

    plan()
    return Prepared(lambda: attn.run(batch.q, batch.k, batch.v, out=out), same, plan, attn.implementation)


def _undivided(attn: BatchAttention, batch: DeviceBatch) -> int:
    """The most CTAs up to one a kv head for which the plan divides no request's keys."""
    for num_ctas in range(batch.num_kv_heads, 0, -1):
        attn.plan(batch.qo_indptr, batch.kv_format(), num_ctas=num_ctas)
        if not attn.current_plan.merges.entries.shape[0]:
            return num_ctas
    raise ValueError("every number of CTAs up to that of the kv heads divides some request's keys")


def wrong_rows(batch: DeviceBatch, out: torch.Tensor) -> str | None:
    """What differs from attention computed in fp32 on some rows of every request: all where there are few."""
    k, v = batch.contiguous
    group = batch.case.heads[0] // batch.case.heads[1]
    for i, (qo, kv) in enumerate(zip(batch.qo_lens, batch.kv_lens, strict=True)):
        start, key = int(batch.qo_indptr[i]), int(batch.token_indptr[i])
        if not qo:
            continue
        rows = torch.tensor(_checked_rows(qo), device=batch.device)
        keys, values = (x[key : key + kv].float() for x in (k, v))
        q = batch.q[start + rows].float().unflatten(1, (-1, group))
        logits = torch.einsum("rhgd,lhd->rhgl", q, keys) * batch.case.head_dim**-0.5
        if batch.case.causal:
            hidden = torch.arange(kv, device=batch.device) > (rows + kv - qo)[:, None]
            logits.masked_fill_(hidden[:, None, None], -torch.inf)
        expected = torch.einsum("rhgl,lhd->rhgd", logits.softmax(-1).nan_to_num(0.0), values).flatten(1, 2)
        if (reason := differs(out[start + rows], expected)) is not None:
            return f"request {i}, of rows {_checked_rows(qo)}: {reason}"
    return None


def _checked_rows(qo: int) -> list[int]:
    """The first, the last, the middle ones and those at the borders of tiles."""
    if qo <= _FEW_ROWS:
        return list(range(qo))
    return sorted({0, 1, 63, 64, 127, 128, qo // 2, qo - 65, qo - 64, qo - 1} & set(range(qo)))


def differs(rows: torch.Tensor, expected: torch.Tensor) -> str | None:
    """How two results ``[rows, H, D]`` disagree beyond rounding, or None; NaN disagrees."""
    if rows.shape != expected.shape:
        return f"shape {tuple(rows.shape)}, expected {tuple(expected.shape)}"
    error = (rows.float() - expected.float()).abs().flatten(1).amax(1)
    bound = _TOLERANCE[rows.dtype] * expected.float().abs().flatten(1).amax(1)
    bad = ~(error <= bound)
    if not bool(bad.any()):
        return None
    worst = int(torch.where(bad, error.nan_to_num(torch.inf), -1.0).argmax())
    return (
        f"{int(bad.sum())} of {len(bad)} rows differ, row {worst} by {float(error[worst]):.3g} "
        f"where {float(bound[worst]):.3g} is rounding"
    )
