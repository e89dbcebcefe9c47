"""Shapes on which attention kernels often fall behind, with the marks that they must not fall below."""

from __future__ import annotations

from typing import Any

from attnloom.bench.case import Case
from attnloom.bench.gpu.case import READ_CEILING, Beside, GpuCase, Target
from attnloom.bench.gpu.record import OURS

GUARDS = "guards"

# What counts as the same time: two runs of one kernel in one run differ by as much.
_SAME_TIME = 0.97


def guards() -> tuple[GpuCase, ...]:
    """Skew, few heads, capacity, small pages, mixed batches and short decodes."""
    return (_skew(), *_few_heads(), _capacity(), _small_pages(), _mixed(), *_short_decodes())


def _guard(case: Case, targets: tuple[Target, ...], beside: tuple[Beside, ...] = ()) -> GpuCase:
    return GpuCase(case, targets, GUARDS, beside, ())


def _decode(workload: str, *, heads: tuple[int, int] = (32, 8), **changes: Any) -> Case:
    fields: dict[str, Any] = {"mode": "decode", "page_size": 16} | changes
    return Case(workload=workload, dtype="bf16", heads=heads, device="cuda", **fields)


def _skew() -> GpuCase:
    """One long request among short ones: near the read ceiling, and each short one adds at most its bytes."""
    alone = Beside("ours-alone", "AttnLoom, the long request alone", {"workload": "constant_1x131072"})
    share = 131072 / (131072 + 43 * 1024)
    return _guard(
        _decode("lens_43x1024_1x131072"),
        (
            Target((READ_CEILING,), 1 / 1.25, "P1 skew / read ceiling"),
            Target((alone.id,), share, "P1 skew: short requests add at most their bytes"),
        ),
        (alone,),
    )


def _few_heads() -> list[GpuCase]:
    target = (Target((READ_CEILING,), 0.8, "P2 few heads, long / read ceiling"),)
    cases = [_decode(f"constant_{batch}x32768", heads=(8, 1)) for batch in (1, 32, 64)]
    return [_guard(case, target) for case in (*cases, _decode("constant_1x131072"))]


def _capacity() -> GpuCase:
    """Tables and maxima for 128k tokens a request, of which 1k are used."""
    beside = Beside("ours-capacity-1k", "AttnLoom, capacity 1k", {"capacity": 1024})
    target = Target((beside.id,), _SAME_TIME, "P3 capacity 128k, used 1k / capacity 1k")
    return _guard(_decode("constant_16x1024", capacity=131072), (target,), (beside,))


def _small_pages() -> GpuCase:
    beside = [Beside(f"ours-page-{size}", f"AttnLoom, page {size}", {"page_size": size}) for size in (16, 8, 1)]
    targets = [
        Target((OURS,), 1 / most, f"P5 page {size} / page 128", subject=f"ours-page-{size}")
        for size, most in ((16, 1.05), (1, 1.2))
    ]
    return _guard(_decode("constant_1x131072", page_size=128), tuple(targets), tuple(beside))


def _mixed() -> GpuCase:
    """A prompt of 2k and 32 decodes in one call, beside the two alone."""
    parts = (
        {"workload": "constant_1x2048", "mode": "prefill", "qo_lens": None},
        {"workload": "constant_32x4096", "mode": "decode", "qo_lens": None},
    )
    beside = Beside("ours-parts", "AttnLoom, prompt and decodes apart", parts=parts)
    case = _decode("lens_1x2048_32x4096", mode="mixed", qo_lens=(2048, *(1,) * 32))
    return _guard(case, (Target((beside.id,), 1.0, "P7 mixed / its parts alone"),), (beside,))


def _short_decodes() -> list[GpuCase]:
    beside = Beside("ours-one-split", "AttnLoom, keys not divided", one_split=True)
    target = Target((beside.id,), _SAME_TIME, "P9 short decode / one split")
    return [_guard(_decode(f"constant_1x{length}"), (target,), (beside,)) for length in (128, 256, 512, 1024)]
