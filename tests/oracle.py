"""Dense attention by definition, in plain torch: what every implementation is measured against.

Imports nothing of attnloom. A user's functors are called as they are, with the arguments that their
parameter names ask for, on position tensors of shape [heads, queries, keys]; in the order

    logits = sm_scale * q.k  ->  logits_transform  ->  mask  ->  softmax (or weights)  ->  output_transform

`attend` computes in float64. `model` is the error budget: the same with the storage types kept, weights
rounded to the input type and sums in float32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

Functor = Callable[..., Any]


@dataclass(frozen=True)
class Functors:
    """A variant as plain functions; `&` runs transforms left to right and intersects masks."""

    logits: tuple[Functor, ...] = ()
    mask: Functor | None = None
    output: tuple[Functor, ...] = ()
    sink: Functor | None = None
    use_softmax: bool = True
    params: Mapping[str, Any] = field(default_factory=dict)

    def __and__(self, other: Functors) -> Functors:
        assert self.sink is None or other.sink is None
        masks = [f for f in (self.mask, other.mask) if f is not None]
        mask = None if not masks else masks[0] if len(masks) == 1 else Combined(torch.logical_and, tuple(masks))
        return Functors(
            logits=self.logits + other.logits,
            mask=mask,
            output=self.output + other.output,
            sink=self.sink or other.sink,
            use_softmax=self.use_softmax and other.use_softmax,
            params={**self.params, **other.params},
        )

    def given(self, **params: Any) -> Functors:
        """The same functors with operands replaced."""
        return replace(self, params={**self.params, **params})


@dataclass(frozen=True)
class Combined:
    """Masks put together by a function of their values: `torch.logical_and` of two, `torch.logical_not` of one."""

    how: Callable[..., torch.Tensor]
    parts: tuple[Functor, ...]

    def __call__(self, env: Mapping[str, Any]) -> torch.Tensor:
        return self.how(*(torch.as_tensor(call(part, env)) for part in self.parts))


@dataclass(frozen=True)
class Result:
    """out [qo, H_qo, Dv] and lse [qo, H_qo] (None without softmax) of one request."""

    out: torch.Tensor
    lse: torch.Tensor | None


@dataclass(frozen=True)
class Request:
    """One request: its tensors, its place in the batch, and positions where the caller gave them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    index: int = 0
    q_pos: torch.Tensor | None = None
    kv_pos: torch.Tensor | None = None


def call(functor: Functor, env: Mapping[str, Any]) -> Any:
    """Call a functor with the arguments its parameter names ask for."""
    if isinstance(functor, Combined):
        return functor(env)
    return functor(**{name: env[name] for name in inspect.signature(functor).parameters})


def attend(request: Request, functors: Functors, sm_scale: float) -> Result:
    """The exact result in float64."""
    return _attend(request, functors, sm_scale, torch.float64, weight_dtype=None, out_dtype=torch.float64)


def model(
    request: Request,
    functors: Functors,
    sm_scale: float,
    out_dtype: torch.dtype | None = None,
    *,
    orders: int = 8,
) -> Result:
    """The low-precision model; out in `out_dtype`, the input's type where None.

    Rounding of the weights dominates in low precision. In float32 all error is that of sums, whose largest value
    over a few hundred results is luck: the model is then the worst of several `orders` of keys and dims.
    """
    dtype = request.q.dtype
    orders = _orders(request, orders) if dtype == torch.float32 else [request]
    results = [
        _attend(r, functors, sm_scale, torch.float32, weight_dtype=dtype, out_dtype=out_dtype or dtype) for r in orders
    ]
    if len(results) == 1 or not results[0].out.numel():
        return results[0]
    exact = attend(request, functors, sm_scale)
    return max(results, key=lambda result: float((result.out.double() - exact.out).abs().max()))


def _orders(request: Request, count: int) -> list[Request]:
    """The same request with its keys, and the dims that q·k sums over, in other orders."""
    kv_len, dim, device = request.k.shape[0], request.q.shape[2], request.q.device
    kv_pos = torch.arange(kv_len, device=device) if request.kv_pos is None else request.kv_pos
    found, generator = [request], torch.Generator().manual_seed(kv_len)
    for _ in range(count - 1):
        keys, dims = (torch.randperm(n, generator=generator).to(device) for n in (kv_len, dim))
        q, k = request.q[..., dims], request.k[keys][..., dims]
        found.append(replace(request, q=q, k=k, v=request.v[keys], kv_pos=kv_pos[keys]))
    return found


def visible(request: Request, functors: Functors) -> torch.Tensor:
    """Which keys each row sees: bool [H_qo, qo, kv]."""
    env = _environment(request, functors, torch.float64)
    return _visible(request, functors, env)


