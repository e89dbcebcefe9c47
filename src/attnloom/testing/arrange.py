"""How k and v of a pool share memory: one parent allocation, poisoned whole, and strided views of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnloom.testing.placement import Heads, Placement
from attnloom.testing.poison import poison_

_LAYERS, _LAYER, _GAP = 3, 1, 3


@dataclass(frozen=True)
class Pool:
    """A pool's memory.

    k_nhd, v_nhd  views ``[pages, page_size, H_kv, D]`` to write and read through
    caches        what `run` takes: k_cache and v_cache in the declared layout, or one packed cache
    parents       the allocations behind them
    """

    k_nhd: torch.Tensor
    v_nhd: torch.Tensor
    caches: tuple[torch.Tensor, ...]
    parents: tuple[torch.Tensor, ...]


def make_pool(shape: tuple[int, int], heads: Heads, placement: Placement, device: torch.device) -> Pool:
    """A pool of `shape` = (pages, tokens a page), full of the placement's poison; ragged is one page of all rows."""
    maker = {
        "separate": _separate,
        "packed": _packed,
        "interleaved": _interleaved,
        "layers": _layers,
        "padded": _padded,
        "mixed": _mixed,
    }[placement.arrangement]
    hnd = placement.kv_layout == "HND"
    k, v, parents = maker(_Maker(shape, heads, placement.poison, device), hnd)
    nhd = tuple(x.transpose(1, 2) if hnd else x for x in (k, v))
    caches: tuple[torch.Tensor, ...] = (k, v)
    if placement.storage == "ragged":
        if placement.arrangement == "packed":
            raise ValueError("a packed cache has pages: ragged KV takes two tensors")
        caches = (k[0], v[0])
    elif placement.arrangement == "packed":
        caches = parents
    return Pool(nhd[0], nhd[1], caches, parents)


@dataclass(frozen=True)
class _Maker:
    shape: tuple[int, int]
    heads: Heads
    poison: str
    device: torch.device

    def dims(self, hnd: bool, dim: int) -> tuple[int, int, int, int]:
        pages, size = self.shape
        return (pages, self.heads.num_kv, size, dim) if hnd else (pages, size, self.heads.num_kv, dim)

    def new(self, *shape: int) -> torch.Tensor:
        return poison_(torch.empty(shape, dtype=self.heads.cached, device=self.device), self.poison)

    def equal_dim(self) -> int:
        if self.heads.dim_qk != self.heads.dim_vo:
            raise ValueError("k and v in one tensor need dim_qk == dim_vo")
        return self.heads.dim_qk


_Views = tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]


def _separate(make: _Maker, hnd: bool) -> _Views:
    k, v = make.new(*make.dims(hnd, make.heads.dim_qk)), make.new(*make.dims(hnd, make.heads.dim_vo))
    return k, v, (k, v)


def _packed(make: _Maker, hnd: bool) -> _Views:
    pages, *rest = make.dims(hnd, make.equal_dim())
    both = make.new(pages, 2, *rest)
    return both[:, 0], both[:, 1], (both,)


def _interleaved(make: _Maker, hnd: bool) -> _Views:
    dim = make.heads.dim_qk
    both = make.new(*make.dims(hnd, dim + make.heads.dim_vo))
    return both[..., :dim], both[..., dim:], (both,)


def _layers(make: _Maker, hnd: bool) -> _Views:
    pages, *rest = make.dims(hnd, make.equal_dim())
    cache = make.new(pages, _LAYERS, 2, *rest)
    return cache[:, _LAYER, 0], cache[:, _LAYER, 1], (cache,)


def _padded(make: _Maker, hnd: bool) -> _Views:
    views = []
    for dim in (make.heads.dim_qk, make.heads.dim_vo):
        pages, *rest = make.dims(hnd, dim)
        views.append(make.new(pages, rest[0] + _GAP, *rest[1:])[:, : rest[0]])
    return views[0], views[1], (views[0], views[1])


def _mixed(make: _Maker, hnd: bool) -> _Views:
    k = make.new(*make.dims(hnd, make.heads.dim_qk))
    v = make.new(*make.dims(not hnd, make.heads.dim_vo)).transpose(1, 2)
    return k, v, (k, v)
