"""`attnloom explain`: plan a batch given by lengths or by a workload's name, and show the plan."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnloom.bench import arguments
from attnloom.errors import InvalidArgument

if TYPE_CHECKING:
    from attnloom import BatchAttention, PagedKV, RaggedKV

_PATIENCE_SECONDS = 2.0
EPILOG = """\
examples:
  attnloom explain --workload zipf_16x1024 --output plan.svg
  attnloom explain --workload sharegpt_64 --mode mixed --num-ctas 132
  attnloom explain --qo-lens 512,7x1 --kv-lens 4096,7x1024 --variant causal+sliding_window:1023

No attention is computed and no GPU is needed: the plan is made for an implementation's tile classes and cost
model (default: the first that can run here), over as many CTAs as --num-ctas says.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    batch = parser.add_argument_group("the batch")
    batch.add_argument(
        "--qo-lens", type=arguments.lengths, metavar="N,N,..", help="query rows per request (4x1: 1,1,1,1)"
    )
    batch.add_argument(
        "--kv-lens", type=arguments.lengths, metavar="N,N,..", help="keys per request, new ones included"
    )
    batch.add_argument("--workload", metavar="NAME", help="instead: a named batch, such as zipf_16x1024 or sharegpt_64")
    batch.add_argument("--mode", default="decode", choices=("decode", "prefill", "mixed"), help="the workload's step")
    what = parser.add_argument_group("what is computed")
    what.add_argument("--heads", type=arguments.heads, default=(32, 8), metavar="QO/KV", help="default: 32/8")
    what.add_argument("--head-dim", type=int, default=128, metavar="D", help="default: 128")
    what.add_argument("--dtype", choices=arguments.DTYPES, default="bf16", help="default: bf16")
    what.add_argument("--page-size", type=arguments.page_size, default=16, metavar="N", help="or 'ragged'; default: 16")
    what.add_argument("--variant", type=arguments.variant, default="causal", metavar="V", help="default: causal")
    how = parser.add_argument_group("how it is planned")
    how.add_argument("--num-ctas", type=int, default=132, metavar="N", help="CTAs to balance over; default: 132")
    how.add_argument("--implementation", metavar="NAME", help="whose tile classes and costs; default: the first")
    how.add_argument("--planner", choices=("stream", "algorithm1"), default="stream", help="default: stream")
    how.add_argument("--target", default="h200", metavar="CARD", help="whose limits are quoted; default: h200")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the timeline here: .svg or .png")


def run(args: argparse.Namespace) -> int:
    """Print the table, write the picture."""
    qo, kv = _lengths(args)
    attn = _engine(args)
    with _patience():
        attn.plan(np.concatenate([[0], np.cumsum(qo)]), _format(kv, args.page_size), num_ctas=args.num_ctas)
    explanation = attn.explain(args.target)
    print(f"Planned for implementation {attn.implementation}, {args.num_ctas} CTAs, planner {args.planner}.")
    print(explanation)
    if args.output is not None:
        print(f"\nTimeline: {explanation.save(args.output)}")
    return 0


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Says why, should the first plan of an installation take long."""
    words = "attnloom: compiling the planner, once for this installation ..."
    timer = threading.Timer(_PATIENCE_SECONDS, print, [words], {"file": sys.stderr, "flush": True})
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _engine(args: argparse.Namespace) -> BatchAttention:
    import attnloom as al

    return al.BatchAttention(
        num_qo_heads=args.heads[0],
        num_kv_heads=args.heads[1],
        head_dim=args.head_dim,
        dtype=arguments.DTYPES[args.dtype],
        page_size=args.page_size,
        variant=args.variant,
        implementation=args.implementation,
        planner=args.planner,
        device="cpu",
    )


def _lengths(args: argparse.Namespace) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Query rows and keys per request, from whichever way the batch was given."""
    from attnloom.testing import cases

    if (args.workload is None) == (args.kv_lens is None):
        given = "neither" if args.workload is None else "both"
        raise InvalidArgument(
            name="--kv-lens and --workload",
            given=given,
            supported="one of them",
            fix="Try --workload zipf_16x1024, or --qo-lens 1,1 --kv-lens 512,2048.",
        )
    if args.workload is not None:
        step = cases.workload(args.workload).lengths(args.mode)
        return (args.qo_lens or step.qo), step.kv
    qo = args.qo_lens or (1,) * len(args.kv_lens)
    return qo, args.kv_lens


def _format(kv: tuple[int, ...], page_size: int | None) -> PagedKV | RaggedKV:
    """Pages one after another; a plan does not depend on where they lie."""
    import attnloom as al

    lens = np.array(kv)
    if page_size is None:
        return al.RaggedKV(np.concatenate([[0], np.cumsum(lens)]))
    pages = -(-lens // page_size)
    last = np.where(lens > 0, (lens - 1) % page_size + 1, 0)
    return al.PagedKV(np.concatenate([[0], np.cumsum(pages)]), np.arange(pages.sum()), last, page_size)
