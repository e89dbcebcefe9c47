"""Writing new keys and values into a paged cache."""

from __future__ import annotations

from typing import Any

import torch

from attnloom.api import tensors
from attnloom.api.scales import check_scale
from attnloom.errors import DeviceMismatch, DtypeMismatch, InvalidArgument, InvalidMetadata, ShapeMismatch
from attnloom.formats.index import INDEX_DTYPES
from attnloom.impl.append import append_rows
from attnloom.spec import DTYPES, FP8_FORMATS, KV_LAYOUTS


def append_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: Any,
    *,
    kv_layout: str = "NHD",
    k_scale: Any = None,
    v_scale: Any = None,
) -> None:
    """Write row i of k ``[n, H_kv, D]`` and of v ``[n, H_kv, Dv]`` into slot ``slots[i]`` of the caches, in place.

    k_cache, v_cache: ``[num_pages, page_size, H_kv, D]`` (NHD) or ``[num_pages, H_kv, page_size, D]`` (HND), in the
    dtype of k and v; k, v and the caches may have any strides with a contiguous last dimension. slots: int32/int64
    ``[n]``, any stride, ``page * page_size + offset``; −1 is skipped, and the others must differ from each other.

    A cache of fp8 (e4m3fn, e5m2) also takes rows of fp16, bf16 and fp32: divided by k_scale and v_scale, which are
    those of `BatchAttention.run` but above 0, and rounded to the nearest number, ties to even; what lies beyond the
    format's range, infinities too, becomes its largest number, and NaN stays NaN.

    On a CUDA device one Triton kernel does it: slots that lie there are read in place, nothing synchronises, a CUDA
    graph can capture the call, and a slot outside the pool is left out (its value is not known to the host). On the
    CPU torch indexing does it (under Triton's interpreter the kernel). Raises from attnloom.errors for a wrong shape
    or dtype, for host slots outside the cache, and on a GPU that Triton does not serve.
    """
    if kv_layout not in KV_LAYOUTS:
        raise InvalidArgument(
            name="kv_layout", given=kv_layout, supported="'NHD' or 'HND'", fix="N is tokens, H kv heads."
        )
    for name, tensor in (("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        if not isinstance(tensor, torch.Tensor):
            raise DtypeMismatch(
                name=name, given=type(tensor).__name__, expected="a torch.Tensor", fix="Pass the tensor."
            )
    slots = _slots(slots, k)
    for name, rows, cache in (("k", k, k_cache), ("v", v, v_cache)):
        _check(name, rows, cache, slots, kv_layout)
    if v_cache.device != k_cache.device:
        raise DeviceMismatch(name="v_cache", given=v_cache.device, expected=k_cache.device)
    scales = []
    for name, given, rows, cache in (("k_scale", k_scale, k, k_cache), ("v_scale", v_scale, v, v_cache)):
        fp8 = FP8_FORMATS.get(cache.dtype, "") if cache.dtype != rows.dtype else ""
        scales.append(check_scale(name, given, fp8, heads=k.shape[1], device=k_cache.device, divides=True))
    if slots.numel() and k.shape[1]:
        # pageable memory has been staged when the call returns; pinned memory may still be read by then
        staged = slots.device.type == "cpu" and not slots.is_pinned()
        slots = slots.to(k_cache.device, non_blocking=staged)
        if kv_layout == "HND":
            k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
        append_rows((k, v), (k_cache, v_cache), slots, (scales[0], scales[1]))


def _slots(given: Any, k: torch.Tensor) -> torch.Tensor:
    try:
        slots: torch.Tensor = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidMetadata(
            name="slots", given=f"{type(given).__name__} {given!r}", expected="a 1-D integer array", fix=f"({error})"
        ) from None
    if slots.numel() == 0:
        slots = slots.to(torch.int64)
    if slots.dtype not in INDEX_DTYPES or slots.ndim != 1 or slots.shape[0] != k.shape[0]:
        raise InvalidMetadata(
            name="slots",
            given=f"{slots.dtype} of shape {tuple(slots.shape)}",
            expected=f"int32 or int64 [{k.shape[0]}], one a row of k",
            fix="A row that is not to be written has slot -1.",
        )
    return slots


def _check(name: str, rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, kv_layout: str) -> None:
    tensors.check_common(name, rows, rows.dtype, cache.device)
    tensors.check_common(f"{name}_cache", cache, cache.dtype, cache.device)
    if cache.dtype != rows.dtype and not (cache.dtype in FP8_FORMATS and rows.dtype in DTYPES):
        raise DtypeMismatch(
            name=f"{name}_cache",
            given=cache.dtype,
            expected=rows.dtype,
            fix=f"It takes rows of {name}; an fp8 cache those of fp16, bf16 and fp32.",
        )
    head_axis = 2 if kv_layout == "NHD" else 1
    fits = cache.ndim == 4 and rows.ndim == 3 and tuple(rows.shape[1:]) == (cache.shape[head_axis], cache.shape[3])
    if not fits or rows.shape[0] != slots.shape[0]:
        raise ShapeMismatch(
            name=f"{name} and {name}_cache",
            given=f"{tuple(rows.shape)} and {tuple(cache.shape)}",
            expected=f"[n, H_kv, D] and a 4-D {kv_layout} cache of the same heads and head_dim",
            fix="Check kv_layout.",
        )
    capacity = cache.shape[0] * cache.shape[3 - head_axis]
    if slots.device.type == "cpu" and slots.numel():
        low, high = int(slots.min()), int(slots.max())
        if low < -1 or high >= capacity:
            raise InvalidMetadata(
                name="slots",
                given=f"{low}..{high}",
                expected=f"-1..{capacity - 1}",
                fix="slot = page * page_size + offset.",
            )
