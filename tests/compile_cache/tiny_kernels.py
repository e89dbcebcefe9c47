"""Two kernels that compile in a fraction of a second, and the requests for them."""

from __future__ import annotations

import triton
import triton.language as tl

from attnloom.compile.request import Request
from attnloom.compile.signature import signature_of

SM90 = ("cuda", 90, 32)


@triton.jit
def plus(x):
    """The included function."""
    return x + 1


@triton.jit
def add_one(out, x, n, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    tl.store(out + at, plus(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def double(out, x, n, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def request(function=add_one, target=SM90, *, width=32, tensors=None, n=16, **options) -> Request:
    """For fp32 tensors; without any, for meta tensors."""
    import torch

    out, x = tensors or (torch.empty(16, device="meta"), torch.empty(16, device="meta"))
    given = {"out": out, "x": x, "n": n}
    signature, divisible = signature_of(function.arg_names, given, facts=("out", "x"), types={})
    return Request(function, signature, divisible, {"WIDTH": width}, {"num_warps": 1, **options}, target)
