"""The engines behind the functions: one per options, geometry, thread and stream, the least recently used dropped."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import attnloom as al
from attnloom.errors import DeviceMismatch, DtypeMismatch, GradientRequired, ShapeMismatch
from attnloom.integrations.flash_attn.options import Options, build_variant, finite

ENGINES = 32  # each owns a workspace


@dataclass(frozen=True)
class Key:
    """All that an engine is built for, and where its workspace is used."""

    options: Options
    heads: tuple[int, int]
    dims: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    sm_scale: float | None
    thread: int
    stream: int


@dataclass
class Engine:
    """A BatchAttention and what it is planned for."""

    attn: al.BatchAttention
    step: tuple[Any, ...] | None = None

    def plan(self, step: Step) -> None:
        """Plan for `step`, unless the last plan was for an equal one."""
        key = step.key()
        if key is not None and key == self.step:
            return
        self.step = None  # a plan that fails leaves none behind
        self.attn.plan(step.qo_indptr, step.kv(), params=step.params())
        self.step = key


@dataclass(frozen=True)
class Step:
    """Lengths of one call (host), and where its keys lie.

    qo_indptr [batch + 1]; kv_len [batch]; table: page ids [batch, pages] of page_size tokens, None for ragged keys;
    leftpad [batch]: leading keys that are hidden, None for none.
    """

    qo_indptr: Sequence[int]
    kv_len: Sequence[int]
    table: torch.Tensor | None = None
    page_size: int = 1
    leftpad: Sequence[int] | None = field(default=None)

    def kv(self) -> Any:
        """The engine's KV format."""
        if self.table is not None:
            return al.PagedKV.from_block_table(self.table, list(self.kv_len), self.page_size)
        indptr = [0]
        for length in self.kv_len:
            indptr.append(indptr[-1] + length)
        return al.RaggedKV(indptr)

    def params(self) -> dict[str, Any] | None:
        """Operands that shape the plan."""
        if self.leftpad is None:
            return None
        return {"leftpad": torch.tensor(self.leftpad, dtype=torch.int32)}

    def key(self) -> tuple[Any, ...] | None:
        """Equal for steps that one plan serves; None where that cannot be told without reading the device."""
        table = self.table
        where: Any = None
        if table is not None and table.device.type == "cpu":
            where = table.contiguous().numpy().tobytes(), tuple(table.shape)
        elif table is not None:
            if table.dtype != torch.int32 or table.stride(1) != 1:
                return None
            where = _Held(table, table.data_ptr(), tuple(table.shape), table.stride())
        leftpad = None if self.leftpad is None else tuple(self.leftpad)
        return tuple(self.qo_indptr), tuple(self.kv_len), where, self.page_size, leftpad


@dataclass(frozen=True)
class _Held:
    """A device table that a plan reads in place: while it is held, its address is nobody else's."""

    table: torch.Tensor = field(compare=False)
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def engine_for(
    options: Options, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None
) -> Engine:
    """The engine of this thread and stream for tensors whose last two dimensions are heads and head_dim."""
    stream = torch.cuda.current_stream(q.device).cuda_stream if q.device.type == "cuda" else 0
    return _engine(
        Key(
            options=options,
            heads=(q.shape[-2], k.shape[-2]),
            dims=(q.shape[-1], v.shape[-1]),
            dtype=q.dtype,
            device=q.device,
            sm_scale=None if softmax_scale is None else finite("softmax_scale", softmax_scale),
            thread=threading.get_ident(),
            stream=stream,
        )
    )


def check_tensors(ndims: Mapping[str, int], tensors: Mapping[str, Any], like: str = "q") -> None:
    """Types, dimensions, dtype, device and gradients, before anything is written or computed."""
    first = tensors[like]
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise DtypeMismatch(name=name, given=type(tensor).__name__, expected="a torch.Tensor", fix="")
        if tensor.ndim != ndims[name]:
            raise ShapeMismatch(name=name, given=tuple(tensor.shape), expected=f"{ndims[name]} dimensions", fix="")
        if tensor.dtype != first.dtype:
            raise DtypeMismatch(name=name, given=tensor.dtype, expected=f"{first.dtype}, as {like}", fix="")
        if tensor.device != first.device:
            raise DeviceMismatch(name=name, given=tensor.device, expected=first.device)
        if tensor.requires_grad and torch.is_grad_enabled():
            raise GradientRequired(name=name)


def unit_stride(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied only where its last dimension is not contiguous (as flash-attn does)."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@functools.lru_cache(maxsize=ENGINES)
def _engine(key: Key) -> Engine:
    return Engine(
        al.BatchAttention(
            num_qo_heads=key.heads[0],
            num_kv_heads=key.heads[1],
            head_dim=key.dims[0],
            head_dim_vo=key.dims[1],
            dtype=key.dtype,
            variant=build_variant(key.options),
            sm_scale=key.sm_scale,
            device=key.device,
        )
    )
