"""Which code appends rows to a cache: the Triton kernel on a GPU, torch indexing on the host."""

from __future__ import annotations

import torch

from attnloom.errors import UnsupportedSpec
from attnloom.impl.dispatch import registry
from attnloom.target import Target

Pair = tuple[torch.Tensor, torch.Tensor]
Scales = tuple[torch.Tensor | float, torch.Tensor | float]


def append_rows(rows: Pair, views: Pair, slots: torch.Tensor, scales: Scales = (1.0, 1.0)) -> None:
    """Rows of k ``[n, H, D]`` and of v into views ``[num_pages, page_size, H, D]``; slots ``[n]`` beside them.

    A view of fp8 takes rows of another type divided by their scale, a number or fp32 on the device, 0-d or ``[H]``,
    rounded to the nearest, ties to even, the largest number beyond the range; NaN stays NaN.

    On CUDA tensors, and wherever Triton interprets (``TRITON_INTERPRET=1``), the kernel of `impl.triton.append` runs,
    without a synchronisation; on other host tensors torch's indexing does. Raises UnsupportedSpec on a GPU that Triton
    does not serve.
    """
    device = views[0].device
    reasons = registry()["triton"].unavailable_reasons(Target.of(device))
    if not reasons:
        from attnloom.impl.triton.append import append_rows as launch

        launch(rows, views, slots, scales)
    elif device.type == "cpu":
        for given, view, scale in zip(rows, views, scales, strict=True):
            _index(given, view, slots, scale)
    else:
        raise UnsupportedSpec(
            given=f"append_kv on {device}",
            reasons="\n".join(f"  triton: {reason}" for reason in reasons),
            fix="Use a device that the reasons allow.",
        )


def _index(rows: torch.Tensor, view: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor | float) -> None:
    slots = slots.to(torch.int64)
    kept = slots >= 0
    if not bool(kept.all()):
        rows, slots = rows[kept], slots[kept]
    if rows.dtype != view.dtype:
        largest = torch.finfo(view.dtype).max
        scale = scale[:, None] if isinstance(scale, torch.Tensor) and scale.ndim else scale
        rows = (rows.float() / scale).clamp(-largest, largest).to(view.dtype)
    page_size = view.shape[1]
    view[slots // page_size, slots % page_size] = rows
