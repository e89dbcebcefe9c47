"""What flash-attn's documentation says, as functors of the oracle, and the comparison of a result with it."""

from __future__ import annotations

from typing import Any

import oracle
import torch
from oracle import Functors, Request

from attnloom.testing.tolerance import State, assert_state_close

Tensor = torch.Tensor
DTYPES = [torch.float32, torch.float16, torch.bfloat16]

# every kind of mask and transform, alone and together
OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "left": {"window_size": (3, -1)},
    "right": {"window_size": (-1, 2)},
    "both": {"window_size": (2, 1)},
    "self": {"window_size": (0, 0)},
    "causal_left": {"causal": True, "window_size": (4, 7)},
    "softcap": {"softcap": 1.5},
    "scale": {"softmax_scale": 0.7, "causal": True},
    "all": {"causal": True, "window_size": (5, -1), "softcap": 2.0, "softmax_scale": 0.4},
}


def functors(
    *, causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0, slopes: Any = None
) -> Functors:
    """Query i sees keys in [i + Sk - Sq - left, i + Sk - Sq + right], causal means right = 0. Softcap, then ALiBi."""
    left, right = window_size
    right = 0 if causal else right

    def visible(q_pos, kv_pos):
        seen = torch.ones_like(q_pos, dtype=torch.bool)
        if left >= 0:
            seen &= kv_pos >= q_pos - left
        if right >= 0:
            seen &= kv_pos <= q_pos + right
        return seen

    found = Functors(mask=visible)
    if softcap > 0:
        found &= Functors(logits=(lambda logits: softcap * torch.tanh(logits / softcap),))
    if slopes is not None:
        bias = Functors(
            logits=(
                lambda logits, q_pos, kv_pos, qo_head, _slopes: logits - _slopes[qo_head] * (q_pos - kv_pos).abs(),
            ),
            params={"_slopes": slopes.cpu()},
        )
        found &= bias
    return found


def check(given: tuple[Tensor, Tensor], tensors: tuple[Tensor, Tensor, Tensor], **options: Any) -> None:
    """out [Sq, H, Dv] and lse [H, Sq] of one sequence against its q, k, v ``[S, heads, dim]``; slopes [H] or None."""
    q, k, v = (x.detach().cpu() for x in tensors)
    scale = options.pop("softmax_scale", None)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    request, meaning = Request(q, k, v), functors(**options)
    exact, model = oracle.attend(request, meaning, scale), oracle.model(request, meaning, scale)
    out, lse = given
    assert_state_close(State(out.cpu(), lse.cpu().T), State(exact.out, exact.lse), State(model.out, model.lse))


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, device: str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device, dtype)


def ints(values: Any, device: str = "cpu", dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def cumulative(lengths: list[int], device: str = "cpu") -> Tensor:
    return ints([sum(lengths[:i]) for i in range(len(lengths) + 1)], device)
