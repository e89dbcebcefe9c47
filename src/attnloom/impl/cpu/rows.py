"""The query side of a tile: packed rows of q, what functors may know of them, and where results go.

Tiles whose rows are whole tokens are seen as [heads, tokens, group, keys], so that positions and heads
broadcast; others (group_size does not divide the tile) as [heads, rows, keys].
"""

from __future__ import annotations

from typing import Any

import torch

from attnloom.impl import states
from attnloom.impl.base import LaunchTensors, by_kv_head
from attnloom.impl.cpu.arrange import Tile
from attnloom.impl.cpu.scratch import SCRATCH
from attnloom.schedule.work import Plan


class Batch:
    """What the tiles of a launch share."""

    def __init__(self, plan: Plan, tensors: LaunchTensors) -> None:
        self.tensors = tensors
        self.group = plan.group_size
        self.qo_start: list[int] = plan.qo_indptr.tolist()
        self.kv_start: list[int] = plan.kv_indptr.tolist()
        self.kv_len: list[int] = plan.levels[0].kv_len.tolist()
        self.q = self._by_kv_head(tensors.q)
        self.out = self._by_kv_head(tensors.out)
        self.lse = None if tensors.lse is None else self._by_kv_head(tensors.lse)
        self.quantised = bool(tensors.spec.kv_fp8)
        self.k_scale, self.v_scale = by_kv_head(tensors.k_scale), by_kv_head(tensors.v_scale)
        program = tensors.program
        self.finishes = not tensors.raw_state and (program.sink is not None or program.output is not None)
        longest = max(*self.kv_len, *self.qo_start, 1)  # of positions and of rows
        self.counting = torch.arange(longest, device="cpu")
        self.by_token = self.counting[:, None, None]
        self.qo_heads = torch.arange(plan.num_qo_heads, device="cpu").view(-1, 1, self.group, 1)
        self.kv_heads = torch.arange(plan.num_kv_heads, device="cpu").view(-1, 1, 1, 1)

    def _by_kv_head(self, tensor: torch.Tensor) -> torch.Tensor:
        """[rows, heads, ...] as [kv heads, rows, group, ...]."""
        grouped: torch.Tensor = tensor.unflatten(1, (-1, self.group))
        return grouped.transpose(0, 1)

    def kv_pos(self, request: int, begin: int, end: int) -> torch.Tensor:
        """int64 [end - begin]: the positions that functors see."""
        given = self.tensors.kv_pos
        if given is None:
            return self.counting[begin:end]
        start = self.kv_start[request]
        return given[start + begin : start + end].long()


class Rows:
    """The packed rows of one tile."""

    def __init__(self, batch: Batch, request: int, tile: Tile) -> None:
        self._batch = batch
        self._request = request
        self._heads = slice(tile.first_head, tile.last_head)
        group = batch.group
        first, last = tile.row_start // group, -(-(tile.row_start + tile.row_count) // group)
        begin = batch.qo_start[request]
        self._tokens = slice(begin + first, begin + last)
        self._q_idx = first, last
        self._cut = tile.row_start - first * group  # rows of the first token that other tiles hold
        self.whole = self._cut == 0 and tile.row_count == (last - first) * group
        heads, tokens = tile.last_head - tile.first_head, last - first
        self.shape = (heads, tile.row_count)
        self.functor_shape = (heads, tokens, group) if self.whole else self.shape

    def queries(self) -> torch.Tensor:
        """fp32 [heads, rows, dim], times the scale of k."""
        q = self._batch.q[self._heads, self._tokens]
        heads, tokens, group, dim = q.shape
        if q.dtype == torch.float32 and tokens == 1:
            packed = q[:, 0]
        else:
            packed = SCRATCH.take("q", (heads, tokens, group, dim)).copy_(q).view(heads, tokens * group, dim)
            if self._batch.quantised:  # q is never fp32 then, so that this is a copy
                packed.mul_(self.heads_of(self._batch.k_scale))
        return packed if self.whole else packed[:, self._cut : self._cut + self.shape[1]]

    def heads_of(self, scale: torch.Tensor | float) -> torch.Tensor | float:
        """Of a scale of the launch what multiplies this tile's [heads, rows, dim]."""
        return scale[self._heads] if isinstance(scale, torch.Tensor) and scale.ndim else scale

    def known(self) -> dict[str, Any]:
        """Names that functors may ask for, kv_pos and logits apart; broadcast over functor_shape + [keys]."""
        batch, request = self._batch, self._request
        qo_len = batch.qo_start[request + 1] - batch.qo_start[request]
        kv_len = batch.kv_len[request]
        first, last = self._q_idx
        offset = kv_len - qo_len
        q_idx = batch.by_token[first:last]
        if batch.tensors.q_pos is not None:
            q_pos = batch.tensors.q_pos[self._tokens, None, None].long()
        else:
            q_pos = batch.by_token[first + offset : last + offset] if offset >= 0 else q_idx + offset
        qo_head, kv_head = batch.qo_heads[self._heads], batch.kv_heads[self._heads]
        if not self.whole:
            rows = slice(self._cut, self._cut + self.shape[1])
            q_idx, q_pos = (x.expand(-1, batch.group, 1).flatten(0, 1)[rows] for x in (q_idx, q_pos))
            qo_head = qo_head.expand(-1, last - first, -1, 1).flatten(1, 2)[:, rows]
            kv_head = kv_head[:, 0]
        by_row = {"q_idx": q_idx, "q_pos": q_pos, "pos": q_pos}
        by_head = {"qo_head": qo_head, "head": qo_head, "kv_head": kv_head}
        lengths = {"batch": request, "qo_len": qo_len, "kv_len": kv_len}
        return {**batch.tensors.params, **lengths, **by_row, **by_head}

    def write(self, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Finish a state, [heads, rows, dim] and [heads, rows] in fp32, and store it as the final result."""
        batch = self._batch
        out = out.view(*self.functor_shape, out.shape[-1])
        lse = None if lse is None else lse.view(self.functor_shape)
        if batch.finishes:
            out, lse = states.finish(out, lse, batch.tensors.program, self.known())
        self._store(batch.out, out)
        if batch.lse is not None and lse is not None:
            self._store(batch.lse, lse)

    def _store(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """target [all kv heads, all rows, group, ...]; value by functor_shape."""
        place = target[self._heads, self._tokens]
        if self.whole:
            place.copy_(value)
            return
        rows = torch.arange(self._cut, self._cut + self.shape[1], device="cpu")
        token, inside = rows // self._batch.group, rows % self._batch.group
        place[:, token, inside] = value.to(place.dtype)
