"""`attnloom compile`: fill the cache with a spec's kernels, for this machine's GPU or for another one."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from attnloom.bench import arguments
from attnloom.bench.kernels import kernels_of
from attnloom.errors import InvalidArgument
from attnloom.spec import AttentionSpec
from attnloom.target import Target

if TYPE_CHECKING:
    from attnloom.compile.request import Request
    from attnloom.variant import Variant

_EPILOG = """\
examples:
  attnloom compile --num-qo-heads 32 --num-kv-heads 8 --head-dim 128 --dtype bf16 --variant causal,soft_cap:30
  attnloom compile --num-qo-heads 32 --num-kv-heads 8 --head-dim 128 --dtype bf16 fp16 --arch sm80 sm90
  attnloom compile --num-qo-heads 32 --num-kv-heads 8 --head-dim 128 --kv-dtype same fp8_e4m3

Every combination is compiled: the attention kernel of each tile class and the merge, as a run with caches in one
piece, default positions and one GPU's worth of tensors asks for them. No GPU is needed, and the directory may be
copied to the machine that has one. stack: bytes a thread keeps in local memory (spills).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    parser.add_argument("--num-qo-heads", type=arguments.positive, required=True, metavar="N")
    parser.add_argument("--num-kv-heads", type=arguments.positive, required=True, metavar="N")
    parser.add_argument("--head-dim", type=arguments.positive, required=True, metavar="D")
    parser.add_argument("--head-dim-vo", type=arguments.positive, metavar="D", help="default: --head-dim")
    parser.add_argument("--dtype", nargs="+", choices=tuple(arguments.DTYPES), default=["bf16"], help="default: bf16")
    parser.add_argument(
        "--kv-dtype",
        nargs="+",
        choices=("same", *arguments.KV_DTYPES),
        default=["same"],
        help="of k and v; default: same, that of q",
    )
    parser.add_argument(
        "--variant",
        nargs="+",
        type=variant,
        default=[variant("causal")],
        metavar="V",
        help="causal, sliding_window:N, soft_cap:X, ... joined by commas; default: causal",
    )
    parser.add_argument(
        "--page-size", nargs="+", type=arguments.page_size, default=[16], metavar="N", help="or 'ragged'; default: 16"
    )
    parser.add_argument("--kv-layout", choices=("NHD", "HND"), default="NHD", help="default: NHD")
    parser.add_argument("--lse", action="store_true", help="for runs with return_lse=True, beside those without")
    parser.add_argument(
        "--implementation", choices=("gluon_sm90", "triton"), help="default: the one that would run on each GPU"
    )
    parser.add_argument("--arch", nargs="+", metavar="SM", help="such as sm90; default: this machine's GPUs")


def variant(text: str) -> Variant:
    """Built-in variants joined by commas (or ``+``), as `attnloom bench` names them."""
    return arguments.variant(text.replace(",", "+"))


def run(args: argparse.Namespace) -> int:
    """Compile what is not in the cache; print one line a kernel."""
    rows = [["kernel", "for", "seconds", "shared memory", "registers", "stack", "file"]]
    start, compiled = time.perf_counter(), 0
    for label, where, request, described in _wanted(args):
        row, fresh = _compile(label, where, request, described)
        rows.append(row)
        compiled += fresh
    from attnloom.explain.text import columns

    print(columns(rows))
    kernels = len(rows) - 1
    print(f"\n{kernels} kernels, {compiled} compiled here, in {time.perf_counter() - start:.1f} s")
    return 0


def targets_of(names: list[str] | None) -> list[Target]:
    """The targets named, or this machine's GPUs; raises InvalidArgument where there is none of either."""
    if names:
        return [Target.of_arch(name) for name in names]
    here = {Target.of(torch.device("cuda", i)).arch_name for i in range(torch.cuda.device_count())}
    if not here:
        raise InvalidArgument(
            name="--arch", given=None, supported="a name such as sm90", fix="torch sees no GPU here to compile for."
        )
    return [Target.of_arch(name) for name in sorted(here)]


def _wanted(args: argparse.Namespace) -> Iterator[tuple[str, str, Request, Variant]]:
    """(kernel, what it is for, request, variant) of every combination asked for."""
    lse = (False, True) if args.lse else (False,)
    types = itertools.product(args.dtype, args.kv_dtype)
    combinations = itertools.product(targets_of(args.arch), types, args.page_size, args.variant, lse)
    for target, (dtype, kv_dtype), page_size, chosen, with_lse in combinations:
        spec = AttentionSpec.create(
            num_qo_heads=args.num_qo_heads,
            num_kv_heads=args.num_kv_heads,
            head_dim=args.head_dim,
            head_dim_vo=args.head_dim_vo,
            dtype=arguments.DTYPES[dtype],
            kv_dtype=arguments.KV_DTYPES.get(kv_dtype),
            page_size=page_size,
            kv_layout=args.kv_layout,
        )
        cache = "" if kv_dtype == "same" else f"{kv_dtype} KV "
        where = f"{target.name} {dtype} {cache}{'ragged' if page_size is None else f'page {page_size}'}"
        for label, request in kernels_of(spec, chosen, target, with_lse=with_lse, implementation=args.implementation):
            yield label + (" + lse" if with_lse else ""), where, request, chosen


def _compile(label: str, where: str, request: Request, chosen: Variant) -> tuple[list[str], bool]:
    """A line of the table, and whether this process compiled the kernel."""
    import functools

    from attnloom.compile import store
    from attnloom.compile.cache import kernel_of
    from attnloom.compile.failures import explained
    from attnloom.compile.resources import resources_of

    kernel = kernel_of(request, functools.partial(explained, program=chosen.program))
    taken = resources_of(kernel)
    path = store.path_of(request.name, request.key)
    row = [
        label,
        where,
        f"{kernel.seconds:.2f}" if kernel.compiled else "cached",
        f"{kernel.shared_memory:,}",
        "?" if taken is None else str(taken.registers),
        "?" if taken is None else str(taken.stack),
        str(path) if path.exists() else "not kept",
    ]
    return row, kernel.compiled
