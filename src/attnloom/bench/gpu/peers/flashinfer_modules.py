"""FlashInfer's compiled modules: which one a case needs, and all of them built at once before anything is timed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from attnloom.bench.arguments import DTYPES
from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.peer import Build, import_reason, no_cuda_reason, older_than_hopper_reason

BACKENDS = ("fa2", "fa3")


def unavailable_reason(backend: str) -> str | None:
    """Why FlashInfer's back end ("fa2", "fa3" or "cuda") cannot run here, or None."""
    hardware = older_than_hopper_reason() if backend == "fa3" else no_cuda_reason()
    return hardware or import_reason("flashinfer")


def unfit_reason(gpu_case: GpuCase) -> str | None:
    """Why no kernel of FlashInfer takes the case, or None."""
    return None if gpu_case.case.dtype in ("bf16", "fp16") else "takes bf16 and fp16 only"


def spec(gpu_case: GpuCase, backend: str) -> Any:
    """FlashInfer's description of the module that `backend` needs for the case."""
    modules = importlib.import_module("flashinfer.jit.attention.modules")
    dtype, dim = DTYPES[gpu_case.case.dtype], gpu_case.case.head_dim
    # q, kv and out, type of index arrays, head dims; no position encoding, no window, no soft cap
    common = (dtype, dtype, dtype, torch.int32, dim, dim, 0, False, False)
    if backend == "cuda":
        return modules.gen_batch_decode_module(*common)
    return modules.gen_batch_prefill_module(backend, *common, False)


def build(cases: Sequence[GpuCase], backends: Sequence[str]) -> Build | None:
    """The modules of the cases on those of `backends` that can run here."""
    usable = [backend for backend in backends if unavailable_reason(backend) is None]
    specs = [spec(gpu_case, backend) for gpu_case in cases for backend in usable]
    return Build(specs, compile_all) if specs else None


def compile_all(specs: Sequence[Any]) -> None:
    """Compile what is not compiled yet, all files of all modules side by side."""
    distinct = {each.name: each for each in specs}
    importlib.import_module("flashinfer.jit.core").build_jit_specs(list(distinct.values()))
