"""`append_kv` as one kernel launch; the grid follows from shapes, and the host reads nothing of the device."""

from __future__ import annotations

from typing import Any

import torch

from attnloom.compile.cache import kernel_of
from attnloom.compile.kernel import CompiledKernel
from attnloom.compile.request import Request
from attnloom.compile.signature import signature_of
from attnloom.impl.triton.arguments import ADDRESSES, TENSORS, Pointing, kv_scales
from attnloom.impl.triton.launch import target_of
from attnloom.kernels.triton.append import append_kernel
from attnloom.spec import FP8_FORMATS

Pair = tuple[torch.Tensor, torch.Tensor]
Scales = tuple[torch.Tensor | float, torch.Tensor | float]

UNSCALED: Scales = (1.0, 1.0)

_NATIVE = (torch.float16, torch.bfloat16, torch.float32)
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ELEMENTS = 2048  # of k or v a program: 16 bytes a thread twice, with 16-bit types
_OPTIONS = {"num_warps": 4}
_LOOKED_AT = ("k_rows", "v_rows", "k_cache", "v_cache")
_TYPES = {"num_rows": "i64", "num_heads": "i32", "pools": ("i32", "i64", "i32", "i64")}  # no count asks for a kernel
_REMEMBERED = 1024
_ALIGNMENT = 15

_kernels: dict[tuple[Any, ...], CompiledKernel] = {}


def append_rows(rows: Pair, views: Pair, slots: torch.Tensor, scales: Scales) -> None:
    """Rows of k ``[n, H, D]`` and v ``[n, H, Dv]`` into views ``[num_pages, page_size, H, D]`` of the caches.

    slots: int32 or int64 ``[n]``, any stride, on the same device; those outside the pool are left out. scales: of k
    and v, as `LaunchTensors` has them, read where an fp8 cache takes rows of another type.
    """
    constants = constants_of(rows, views)
    tensors = (*map(_copyable, (*rows, *views)), slots)
    grid = -(-slots.shape[0] * rows[0].shape[1] // constants["ROWS"]), 1, 1
    if slots.device.type == "cpu":
        append_kernel[grid](*arguments_of(tensors, tensors, scales, TENSORS).values(), **constants, **_OPTIONS)
        return
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    kernel = _kernel(tensors, addresses, constants, scales)
    kernel.launch(slots.device.index, grid, tuple(arguments_of(tensors, addresses, scales, ADDRESSES).values()))


def request_of(
    tensors: tuple[torch.Tensor, ...],
    constants: dict[str, Any],
    target: tuple[str, Any, int],
    scales: Scales = UNSCALED,
) -> Request:
    """The kernel that tensors (k, v, views of the caches, slots) ask for; target: backend, architecture, warp size."""
    tensors = (*map(_copyable, tensors[:4]), tensors[4])
    given = arguments_of(tensors, tensors, scales, TENSORS)
    signature, divisible = signature_of(append_kernel.arg_names, given, facts=_LOOKED_AT, types=_TYPES)
    return Request(append_kernel, signature, divisible, constants, _OPTIONS, target)


def constants_of(rows: Pair, views: Pair) -> dict[str, Any]:
    """The kernel's constants for rows of k and v into views of their caches."""
    dims = rows[0].shape[2], rows[1].shape[2]
    widths = tuple(1 << (dim - 1).bit_length() for dim in dims)
    k_format, v_format = (FP8_FORMATS[v.dtype] if v.dtype != r.dtype else "" for r, v in zip(rows, views, strict=True))
    sizes = {"DIMS": dims, "WIDTHS": widths, "ROWS": max(1, _ELEMENTS // max(widths))}
    return {**sizes, "K_FORMAT": k_format, "V_FORMAT": v_format}


def arguments_of(
    tensors: tuple[torch.Tensor, ...], pointers: tuple[Any, ...], scales: Scales, point: Pointing
) -> dict[str, Any]:
    """The kernel's arguments by parameter; pointers: the tensors themselves, or their addresses, as `point` makes."""
    k, v, k_view, v_view, slots = tensors
    return {
        "k_rows": (pointers[0], *k.stride()[:2]),
        "v_rows": (pointers[1], *v.stride()[:2]),
        "k_cache": (pointers[2], *k_view.stride()[:3]),
        "v_cache": (pointers[3], *v_view.stride()[:3]),
        "slots": (pointers[4], slots.stride(0)),
        "num_rows": k.shape[0] * k.shape[1],
        "num_heads": k.shape[1],
        "pools": (k_view.shape[1], k_view.shape[0], v_view.shape[1], v_view.shape[0]),
        "kv_scales": kv_scales(scales, point),
    }


def _kernel(
    tensors: tuple[torch.Tensor, ...], addresses: tuple[int, ...], constants: dict[str, Any], scales: Scales
) -> CompiledKernel:
    strides = tuple([tensor.stride() for tensor in tensors])
    aligned = tuple([address & _ALIGNMENT for address in addresses[:4]])
    dtypes = tensors[0].dtype, tensors[1].dtype, tensors[4].dtype
    numbers = isinstance(scales[0], float), isinstance(scales[1], float)
    key = (tensors[0].device, dtypes, *constants.values(), strides, aligned, numbers)
    found = _kernels.get(key)
    if found is None:
        if len(_kernels) >= _REMEMBERED:
            _kernels.clear()
        found = _kernels[key] = kernel_of(request_of(tensors, constants, target_of(tensors[0].device), scales))
    return found


def _copyable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its bits as integers where Triton may lack the type (fp8 on some GPUs): they are only copied."""
    return tensor if tensor.dtype in _NATIVE else tensor.view(_SAME_SIZE[tensor.dtype.itemsize])
