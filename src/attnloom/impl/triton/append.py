"""`append_kv` as one kernel launch; the grid follows from shapes, and the host reads nothing of the device."""

from __future__ import annotations

import contextlib

import torch

from attnloom.kernels.triton.append import append_kernel

_NATIVE = (torch.float16, torch.bfloat16, torch.float32)
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ELEMENTS = 2048  # of k or v a program: 16 bytes a thread twice, with 16-bit types


def append_rows(
    k: torch.Tensor, v: torch.Tensor, k_view: torch.Tensor, v_view: torch.Tensor, slots: torch.Tensor
) -> None:
    """Rows of k ``[n, H, D]`` and v ``[n, H, Dv]`` into views ``[num_pages, page_size, H, D]`` of the caches.

    slots: int32 or int64 ``[n]``, any stride, on the same device; those outside the pool are left out.
    """
    tokens, heads = k.shape[:2]
    widths = tuple(1 << (dim - 1).bit_length() for dim in (k.shape[2], v.shape[2]))
    rows = max(1, _ELEMENTS // max(widths))
    k, v, k_view, v_view = (_copyable(tensor) for tensor in (k, v, k_view, v_view))
    with torch.cuda.device(k.device) if k.device.type == "cuda" else contextlib.nullcontext():
        append_kernel[(-(-tokens * heads // rows),)](
            (k, *k.stride()[:2]),
            (v, *v.stride()[:2]),
            (k_view, *k_view.stride()[:3]),
            (v_view, *v_view.stride()[:3]),
            (slots, slots.stride(0)),
            tokens * heads,
            heads,
            (k_view.shape[1], k_view.shape[0], v_view.shape[1], v_view.shape[0]),
            DIMS=(k.shape[2], v.shape[2]),
            WIDTHS=widths,
            ROWS=rows,
            num_warps=4,
        )


def _copyable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its bits as integers where Triton may lack the type (fp8 on some GPUs): they are only copied."""
    return tensor if tensor.dtype in _NATIVE else tensor.view(_SAME_SIZE[tensor.dtype.itemsize])
