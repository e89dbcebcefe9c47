"""`attnloom compile` and `attnloom bench jit` where there is no GPU."""

from __future__ import annotations

import json

import pytest
import torch
from processes import compiled

from attnloom import cli
from attnloom.bench import jit
from attnloom.compile import cache

SPEC = ("--num-qo-heads", "4", "--num-kv-heads", "2", "--head-dim", "16", "--dtype", "fp16")


def run(capsys, *words):
    status = cli.main(["compile", *SPEC, *words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_compile_fills_the_cache_and_then_reads_it(capsys, private_cache):
    status, out, _ = run(capsys, "--arch", "sm90", "--variant", "causal,soft_cap:30")
    assert status == 0
    lines = out.splitlines()
    kernels = [line for line in lines if "sm90 fp16 page 16" in line]
    assert len(kernels) >= 2
    assert all(str(private_cache / "kernels") in line for line in kernels)
    assert all(int(line.split("|")[4].strip()) > 8 for line in kernels)  # registers
    assert f"{len(kernels)} kernels, {len(compiled(private_cache))} compiled here" in out
    cache.forget()
    _, again, _ = run(capsys, "--arch", "sm90", "--variant", "causal,soft_cap:30")
    assert again.count("cached") == len(kernels)
    assert " 0 compiled here" in again


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to compile for")
def test_compile_asks_for_an_architecture_where_there_is_no_gpu(capsys, private_cache):
    status, out, err = run(capsys)
    assert (status, out) == (2, "")
    assert "--arch" in err
    assert run(capsys, "--arch", "sm12")[2].count("sm90") == 1


def test_bench_jit_measures_both(private_cache):
    job = jit.Job("causal", (4, 2), 16, "fp16", 16, "sm90")
    cold, warm = jit.measure(job, 1)
    assert cold["compiled"] == cold["kernels"] == warm["kernels"]
    assert warm["compiled"] == 0
    assert 0 < warm["seconds"][0] < cold["seconds"][0]
    assert json.dumps(cold)
    assert not private_cache.exists()  # it measures in directories of its own
