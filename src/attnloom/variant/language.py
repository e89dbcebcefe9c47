"""Functions of the language that torch has no name for."""

from __future__ import annotations

from typing import Any

import torch

from attnloom.variant import build
from attnloom.variant.symbolic import Sym, as_expr


def fast_tanh(x: Any) -> Any:
    """tanh that a device may approximate (its own instruction); on tensors `torch.tanh`."""
    if isinstance(x, torch.Tensor):
        return torch.tanh(x)
    return Sym(build.elementwise("tanh_approx", as_expr(x)))