def logits(request: Request, functors: Functors, sm_scale: float) -> torch.Tensor:
    """Scaled and transformed scores in float64 [H_qo, qo, kv], before the mask."""
    return _logits(request, functors, sm_scale, request.k.double(), _environment(request, functors, torch.float64))


def _logits(
    request: Request, functors: Functors, sm_scale: float, k: torch.Tensor, env: Mapping[str, Any]
) -> torch.Tensor:
    compute, group = k.dtype, request.q.shape[1] // k.shape[1]
    scores = sm_scale * torch.einsum("qhd,khd->hqk", request.q.to(compute), k.repeat_interleave(group, dim=1))
    for transform in functors.logits if scores.numel() else ():
        scores = call(transform, {**env, "logits": scores}).to(compute).broadcast_to(scores.shape)
    return scores


def _attend(
    request: Request,
    functors: Functors,
    sm_scale: float,
    compute: torch.dtype,
    *,
    weight_dtype: torch.dtype | None,
    out_dtype: torch.dtype,
) -> Result:
    heads, group = request.q.shape[1], request.q.shape[1] // request.k.shape[1]
    env = _environment(request, functors, compute)
    seen = _visible(request, functors, env)
    # A key that no row sees may hold anything, NaN included.
    useful = seen.any(dim=1).view(heads // group, group, seen.shape[-1]).any(dim=1).T[:, :, None]
    k = torch.where(useful, request.k.to(compute), 0.0)
    v = torch.where(useful, request.v.to(compute), 0.0).repeat_interleave(group, dim=1)
    scores = _logits(request, functors, sm_scale, k, env)
    if functors.use_softmax:
        out, lse = _softmax(scores, seen, v, weight_dtype)
        if functors.sink is not None:
            out, lse = _add_sink(out, lse, torch.as_tensor(call(functors.sink, env)).to(compute))
    else:
        out, lse = _weighted(torch.where(seen, scores, 0.0), v, weight_dtype), None
    out = out.transpose(0, 1)
    lse = None if lse is None else lse.T
    for transform in functors.output:
        rows = {name: env[name][:, :, :1].transpose(0, 1) for name in ("q_pos", "qo_head", "batch")}
        place = {"pos": rows["q_pos"], "head": rows["qo_head"], "batch": rows["batch"]}
        state = {"x": out, "lse": None if lse is None else lse[:, :, None]}
        out = call(transform, {**functors.params, **place, **state}).to(compute)
    assert out.shape == (request.q.shape[0], heads, request.v.shape[2])
    return Result(out.to(out_dtype), lse)


def _environment(request: Request, functors: Functors, compute: torch.dtype) -> dict[str, Any]:
    """Every name a functor may ask for, as dense int64 tensors [heads, queries, keys]."""
    qo_len, heads, _ = request.q.shape
    kv_len, kv_heads, _ = request.k.shape
    device = request.q.device
    shape = (heads, qo_len, max(kv_len, 1))  # one column even without keys, for what depends on rows only

    def dense(values: torch.Tensor, dim: int) -> torch.Tensor:
        view = [1, 1, 1]
        view[dim] = -1
        return values.to(torch.int64).view(view).expand(shape)

    def number(value: int) -> torch.Tensor:
        return torch.full((1,), value, dtype=torch.int64, device=device).view(1, 1, 1).expand(shape)

    q_idx = torch.arange(qo_len, device=device)
    kv_idx = torch.arange(shape[2], device=device)
    head = torch.arange(heads, device=device)
    kv_pos = kv_idx if request.kv_pos is None or not kv_len else request.kv_pos
    return {
        "q_idx": dense(q_idx, 1),
        "q_pos": dense(q_idx + kv_len - qo_len if request.q_pos is None else request.q_pos, 1),
        "kv_pos": dense(kv_pos, 2),
        "qo_head": dense(head, 0),
        "kv_head": dense(head // (heads // kv_heads), 0),
        "batch": number(request.index),
        "qo_len": number(qo_len),
        "kv_len": number(kv_len),
        **{name: _precise(value, compute) for name, value in functors.params.items()},
    }


def _precise(value: Any, compute: torch.dtype) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(compute) if is_float else value


def _visible(request: Request, functors: Functors, env: Mapping[str, Any]) -> torch.Tensor:
    shape = (request.q.shape[1], request.q.shape[0], request.k.shape[0])
    if functors.mask is None or 0 in shape:
        return torch.ones(shape, dtype=torch.bool, device=request.q.device)
    return torch.as_tensor(call(functors.mask, env)).to(request.q.device).broadcast_to(shape)


def _softmax(
    logits: torch.Tensor, seen: torch.Tensor, v: torch.Tensor, weight_dtype: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [H, qo, Dv], lse [H, qo]); a row that sees nothing is (0, -inf)."""
    if logits.shape[-1] == 0:
        return _weighted(logits, v, None), logits.new_full(logits.shape[:-1], -torch.inf)
    logits = torch.where(seen, logits, -torch.inf)
    top = logits.amax(dim=-1, keepdim=True)
    empty = torch.isneginf(top)
    weights = torch.where(seen, torch.exp(logits - torch.where(empty, 0.0, top)), 0.0)
    total = weights.sum(dim=-1, keepdim=True)
    out = _weighted(weights, v, weight_dtype) / torch.where(empty, 1.0, total)
    lse = torch.where(empty, -torch.inf, top + torch.log(torch.where(empty, 1.0, total)))
    return out, lse[..., 0]


def _weighted(weights: torch.Tensor, v: torch.Tensor, weight_dtype: torch.dtype | None) -> torch.Tensor:
    if weight_dtype is not None:
        weights = weights.to(weight_dtype).to(v.dtype)
    return torch.einsum("hqk,khd->hqd", weights, v)


def _add_sink(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One more logit a row, without a value; `sink` broadcasts against [H, qo, kv] and is constant along kv."""
    if sink.dim() == 3:
        sink = sink[..., 0]
    sink = sink.broadcast_to(lse.shape)
    total = torch.logaddexp(lse, sink)
    factor = torch.where(torch.isneginf(total), 0.0, torch.exp(lse - total))
    return out * factor[..., None], total


# ---------------------------------------------------------------- the library's variants, from their definitions
def causal() -> Functors:
    return Functors(mask=lambda q_pos, kv_pos: kv_pos <= q_pos)


def sliding_window(left: int | None) -> Functors:
    if left is None:
        return Functors()
    return Functors(mask=lambda q_pos, kv_pos: kv_pos >= q_pos - left)


def soft_cap(cap: float) -> Functors:
    return Functors(logits=(lambda logits: cap * torch.tanh(logits / cap),))


def alibi(slopes: torch.Tensor) -> Functors:
    return Functors(
        logits=(lambda logits, q_pos, kv_pos, qo_head, _alibi: logits + _alibi[qo_head] * (kv_pos - q_pos),),
        params={"_alibi": slopes},
    )


def sinks(values: torch.Tensor) -> Functors:
    return Functors(sink=lambda qo_head, _sinks: _sinks[qo_head], params={"_sinks": values})


def sigmoid(bias: float = 0.0) -> Functors:
    return Functors(logits=(lambda logits: torch.sigmoid(logits + bias),), use_softmax=False)


def custom_mask(masks: list[torch.Tensor]) -> Functors:
    """One bool matrix [qo_len, kv_len] per request."""
    starts = torch.tensor([sum(m.numel() for m in masks[:i]) for i in range(len(masks))])
    flat = torch.cat([m.reshape(-1) for m in masks] or [torch.zeros(0, dtype=torch.bool)])
    return Functors(
        mask=lambda q_idx, kv_pos, kv_len, batch, *, _mask, _starts: _mask[_starts[batch] + q_idx * kv_len + kv_pos],
        params={"_mask": flat, "_starts": starts},
    )


def prefix_lm(prefix_len: torch.Tensor | int) -> Functors:
    """A key is visible when it lies in the prefix or does not lie after the query."""
    if isinstance(prefix_len, int):
        return Functors(mask=lambda q_pos, kv_pos: (kv_pos <= q_pos) | (kv_pos < prefix_len))
    return Functors(
        mask=lambda q_pos, kv_pos, batch, _prefix: (kv_pos <= q_pos) | (kv_pos < _prefix[batch]),
        params={"_prefix": prefix_len},
    )


def document_mask(q_ids: torch.Tensor, kv_ids: torch.Tensor, qo_len: list[int], kv_len: list[int]) -> Functors:
    """Visible iff both belong to the same document; ids packed by request."""
    q_start = torch.tensor([sum(qo_len[:i]) for i in range(len(qo_len))])
    kv_start = torch.tensor([sum(kv_len[:i]) for i in range(len(kv_len))])
    return Functors(
        mask=lambda q_idx, kv_pos, batch, *, _q_ids, _kv_ids, _q_start, _kv_start: (
            _q_ids[_q_start[batch] + q_idx] == _kv_ids[_kv_start[batch] + kv_pos]
        ),
        params={"_q_ids": q_ids, "_kv_ids": kv_ids, "_q_start": q_start, "_kv_start": kv_start},
    )
