"""Derived tolerances: how far a result may lie from the exact one, given the error of low-precision torch.

    max|out - exact| <= 2 * max|model - exact| + eps(out dtype) * max|exact|
    |lse - exact|    <= 1e-4 + 2 * max|model - exact| + 2 * eps(float32) * |exact|

`exact` is the dense result in float64; `model` the same computation in plain torch with the storage types
kept, the probabilities rounded to the input type and sums in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class State:
    """Attention of one set of queries: out ``[rows, heads, dim]`` and lse ``[rows, heads]`` (None: no softmax)."""

    out: torch.Tensor
    lse: torch.Tensor | None


def output_bound(exact: torch.Tensor, model: torch.Tensor, dtype: torch.dtype) -> float:
    """The largest absolute error that a result of `dtype` may have (a number in the unit of `exact`)."""
    if exact.numel() == 0:
        return 0.0
    model_error = (model.double() - exact.double()).abs().max().item()
    return 2 * model_error + torch.finfo(dtype).eps * exact.abs().max().item()


def lse_bound(exact: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """The largest absolute error of each lse; 0 where `exact` is infinite, which must be met exactly."""
    finite = torch.isfinite(exact)
    error = torch.where(finite, model.double() - exact.double(), 0.0).abs()
    if not bool(torch.isfinite(error).all()):
        raise AssertionError("the low-precision model has no finite lse where the exact one is finite")
    worst = error.max().item() if error.numel() else 0.0
    bound = 1e-4 + 2 * worst + 2 * torch.finfo(torch.float32).eps * exact.double().abs()
    return torch.where(finite, bound, 0.0)


def assert_out_close(out: torch.Tensor, exact: torch.Tensor, model: torch.Tensor, name: str = "out") -> None:
    """Raise AssertionError unless `out` is finite and within `output_bound`."""
    if out.shape != exact.shape:
        raise AssertionError(f"{name}: shape {tuple(out.shape)}, expected {tuple(exact.shape)}")
    if out.numel() == 0:
        return
    error = (out.double() - exact.double()).abs()
    bound = output_bound(exact, model, out.dtype)
    worst = error.max().item()
    if not worst <= bound:  # NaN compares false
        where = _first_at(~(error <= bound))
        raise AssertionError(
            f"{name}: error {worst:.3e} over the bound {bound:.3e}, first at {where}: "
            f"{out[where].item():.6g}, exact {exact[where].item():.6g}"
        )


def assert_lse_close(lse: torch.Tensor, exact: torch.Tensor, model: torch.Tensor, name: str = "lse") -> None:
    """Raise AssertionError unless `lse` is float32, infinite exactly where `exact` is, and within `lse_bound`."""
    if lse.shape != exact.shape or lse.dtype != torch.float32:
        raise AssertionError(f"{name}: {lse.dtype} {tuple(lse.shape)}, expected float32 {tuple(exact.shape)}")
    bound = lse_bound(exact, model)
    infinite = torch.isinf(exact)
    same = torch.where(infinite, lse.double() == exact, True)
    near = torch.where(infinite, 0.0, lse.double() - exact.double()).abs() <= bound
    bad = ~(same & near)
    if bool(bad.any()):
        where = _first_at(bad)
        raise AssertionError(
            f"{name}: {int(bad.sum())} wrong, first at {where}: {lse[where].item():.8g}, "
            f"exact {exact[where].item():.8g}, bound {bound[where].item():.3e}"
        )


def assert_state_close(given: State, exact: State, model: State, name: str = "") -> None:
    """`assert_out_close` and `assert_lse_close`; rows that see nothing (lse -inf) must be exactly 0."""
    assert_out_close(given.out, exact.out, model.out, f"{name}out")
    if given.lse is None or exact.lse is None or model.lse is None:
        return
    assert_lse_close(given.lse, exact.lse, model.lse, f"{name}lse")
    empty = torch.isneginf(exact.lse)
    if bool((given.out[empty] != 0).any()):
        raise AssertionError(f"{name}out: a row without a visible key is not 0")


def _first_at(bad: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in bad.nonzero()[0])
