"""Memory that a worker reuses from tile to tile and from launch to launch."""

from __future__ import annotations

import threading

import torch

PADDING = 64  # a buffer's size is a multiple of this, so that elements behind the last of a tensor may be touched too
KEPT_BYTES = 1 << 25  # of one buffer; a larger request gets memory of its own, freed after use


class Scratch(threading.local):
    """Named flat buffers of one thread. A buffer's content lasts until its name is asked for again."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """An uninitialised contiguous tensor on the host."""
        size = 1
        for extent in shape:
            size *= extent
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.shape[0] < size:
            with torch.inference_mode(False):  # memory made under inference mode could not be reused outside
                padded = -(-size // PADDING) * PADDING
                buffer = torch.empty(max(padded, 1 << 16), dtype=dtype, device="cpu")
            if buffer.nbytes <= KEPT_BYTES:
                self._buffers[name, dtype] = buffer
        return buffer[:size].view(shape)


SCRATCH = Scratch()
