"""Which code appends rows to a cache: the Triton kernel on a GPU, torch indexing on the host."""

from __future__ import annotations

import torch

from attnloom.errors import UnsupportedSpec
from attnloom.impl.dispatch import registry
from attnloom.target import Target


def append_rows(
    k: torch.Tensor, v: torch.Tensor, k_view: torch.Tensor, v_view: torch.Tensor, slots: torch.Tensor
) -> None:
    """Rows of k ``[n, H, D]`` and v into views ``[num_pages, page_size, H, D]``; slots ``[n]`` beside them.

    On CUDA tensors, and wherever Triton interprets (``TRITON_INTERPRET=1``), the kernel of `impl.triton.append` runs,
    without a synchronisation; on other host tensors torch's indexing does. Raises UnsupportedSpec on a GPU that Triton
    does not serve.
    """
    device = k_view.device
    reasons = registry()["triton"].unavailable_reasons(Target.of(device))
    if not reasons:
        from attnloom.impl.triton.append import append_rows as launch

        launch(k, v, k_view, v_view, slots)
    elif device.type == "cpu":
        _index(k, k_view, slots)
        _index(v, v_view, slots)
    else:
        raise UnsupportedSpec(
            given=f"append_kv on {device}",
            reasons="\n".join(f"  triton: {reason}" for reason in reasons),
            fix="Use a device that the reasons allow.",
        )


def _index(rows: torch.Tensor, view: torch.Tensor, slots: torch.Tensor) -> None:
    slots = slots.to(torch.int64)
    kept = slots >= 0
    if not bool(kept.all()):
        rows, slots = rows[kept], slots[kept]
    page_size = view.shape[1]
    view[slots // page_size, slots % page_size] = rows
