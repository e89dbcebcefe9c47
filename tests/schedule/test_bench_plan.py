"""`attnloom bench plan`, and what a plan does not depend on."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
import torch

import attnloom as al
from attnloom.bench import plan as bench_plan


@pytest.mark.parametrize("planner", ["stream", "algorithm1"])
def test_prints_every_case(capsys, planner):
    parser = argparse.ArgumentParser()
    bench_plan.add_arguments(parser)
    assert bench_plan.run(parser.parse_args(["--planner", planner, "--repeats", "2", "--num-ctas", "132"])) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split("|")[0].strip(): [cell.strip() for cell in line.split("|")] for line in lines if "|" in line}
    assert rows["decode 1024 x U(2048, 4096)"][4] == "1,024"  # one item for all 8 heads of a request
    assert rows["prefill 64 x 2048"][4] == "4,096"  # 64 requests x 2048 x 4 packed rows / 128
    assert {case.name for case in bench_plan.cases()} <= rows.keys()


def test_figures_by_hand():
    """One request of 8 equal kv heads that nobody cuts: 8 of 132 CTAs work."""
    case = bench_plan.Case("one", np.array([1]), np.array([64]))
    figures = bench_plan.measure(case, num_ctas=132, planner="stream", repeats=3)
    assert (figures.items, figures.splits, len(figures.seconds)) == (1, 0, 3)
    assert figures.balance == pytest.approx(132 / 8)


def test_independent_of_the_page_order():
    lens = [700, 33, 4000, 16]
    pages = [-(-n // 16) for n in lens]
    qo_indptr, kv_indptr = torch.tensor([0, 1, 33, 34, 50]), torch.tensor([0, *np.cumsum(pages)])
    last = torch.tensor([n - (p - 1) * 16 for n, p in zip(lens, pages, strict=True)])
    plans = []
    for seed in (0, 1):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(sum(pages)))
        attn = al.BatchAttention(num_qo_heads=8, num_kv_heads=2, head_dim=64, dtype=torch.float32, page_size=16)
        attn.plan(qo_indptr, al.PagedKV(kv_indptr, order, last, page_size=16), num_ctas=20)
        plans.append(attn.current_plan)
    assert not torch.equal(plans[0].levels[0].pages, plans[1].levels[0].pages)
    assert plans[0].merges.slots.shape[0] > 0
    for a, b in zip(plans[0].classes, plans[1].classes, strict=True):
        for name in ("items", "item_segments", "segments", "work_indptr"):
            assert torch.equal(getattr(a, name), getattr(b, name))
    assert torch.equal(plans[0].merges.slots, plans[1].merges.slots)
