"""`attnloom bench jit`: what the first call of a variant costs, cold and from the cache.

Each figure comes from a fresh process. On a GPU it is the first `run` of a batch that needs every kernel (decode and
prefill tiles, split keys); imports, the CUDA context and the plan come before. Without one, kernels are compiled for
``--arch`` and read back, and nothing is loaded on a device.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from attnloom.bench.arguments import DTYPES, heads, implementation, page_size, positive, variant
from attnloom.bench.kernels import kernels_of
from attnloom.bench.machine import cpu_name
from attnloom.errors import InvalidArgument, KernelCompileError
from attnloom.explain.text import columns
from attnloom.spec import AttentionSpec
from attnloom.target import Target

COLD_TARGET, WARM_TARGET = 10.0, 0.050
"""Seconds that the first call may take: everything compiled; everything read from the cache."""

_CHILD = "import sys; from attnloom.bench import jit; jit.child(sys.argv[1])"


@dataclass(frozen=True)
class Job:
    """What a fresh process measures; the variant by its words, arch None: on this machine's GPU.

    implementation: None is the first that can run there.
    """

    words: str
    heads: tuple[int, int]
    head_dim: int
    dtype: str
    page_size: int | None
    arch: str | None
    implementation: str | None = "triton"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--variant", nargs="+", default=["causal"], metavar="V", help="default: causal")
    parser.add_argument("--heads", type=heads, default=(32, 8), metavar="QO/KV", help="default: 32/8")
    parser.add_argument("--head-dim", type=positive, default=128, metavar="D", help="default: 128")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bf16", help="default: bf16")
    parser.add_argument("--page-size", type=page_size, default=16, metavar="N", help="or 'ragged'; default: 16")
    parser.add_argument("--arch", metavar="SM", help="compile only, for this GPU, such as sm90")
    parser.add_argument(
        "--implementation", type=implementation, default="triton", metavar="NAME", help="or auto; default: triton"
    )
    parser.add_argument("--repeats", type=positive, default=3, metavar="N", help="processes from a full cache")


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 where a figure misses its target."""
    if args.arch is None and not torch.cuda.is_available():
        raise InvalidArgument(
            name="--arch", given=None, supported="a name such as sm90", fix="torch sees no GPU here to run on."
        )
    if args.arch is not None and args.implementation != "triton":
        raise InvalidArgument(
            name="--implementation",
            given=args.implementation,
            supported="triton with --arch",
            fix="Leave --arch out: the kernels are then those of the first run on this machine's GPU.",
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    what = f"compile only for {args.arch}: nothing is loaded or run" if args.arch else torch.cuda.get_device_name()
    print(f"first call of a variant: {what}; {cores} cores of {cpu_name()}")
    rows, missed = [["variant", "kernels", "cold", "target", "from the cache", "target"]], False
    for words in args.variant:
        variant(words)  # a mistake is shown before anything is measured
        job = Job(words, args.heads, args.head_dim, args.dtype, args.page_size, args.arch, args.implementation)
        cold, warm = measure(job, args.repeats)
        if warm["compiled"]:
            raise KernelCompileError(
                what="the cache", place="bench jit", reason=f"{warm['compiled']} kernels were compiled again"
            )
        fast, slow = min(warm["seconds"]), cold["seconds"][0]
        missed |= slow > COLD_TARGET or fast > WARM_TARGET
        rows.append([words, str(cold["kernels"]), f"{slow:.2f} s", _verdict(slow, COLD_TARGET)])
        rows[-1] += [f"{fast * 1e3:.1f} ms", _verdict(fast, WARM_TARGET)]
    print(columns(rows))
    print("\nImports, CUDA context and plan are not part of it; from the cache: the quickest process.")
    return int(missed)


def measure(job: Job, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(cold, warm): kernels needed, compiled, and seconds per process."""
    with tempfile.TemporaryDirectory(prefix="attnloom-bench-jit-") as folder:
        cold = _process(job, folder)
        warm = [_process(job, folder) for _ in range(repeats)]
    merged = {"kernels": warm[0]["kernels"], "compiled": sum(w["compiled"] for w in warm)}
    return {**cold, "seconds": [cold["seconds"]]}, {**merged, "seconds": [w["seconds"] for w in warm]}


def _process(job: Job, cache: str) -> dict[str, Any]:
    env = {**os.environ, "ATTNLOOM_CACHE_DIR": cache}
    command = [sys.executable, "-c", _CHILD, json.dumps(asdict(job))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise KernelCompileError(what=job.words, place="a process of bench jit", reason=done.stderr.strip()[-2000:])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def child(text: str) -> None:
    """Measure one `Job` in this process and print a line of JSON."""
    fields = json.loads(text)
    job = Job(**{**fields, "heads": tuple(fields["heads"])})
    seconds = _compile_all(job) if job.arch else _first_run(job)
    from attnloom.compile import cache

    kernels = cache.remembered()
    print(json.dumps({"seconds": seconds, "kernels": len(kernels), "compiled": sum(k.compiled for k in kernels)}))


def _compile_all(job: Job) -> float:
    from attnloom.compile.cache import kernel_of

    spec = AttentionSpec.create(
        num_qo_heads=job.heads[0],
        num_kv_heads=job.heads[1],
        head_dim=job.head_dim,
        dtype=DTYPES[job.dtype],
        page_size=job.page_size,
    )
    chosen, target = variant(job.words), Target.of_arch(job.arch or "")
    importlib.import_module("attnloom.impl.triton.warm")  # imports are not part of it

    start = time.perf_counter()
    for _, request in kernels_of(spec, chosen, target):
        kernel_of(request)
    return time.perf_counter() - start


def _first_run(job: Job) -> float:
    import attnloom as al

    qo_heads, kv_heads = job.heads
    dtype, device = DTYPES[job.dtype], torch.device("cuda", torch.cuda.current_device())
    attn = al.BatchAttention(
        num_qo_heads=qo_heads,
        num_kv_heads=kv_heads,
        head_dim=job.head_dim,
        dtype=dtype,
        page_size=job.page_size,
        variant=variant(job.words),
        device=device,
        implementation=job.implementation,
    )
    importlib.import_module(f"attnloom.impl.{attn.implementation}.launch")  # imports are not part of it
    lengths = torch.tensor([16384, 512])  # a decode whose keys are split, and a prompt
    rows = torch.tensor([0, 1, 513])
    if job.page_size is None:
        kv: Any = al.RaggedKV(torch.tensor([0, 16384, 16896]))
        shape: tuple[int, ...] = (16896, kv_heads, job.head_dim)
    else:
        pages = -(-lengths // job.page_size)
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), pages.cumsum(0)])
        last = lengths - (pages - 1) * job.page_size
        kv = al.PagedKV(indptr, torch.arange(int(indptr[-1])), last, page_size=job.page_size)
        shape = (int(indptr[-1]), job.page_size, kv_heads, job.head_dim)
    q = torch.randn(513, qo_heads, job.head_dim, device=device).to(dtype)
    k, v = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    attn.plan(rows, kv)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    attn.run(q, k, v)
    torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _verdict(seconds: float, target: float) -> str:
    return f"{target:g} s {'met' if seconds <= target else 'MISSED'}"
