"""One call on the engine: what is appended before, and the run itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import attnloom as al
from attnloom.errors import InvalidArgument
from attnloom.integrations.flash_attn import cache
from attnloom.integrations.flash_attn.engines import Step, engine_for, unit_stride
from attnloom.integrations.flash_attn.options import Options
from attnloom.integrations.flash_attn.rotary import Rotary

Tensor = torch.Tensor


@dataclass(frozen=True)
class Update:
    """The cache of a call and what is appended to it: (k, v) or None."""

    table: cache.Table
    lengths: cache.Lengths
    rotary: Rotary | None
    new: tuple[Tensor, Tensor] | None

    def __post_init__(self) -> None:
        if self.rotary is not None and self.new is None:
            raise InvalidArgument(
                name="rotary_cos", given="tables without k and v", supported="rotary with new keys only",
                fix="Turn q before the call: the keys in the cache were turned when they came.",
            )  # fmt: skip

    def step(self, q_len: int) -> Step:
        """Lengths with the new keys. Raises where they do not fit, before anything is written."""
        count = 0 if self.new is None else self.new[0].shape[1]
        after = cache.check_room(self.lengths, count, self.table)
        if self.rotary is not None:
            self.rotary.check_reach(max([before + max(count, q_len) for before in self.lengths.before], default=0))
        rows = [i * q_len for i in range(len(after) + 1)]
        return Step(rows, after, self.table.pages, self.table.page_size, self.lengths.leftpad)

    def queries(self, q: Tensor, local: bool) -> Tensor:
        """q turned by its positions: with a mask by rows each its own, else all that of the first new key."""
        if self.rotary is None:
            return q
        positions = self._positions(q.shape[1], q.device)
        return self.rotary.turn(q, positions if local else positions[:, :1].expand(-1, q.shape[1]))

    def write(self, k_cache: Tensor, v_cache: Tensor) -> None:
        """Append k (turned) and v in place."""
        if self.new is None or not self.new[0].shape[1]:
            return
        k, v = (unit_stride(x) for x in self.new)
        positions = self._positions(k.shape[1], k.device)
        if self.rotary is not None:
            k = self.rotary.turn(k, positions)
        slots = self.table.slots(positions).flatten()
        al.append_kv(k.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, slots)

    def _positions(self, count: int, device: torch.device) -> Tensor:
        first = torch.tensor(self.lengths.before, dtype=torch.int64, device=device)
        return first[:, None] + torch.arange(count, device=device)


@dataclass(frozen=True)
class Call:
    """The options and operands of one call."""

    options: Options
    softmax_scale: float | None
    alibi_slopes: Tensor | None
    return_lse: bool

    def packed(
        self, q: Tensor, k: Tensor, v: Tensor, step: Step, update: Update | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """out [rows, H, Dv] and lse [rows, H] (None unless asked for)."""
        if step.table is not None and not step.page_size:  # pages without a token: no page at all
            step = Step(step.qo_indptr, step.kv_len, step.table[:, :0], 1, step.leftpad)
            k, v = k.new_empty((0, 1, *k.shape[2:])), v.new_empty((0, 1, *v.shape[2:]))
        engine = engine_for(self.options, q, k, v, self.softmax_scale)
        engine.plan(step)
        if update is not None:
            update.write(k, v)
        params = None if self.alibi_slopes is None else {"slopes": self.alibi_slopes}
        result = engine.attn.run(unit_stride(q), k, v, params=params, return_lse=self.return_lse)
        return result if self.return_lse else (result, None)

    def dense(
        self, q: Tensor, k: Tensor, v: Tensor, step: Step, update: Update | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """out [B, Sq, H, Dv] and lse [B, H, Sq] of q [B, Sq, H, D] over pools k, v."""
        out, lse = self.packed(q.flatten(0, 1), k, v, step, update)
        out = out.view(*q.shape[:3], v.shape[-1])
        return out, None if lse is None else lse.view(q.shape[:3]).transpose(1, 2).contiguous()
