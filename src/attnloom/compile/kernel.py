"""A compiled kernel: loaded on a device at its first launch there, launched without Triton's argument binder."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from attnloom.compile import launchers, toolchain
from attnloom.compile.artefact import Artefact
from attnloom.compile.request import Request
from attnloom.errors import KernelCompileError


class _Loaded(NamedTuple):
    run: Any
    function: Any
    packed: Any


class CompiledKernel:
    """Machine code of one `Request`. compiled: whether this process compiled it, in `seconds`; else it was cached."""

    def __init__(self, request: Request, artefact: Artefact, seconds: float | None) -> None:
        self.request = request
        self.binary = artefact.binary
        self.facts = artefact.facts
        self.compiled = seconds is not None
        self.seconds = seconds or 0.0
        kinds = list(request.signature.values())
        trailing = next((i for i, kind in enumerate(reversed(kinds)) if kind != "constexpr"), len(kinds))
        self._constants = (None,) * trailing
        self._loaded: dict[int, _Loaded] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.facts["name"])

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory that a CTA takes."""
        return int(self.facts["shared"])

    def launch(self, device: int, grid: tuple[int, int, int], arguments: Sequence[Any]) -> None:
        """Launch on the device's current stream, whichever device is current.

        device: CUDA index; grid: CTAs per dimension; arguments: one per parameter of the function up to the constants
        that come last, tuples as declared, pointers as integers or tensors, None for a constant before the last, and
        for a descriptor what `descriptor` gives.
        """
        if torch._C._cuda_getDevice() == device:
            self._launch(device, grid, arguments)
        else:
            with torch.cuda.device(device):
                self._launch(device, grid, arguments)

    def descriptor(
        self, device: int, place: int, address: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> tuple[Any, ...]:
        """Arguments of `launch` for the kernel's descriptor number `place`, encoded here and good for any launch.

        address: bytes, 16 divides it; shape, strides: elements, 16 bytes divide every stride but the last, which is 1.
        """
        self.load(device)
        return toolchain.descriptor_arguments(self.facts["tensordesc_meta"][place], address, shape, strides)

    def load(self, device: int) -> None:
        """Be ready on the device; `launch` does it too."""
        if device not in self._loaded:
            with torch.cuda.device(device):
                self._load(device)

    def _launch(self, device: int, grid: tuple[int, int, int], arguments: Sequence[Any]) -> None:
        run, function, packed = self._loaded.get(device) or self._load(device)
        stream = torch._C._cuda_getCurrentRawStream(device)
        enter, leave = toolchain.launch_hooks()
        told = None
        if enter is not None or leave is not None:
            told = toolchain.launch_metadata(self.name, function, stream)
        run(*grid, stream, function, packed, told, enter, leave, *arguments, *self._constants)

    def _load(self, device: int) -> _Loaded:
        with self._lock:
            found = self._loaded.get(device)
            if found is None:
                with launchers.building():
                    self._check(toolchain.max_shared_memory(device))
                    launcher, function, packed, _ = toolchain.load(self.request.source, self.facts, self.binary, device)
                found = self._loaded[device] = _Loaded(launcher, function, packed)
            return found

    def _check(self, limit: int) -> None:
        if self.shared_memory > limit:
            raise KernelCompileError(
                what=f"kernel {self.name}",
                place="loading it",
                reason=f"it takes {self.shared_memory} bytes of shared memory, and a CTA of this device has {limit}",
            )
