"""Placeholder until the interval analysis lands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Bands:
    may: Any
    not_must: Any


class BoundsProgram:
    structural_params: frozenset[str] = frozenset()

    def __init__(self, program: Any) -> None:
        self.program = program

    def bands(self, qo_len: Any, kv_len: Any, params: Any, default_positions: bool) -> Bands:
        inf = 2**40
        all_ = np.array([[[-inf, inf, -inf, inf, -inf, inf]]], dtype=np.int64)
        none = np.zeros((1, 0, 6), dtype=np.int64)
        return Bands(all_, none if self.program.mask is None else all_)


def compile_bounds(program: Any) -> BoundsProgram:
    return BoundsProgram(program)
