"""AttnLoom as a contender, and the check of its result against attention by hand."""

from __future__ import annotations

import torch

from attnloom.bench.case import make_engine
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peer import Prepared, same

# Error of a row as a part of its greatest entry: rounding of bf16 with room, far below what a wrong mask costs.
_TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 1e-2, torch.float32: 1e-3}


def prepare(batch: DeviceBatch) -> Prepared:
    """Planned and ready; the output tensor is made once."""
    attn = make_engine(batch.case)
    out = torch.empty_like(batch.q)

    def plan() -> None:
        attn.plan(batch.qo_indptr, batch.kv_format(), num_ctas=batch.case.num_ctas)

    plan()
    return Prepared(lambda: attn.run(batch.q, batch.k, batch.v, out=out), same, plan, attn.implementation)


def wrong_rows(batch: DeviceBatch, out: torch.Tensor) -> str | None:
    """What differs from causal attention computed in fp32 on the first, middle and last row of every request."""
    k, v = batch.contiguous
    group = batch.case.heads[0] // batch.case.heads[1]
    for i, (qo, kv) in enumerate(zip(batch.qo_lens, batch.kv_lens, strict=True)):
        start, key = int(batch.qo_indptr[i]), int(batch.token_indptr[i])
        for row in sorted({0, qo // 2, qo - 1}) if qo else ():
            visible = row + kv - qo + 1
            q = batch.q[start + row].float().unflatten(0, (-1, group))
            keys, values = (x[key : key + max(visible, 0)].float() for x in (k, v))
            logits = torch.einsum("hgd,lhd->hgl", q, keys) * batch.case.head_dim**-0.5
            expected = torch.einsum("hgl,lhd->hgd", logits.softmax(-1), values).flatten(0, 1)
            if (reason := differs(out[start + row][None], expected[None])) is not None:
                return f"request {i}, row {row}: {reason}"
    return None


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
