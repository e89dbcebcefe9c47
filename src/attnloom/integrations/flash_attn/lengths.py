"""Index tensors of a call on the host: those of a GPU in one transfer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from attnloom.errors import InvalidArgument, InvalidMetadata, NotYetSupported
from attnloom.integrations.flash_attn.options import whole


def refuse_capture(device: torch.device) -> None:
    """Lengths are read on the host, which no CUDA graph can capture."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise NotYetSupported(
            feature="flash-attn's functions inside a CUDA graph",
            fix="They read lengths on the host; plan with attnloom.BatchAttention before the capture.",
        )


def read_host(tensors: Mapping[str, Any]) -> dict[str, list[int]]:
    """The values of 1-D index tensors by name; tensors on one device come over together.

    Raises InvalidMetadata for another dtype than int32 or int64, or other dimensions.
    """
    known = {name: _index_tensor(name, value) for name, value in tensors.items()}
    remote = {name: value for name, value in known.items() if value.device.type != "cpu"}
    if len({value.device for value in remote.values()}) == 1:
        distinct = {id(value): value.long() for value in remote.values()}  # q's and k's may be one tensor
        parts = torch.cat(list(distinct.values())).cpu().split([len(value) for value in distinct.values()])
        host = dict(zip(distinct, parts, strict=True))
        known |= {name: host[id(value)] for name, value in remote.items()}
    return {name: value.tolist() for name, value in known.items()}


def check_pointer(name: str, pointer: list[int]) -> list[int]:
    """Lengths between neighbours of a cumulative sum that starts at 0."""
    lengths = [after - before for before, after in itertools.pairwise(pointer)]
    if not pointer or pointer[0] != 0 or min(lengths, default=0) < 0:
        raise InvalidMetadata(
            name=name,
            given=f"{pointer[:8]}{'...' if len(pointer) > 8 else ''}",
            expected="a non-decreasing cumulative sum of lengths that starts at 0, [batch + 1]",
            fix="Build it as torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).",
        )
    return lengths


def check_longest(name: str, given: Any, lengths: list[int]) -> None:
    """The caller's bound must hold: flash-attn would leave rows beyond it out."""
    longest = max(lengths, default=0)
    if whole(name, given) < longest:
        raise InvalidArgument(
            name=name,
            given=given,
            supported=f"at least {longest}, the longest sequence of cu_seqlens",
            fix="Pass the maximum of the lengths, or an upper bound.",
        )


def check_batch(name: str, values: list[int], batch: int) -> None:
    """One value a request."""
    if len(values) != batch:
        raise InvalidMetadata(
            name=name, given=f"{len(values)} elements", expected=f"{batch}, one a row of q's batch", fix=""
        )


def _index_tensor(name: str, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.ndim == 1 and value.dtype in (torch.int32, torch.int64):
        return value
    given = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
    raise InvalidMetadata(
        name=name, given=given, expected="a 1-D tensor of int32 (or int64)", fix="Convert it with .to(torch.int32)."
    )
