"""TMA descriptors of q, k and v: encoded once per address, shape and strides, then looked up.

Encoding one takes Triton's driver microseconds and its launcher would do it at every launch; a look-up takes a
fraction of one. A descriptor holds addresses, no references: memory that comes back at the same address with the
same shape has the same descriptor.
"""

from __future__ import annotations

from typing import Any

from attnloom.compile import toolchain
from attnloom.compile.kernel import CompiledKernel
from attnloom.impl.base import LaunchTensors
from attnloom.impl.gluon_sm90.movement import ROWS_OF_A_WARPGROUP
from attnloom.impl.triton.arguments import CallArguments
from attnloom.kernels.gluon.config import GluonConfig

Box = tuple[int, ...]
NAMES = ("q0_desc", "q1_desc", "k0_desc", "k1_desc", "v0_desc", "v1_desc")
"""The descriptor parameters of the kernels, in their order."""

_REMEMBERED = 1024  # per kernel and of q as of k with v


def boxes(cfg: GluonConfig) -> dict[str, Box]:
    """The box of each descriptor that a kernel takes: q [tokens, heads, dims], k and v [pages, keys, heads, dims]."""
    found: dict[str, Box] = {}
    if cfg.Q_TMA:
        tokens = ROWS_OF_A_WARPGROUP // cfg.GROUP
        found |= {f"q{i}_desc": (tokens, cfg.GROUP, width) for i, width in enumerate((cfg.K0, cfg.K1))}
    if not cfg.GATHER:
        rows = min(cfg.PAGE_SIZE, cfg.TILE_KV) if cfg.PAGED else cfg.TILE_KV
        found |= {f"k{i}_desc": (1, rows, 1, width) for i, width in enumerate((cfg.K0, cfg.K1))}
        found |= {f"v{i}_desc": (1, rows, 1, width) for i, width in enumerate((cfg.V0, cfg.V1))}
    return {name: box for name, box in found.items() if box[-1]}


def types(cfg: GluonConfig, q_type: str, kv_type: str) -> dict[str, str]:
    """The type of each descriptor parameter that a kernel has; types of elements by Triton's names."""
    return {
        name: toolchain.descriptor_type(q_type if name.startswith("q") else kv_type, box)
        for name, box in boxes(cfg).items()
    }


class Descriptors:
    """The descriptor arguments of one kernel on one device."""

    def __init__(self, kernel: CompiledKernel, cfg: GluonConfig, device: int) -> None:
        self._kernel, self._device, self._cfg = kernel, device, cfg
        self._places = {name: place for place, name in enumerate(boxes(cfg))}
        self._q: dict[Any, tuple[Any, ...]] = {}
        self._kv: dict[Any, tuple[Any, ...]] = {}

    def arguments(self, call: CallArguments, t: LaunchTensors, somewhere: int) -> tuple[Any, ...]:
        """The launch's first arguments; None for each descriptor that the kernel does not take.

        somewhere: an address on the device for tensors without a row, of which nothing is read; 16 divides it.
        """
        q_key = (call.q, t.q.shape[0]) if self._cfg.Q_TMA else None
        q = self._q.get(q_key)
        if q is None:
            q = _remember(self._q, q_key, self._of_q(call, t, somewhere))
        kv_key = None if self._cfg.GATHER else (call.k, call.v, t.k.shape[0], t.v.shape[0])
        kv = self._kv.get(kv_key)
        if kv is None:
            kv = _remember(self._kv, kv_key, self._of_kv(call, t, somewhere))
        return q + kv

    def _of_q(self, call: CallArguments, t: LaunchTensors, somewhere: int) -> tuple[Any, ...]:
        address, row, head = call.q
        rows, heads, dim = t.q.shape
        strides = (row, head if heads > 1 else row, 1)
        return self._each(NAMES[:2], address or somewhere, (max(rows, 1), heads, dim), strides)

    def _of_kv(self, call: CallArguments, t: LaunchTensors, somewhere: int) -> tuple[Any, ...]:
        made: tuple[Any, ...] = ()
        for tensor, of_call, names in ((t.k, call.k, NAMES[2:4]), (t.v, call.v, NAMES[4:])):
            address, page, token, head = of_call
            num_pages, page_size, heads, dim = tensor.shape
            num_pages = max(num_pages, 1)
            if not self._cfg.PAGED:  # one page of every row
                num_pages, page_size, token = 1, num_pages, page
            strides = (page, token, head if heads > 1 else token, 1)
            made += self._each(names, address or somewhere, (num_pages, page_size, heads, dim), strides)
        return made

    def _each(self, names: tuple[str, ...], address: int, shape: Box, strides: Box) -> tuple[Any, ...]:
        made: tuple[Any, ...] = ()
        for name in names:
            place = self._places.get(name)
            made += (None,) if place is None else self._kernel.descriptor(self._device, place, address, shape, strides)
        return made


def _remember(known: dict[Any, tuple[Any, ...]], key: Any, made: tuple[Any, ...]) -> tuple[Any, ...]:
    """Keep what was made; the oldest goes where there are too many."""
    while len(known) >= _REMEMBERED:
        known.pop(next(iter(known)), None)
    known[key] = made
    return made
