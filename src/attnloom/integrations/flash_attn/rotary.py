"""Rotary embedding by tables of cosines and sines, as flash_attn_with_kvcache applies it to q and to new keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attnloom.errors import DeviceMismatch, DtypeMismatch, InvalidArgument, InvalidMetadata, ShapeMismatch


@dataclass(frozen=True)
class Rotary:
    """cos, sin ``[positions, rotary_dim / 2]``; interleaved pairs dims 0 & 1, 2 & 3, …, else d & d + rotary_dim / 2."""

    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool

    def check_reach(self, end: int) -> None:
        """Raise InvalidMetadata unless the tables hold positions below `end`."""
        if end > self.cos.shape[0]:
            raise InvalidMetadata(
                name="rotary_cos and rotary_sin",
                given=f"{self.cos.shape[0]} positions",
                expected=f"at least {end}, the longest sequence with its new keys",
                fix="Make the tables as long as the cache.",
            )

    def turn(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x ``[B, S, H, D]`` turned in its first rotary_dim dims; positions int64 ``[B, S]`` (negative: any row).

        Computed in fp32 and rounded once to the dtype of x, in new memory.
        """
        positions = positions.clamp(min=0)
        cos, sin = (table[positions].float()[:, :, None] for table in (self.cos, self.sin))
        half = self.cos.shape[1]
        turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
        if self.interleaved:
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned[..., :half], turned[..., half:]
        pair = first * cos - second * sin, first * sin + second * cos
        joined = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return torch.cat((joined.to(x.dtype), rest), -1)


def read_rotary(cos: Any, sin: Any, interleaved: bool, q: torch.Tensor) -> Rotary | None:
    """Check the tables against q ``[B, S, H, D]``; None where there are none."""
    if cos is None and sin is None:
        return None
    if cos is None or sin is None:
        raise InvalidArgument(
            name="rotary_cos and rotary_sin",
            given="only one of them",
            supported="both or neither",
            fix="Pass both tables.",
        )
    for name, table in (("rotary_cos", cos), ("rotary_sin", sin)):
        if not isinstance(table, torch.Tensor) or table.dtype not in (q.dtype, torch.float32):
            given = table.dtype if isinstance(table, torch.Tensor) else type(table).__name__
            raise DtypeMismatch(name=name, given=given, expected=f"a {q.dtype} or torch.float32 tensor", fix="")
        if table.device != q.device:
            raise DeviceMismatch(name=name, given=table.device, expected=q.device)
        if table.ndim != 2 or table.shape != cos.shape or not 0 < 2 * table.shape[1] <= q.shape[-1]:
            raise ShapeMismatch(
                name=name,
                given=tuple(table.shape),
                expected=f"[positions, rotary_dim / 2], rotary_dim <= {q.shape[-1]}, the same for both",
                fix="",
            )
    return Rotary(cos, sin, interleaved)
