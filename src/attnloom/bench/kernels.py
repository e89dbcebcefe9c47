"""The kernels that runs of a spec ask for, from the spec alone: what `attnloom compile` and `bench jit` compile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from attnloom.errors import MissingDependency, UnsupportedSpec
from attnloom.impl.dispatch import registry
from attnloom.spec import AttentionSpec
from attnloom.target import Target

if TYPE_CHECKING:
    from attnloom.compile.request import Request
    from attnloom.variant import Variant


def kernels_of(
    spec: AttentionSpec, variant: Variant, target: Target, *, with_lse: bool = False, implementation: str | None = None
) -> Iterator[tuple[str, Request]]:
    """(what it is, request) of each kernel of the implementation that dispatch would choose, or of the one named.

    Caches lie in one piece, positions are the default ones, and a spec whose page_size is None is taken as ragged;
    scales of fp8 caches are numbers, then tensors.
    Raises UnsupportedSpec for what the target cannot run, and MissingDependency where triton is not installed.
    """
    try:
        from attnloom.impl.gluon_sm90 import warm as gluon_sm90
        from attnloom.impl.triton import warm as triton
    except ModuleNotFoundError as error:
        raise MissingDependency(feature="compiling kernels", package="triton", reason=error) from error
    compiled: dict[str, Any] = {"gluon_sm90": gluon_sm90.wanted, "triton": triton.wanted}
    shape = triton.Shape(*_caches(spec), paged=spec.page_size is not None, with_lse=with_lse)
    refused: list[str] = []
    for name, one in registry().items():
        if name not in compiled or implementation not in (None, name):
            continue
        reasons = one.unavailable_reasons(target) or one.unsupported_reasons(spec, variant.program, target)
        if not reasons:
            config = one.default_config(spec, variant.program, target)
            yield from compiled[name](spec, variant.program, target, config, shape)
            if spec.kv_fp8:
                scaled = dataclasses.replace(shape, scales=True)
                for label, request in compiled[name](spec, variant.program, target, config, scaled):
                    if not label.startswith("merge"):  # which reads no scale
                        yield f"{label}, scales on the device", request
            return
        refused += [f"  {name}: {reason}" for reason in reasons]
    raise UnsupportedSpec(given=f"{spec} on {target.name}", reasons="\n".join(refused), fix="")


def _caches(spec: AttentionSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of caches in one piece, on the meta device."""
    from attnloom.api.tensors import cache_view

    views = []
    for dim in (spec.head_dim_qk, spec.head_dim_vo):
        inner = (spec.page_size or 16, spec.num_kv_heads)
        inner = inner if spec.kv_layout == "NHD" else inner[::-1]
        shape = (*inner, dim) if spec.page_size is None else (2, *inner, dim)
        cache = torch.empty(shape, dtype=spec.kv_dtype, device="meta")
        ragged, page_size = spec.page_size is None, spec.page_size or 1
        views.append(cache_view("cache", cache, kv_layout=spec.kv_layout, ragged=ragged, page_size=page_size))
    return views[0], views[1]
