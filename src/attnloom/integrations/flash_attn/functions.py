"""flash_attn_func, flash_attn_varlen_func and flash_attn_with_kvcache, with flash-attn's signatures."""

from __future__ import annotations

from typing import Any

import torch

from attnloom.errors import InvalidArgument, ShapeMismatch
from attnloom.integrations.flash_attn import cache, lengths
from attnloom.integrations.flash_attn.calls import Call, Update
from attnloom.integrations.flash_attn.engines import Step, check_tensors, unit_stride
from attnloom.integrations.flash_attn.options import check_splits, flag, read_options, refuse_training
from attnloom.integrations.flash_attn.rotary import read_rotary

Tensor = torch.Tensor


def flash_attn_func(
    q: Tensor,  # signature copied from flash_attn
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of a batch of equal lengths.

    q [B, Sq, H, D]; k [B, Sk, H_kv, D], v [B, Sk, H_kv, Dv], H a multiple of H_kv. Row i of q stands at position
    ``i + Sk - Sq``: causal shows keys up to it, window_size (left, right) those from ``left`` before to ``right`` after
    it (−1: unlimited). softmax_scale None is D ** -0.5; softcap 0 is off; alibi_slopes fp32 [H] or [B, H].

    Returns out [B, Sq, H, Dv]; with return_attn_probs (out, lse fp32 [B, H, Sq], an empty tensor): without dropout
    flash-attn keeps no probabilities either. Raises from attnloom.errors.
    """
    refuse_training(dropout_p, deterministic)
    check_tensors({"q": 4, "k": 4, "v": 4}, {"q": q, "k": k, "v": v})
    _same(k, v, q.shape[0])
    lengths.refuse_capture(q.device)
    batch, q_len, heads, _ = q.shape
    options = read_options(
        causal=causal, window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, batch=batch, heads=heads
    )
    table = torch.arange(batch, dtype=torch.int32)[:, None]
    step = Step([i * q_len for i in range(batch + 1)], [k.shape[1]] * batch, table, k.shape[1])
    call = Call(options, softmax_scale, alibi_slopes, flag("return_attn_probs", return_attn_probs))
    out, lse = call.dense(q, unit_stride(k), unit_stride(v), step)
    return out if lse is None else (out, lse, q.new_empty(0))


def flash_attn_varlen_func(
    q: Tensor,  # signature copied from flash_attn
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Attention of sequences packed one after another.

    q [total_q, H, D]; k [total_k, H_kv, D] and v, or with block_table [B, max_blocks] pools
    [num_blocks, page_block_size, H_kv, D]; cu_seqlens_q and cu_seqlens_k int32 [B + 1], cumulative lengths from 0
    (those of a GPU are read once, together); max_seqlen_q and max_seqlen_k: bounds of the lengths. The rest is as
    for flash_attn_func.

    Returns out [total_q, H, Dv]; with return_attn_probs (out, lse fp32 [H, total_q], an empty tensor). Rows of q past
    cu_seqlens_q[-1] give 0 (lse −inf). Raises from attnloom.errors.
    """
    refuse_training(dropout_p, deterministic)
    kv_dims = 3 if block_table is None else 4
    check_tensors({"q": 3, "k": kv_dims, "v": kv_dims}, {"q": q, "k": k, "v": v})
    _same(k, v, None)
    lengths.refuse_capture(q.device)
    host = lengths.read_host({"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k})
    q_len, kv_len = (lengths.check_pointer(name, pointer) for name, pointer in host.items())
    lengths.check_longest("max_seqlen_q", max_seqlen_q, q_len)
    lengths.check_longest("max_seqlen_k", max_seqlen_k, kv_len)
    batch, heads = len(q_len), q.shape[1]
    lengths.check_batch("cu_seqlens_k[1:]", kv_len, batch)
    options = read_options(
        causal=causal, window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, batch=batch, heads=heads
    )
    call = Call(options, softmax_scale, alibi_slopes, flag("return_attn_probs", return_attn_probs))
    table = None if block_table is None else cache.check_table(block_table, batch)
    step = Step(host["cu_seqlens_q"], kv_len, table, 1 if table is None else k.shape[1])
    out, lse = call.packed(q, unit_stride(k), unit_stride(v), step)
    return out if lse is None else (out, lse.T.contiguous(), q.new_empty(0))


def flash_attn_with_kvcache(
    q: Tensor,  # signature copied from flash_attn
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention over a cache, after new keys were written into it in place.

    q [B, Sq, H, D]; k_cache, v_cache [B_cache, S, H_kv, D] (row cache_batch_idx[b], else b) or, with block_table
    [B, max_blocks], pools [num_blocks, page_block_size, H_kv, D]; k, v [B, S_new, H_kv, D] go to positions
    cache_seqlens[b] and on; cache_seqlens int or int32 [B] (negative: an unused row), None without k: the whole cache;
    cache_leftpad int32 [B]: the first valid key. rotary_cos, rotary_sin [positions, rotary_dim / 2] turn k at
    its positions and q at cache_seqlens + i (causal or local) or at cache_seqlens. The rest as flash_attn_func.

    Returns out [B, Sq, H, Dv]; with return_softmax_lse (out, lse fp32 [B, H, Sq]). Raises from attnloom.errors.
    """
    check_splits(num_splits)
    new = _check_cache_call(q, (k_cache, v_cache), (k, v), cache_seqlens)
    batch, heads = q.shape[0], q.shape[2]
    options = read_options(
        causal=causal, window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes,
        batch=batch, heads=heads, leftpad=cache_leftpad is not None,
    )  # fmt: skip
    rotary = read_rotary(rotary_cos, rotary_sin, flag("rotary_interleaved", rotary_interleaved), q)
    table = cache.read_table(k_cache, block_table, cache_batch_idx, batch)
    update = Update(table, cache.read_lengths(cache_seqlens, cache_leftpad, table, batch), rotary, new)
    call = Call(options, softmax_scale, alibi_slopes, flag("return_softmax_lse", return_softmax_lse))
    step = update.step(q.shape[1])  # first: it refuses what does not fit
    out, lse = call.dense(update.queries(q, options.local), k_cache, v_cache, step, update)
    return out if lse is None else (out, lse)


def _same(k: Tensor, v: Tensor, batch: int | None) -> None:
    """k and v belong together, and to `batch` where there is one."""
    if k.shape[:-1] != v.shape[:-1] or (batch is not None and k.shape[0] != batch):
        raise ShapeMismatch(
            name="k and v",
            given=f"{tuple(k.shape)} and {tuple(v.shape)}",
            expected=f"equal but for the head dim{'' if batch is None else f', with batch {batch}'}",
            fix="",
        )


def _check_cache_call(
    q: Tensor, caches: tuple[Tensor, Tensor], new: tuple[Tensor | None, Tensor | None], cache_seqlens: Any
) -> tuple[Tensor, Tensor] | None:
    """The tensors of flash_attn_with_kvcache fit each other; returns (k, v) where there are new keys."""
    tensors: dict[str, Any] = {"q": q, "k_cache": caches[0], "v_cache": caches[1]}
    check_tensors(dict.fromkeys(tensors, 4), tensors)
    lengths.refuse_capture(q.device)
    _same(*caches, None)
    k, v = new
    if k is None and v is None:
        return None
    if k is None or v is None or cache_seqlens is None:
        raise InvalidArgument(
            name="k, v and cache_seqlens",
            given=[x is not None for x in (k, v, cache_seqlens)],
            supported="all three to append, or no k and v",
            fix="cache_seqlens says where the new keys go.",
        )
    check_tensors({"q": 4, "k": 4, "v": 4}, {"q": q, "k": k, "v": v})
    _same(k, v, q.shape[0])
    for name, rows, kept in (("k", k, caches[0]), ("v", v, caches[1])):
        if rows.shape[2:] != kept.shape[2:]:
            raise ShapeMismatch(
                name=name, given=tuple(rows.shape), expected=f"heads and head dim {tuple(kept.shape[2:])}", fix=""
            )
    return k, v
