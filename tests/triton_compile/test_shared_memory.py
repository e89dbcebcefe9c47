"""Shipped kernels compiled without a GPU: the launcher's shared memory against Triton's own, and what a CTA has.

A covering list, for the time of it: `make compile-all` compiles every shipped tile.
"""

from __future__ import annotations

import pytest

from attnloom.impl.triton.configs import ClassConfig
from tools.compile_all import Case, compile_case, faults, shipped

# How much more the formula may say than Triton takes: weights or accumulators that some widths keep in registers.
MARGIN = 4096

# Products by mma and by warpgroups, one piece and two, padded widths, IEEE fp32, paged and ragged.
SHIPPED = [
    *shipped(80, (64, 64), "bf16"),
    *shipped(80, (128, 128), "bf16", None),
    *shipped(86, (192, 128), "fp16"),
    *shipped(89, (256, 256), "bf16"),
    *shipped(89, (576, 512), "bf16"),
    *shipped(80, (128, 128), "fp32"),
    *shipped(90, (80, 80), "fp16"),
    *shipped(90, (128, 128), "bf16"),
    *shipped(90, (64, 64), "bf16", None),
    *shipped(90, (512, 512), "bf16"),
    *shipped(90, (64, 64), "fp32"),
]

# Tiles that a tuner may try: one row without tensor cores, deeper pipelines.
OTHERS = [
    Case(80, (64, 64), "bf16", ClassConfig(1, 64, 4, 3)),
    Case(90, (80, 80), "bf16", ClassConfig(1, 128, 4, 2), None),
    Case(90, (128, 128), "bf16", ClassConfig(16, 64, 2, 5)),
    Case(90, (128, 128), "bf16", ClassConfig(64, 64, 4, 3)),
]

# fp8 caches: converted by the GPU and by arithmetic, in registers and through shared memory.
MARGIN_FP8 = 12288
QUANTISED = [
    *shipped(80, (128, 128), "bf16", fp8="e4m3"),
    *shipped(80, (256, 256), "fp16", None, fp8="e5m2"),
    *shipped(86, (64, 64), "fp16", fp8="e4m3"),
    *shipped(89, (192, 128), "bf16", fp8="e4m3"),
    *shipped(90, (64, 64), "fp16", None, fp8="e5m2"),
    *shipped(90, (128, 128), "bf16", fp8="e4m3"),
    *shipped(90, (192, 128), "bf16", fp8="e4m3"),
    *shipped(90, (576, 512), "bf16", fp8="e4m3"),
    Case(90, (80, 80), "bf16", ClassConfig(1, 64, 4, 3), fp8="e4m3"),
    Case(90, (128, 128), "bf16", ClassConfig(16, 64, 2, 5), fp8="e5m2"),
    Case(90, (128, 128), "fp16", ClassConfig(64, 64, 4, 3), fp8="e4m3"),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Compiled here, not found."""
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("case", [*SHIPPED, *OTHERS], ids=lambda case: case.words)
def test_the_formula_bounds_what_triton_takes(case):
    taken = compile_case(case)
    assert 0 <= taken.formula - taken.shared <= MARGIN
    assert "more shared memory" not in " ".join(faults(case, taken))
    assert taken.registers > 0


@pytest.mark.parametrize("case", QUANTISED, ids=lambda case: case.words)
def test_the_formula_bounds_what_fp8_caches_take(case):
    taken = compile_case(case)
    assert 0 <= taken.formula - taken.shared <= MARGIN_FP8
    assert "more shared memory" not in " ".join(faults(case, taken))
