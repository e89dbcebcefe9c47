"""Workspace: the engine's own, or a caller's buffer, as 1-D uint8; and what is asked of streams."""

from __future__ import annotations

import torch

from attnloom.errors import BufferTooSmall, DeviceMismatch, InvalidArgument

ALIGNMENT = 16


def new_workspace(nbytes: int, device: torch.device) -> torch.Tensor:
    """Uninitialised uint8 [nbytes]; the only place where the engine allocates a workspace."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def check_workspace(workspace: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A caller's workspace, or an error that says what one looks like."""
    if not isinstance(workspace, torch.Tensor) or workspace.dtype != torch.uint8 or workspace.ndim != 1:
        given = (
            f"{workspace.ndim}-D {workspace.dtype}" if isinstance(workspace, torch.Tensor) else type(workspace).__name__
        )
        raise InvalidArgument(
            name="workspace",
            given=given,
            supported="a 1-D uint8 tensor",
            fix="Use torch.empty(attn.workspace_size(), dtype=torch.uint8).",
        )
    if workspace.device != device:
        raise DeviceMismatch(name="workspace", given=workspace.device, expected=device)
    if workspace.stride(0) != 1 or workspace.data_ptr() % ALIGNMENT:
        raise InvalidArgument(
            name="workspace",
            given=f"stride {workspace.stride(0)}, address {workspace.data_ptr()}",
            supported=f"contiguous, aligned to {ALIGNMENT} bytes",
            fix="Slice it at a multiple of 16 bytes.",
        )
    return workspace


def capturing(device: torch.device) -> bool:
    """Whether the current stream records a CUDA graph."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def stream_of(device: torch.device) -> int:
    """The device's current stream, as a number; 0 on a host."""
    if device.type != "cuda":
        return 0
    return int(torch._C._cuda_getCurrentRawStream(device.index))


class Workspace:
    """Holds the buffer of one engine object: grows it if it is the engine's own, refuses if it is the caller's."""

    def __init__(self, given: torch.Tensor | None, device: torch.device) -> None:
        self.device = device
        self.owned = given is None
        self.buffer = None if given is None else check_workspace(given, device)

    def ensure(self, nbytes: int) -> None:
        """Have at least `nbytes`. Raises BufferTooSmall for a caller's buffer with fewer."""
        have = 0 if self.buffer is None else self.buffer.shape[0]
        if have >= nbytes:
            return
        if not self.owned:
            raise BufferTooSmall(given=have, needed=nbytes)
        self.buffer = new_workspace(nbytes, self.device)

    def another(self) -> Workspace:
        """As much memory for an engine of its own."""
        buffer = None if self.buffer is None else new_workspace(self.buffer.shape[0], self.device)
        made = Workspace(buffer, self.device)
        made.owned = self.owned
        return made
