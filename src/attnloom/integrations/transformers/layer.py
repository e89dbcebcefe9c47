"""The attention function that transformers calls for every layer.

Three shapes of K and V come in: the dense [B, H_kv, S, D] of `generate()`, planned as a pool of one page a row;
the paged cache of continuous batching, read in place; and the gathered window of its sliding layers, ragged.
"""

from __future__ import annotations

from typing import Any

import torch

import attnloom as al
from attnloom.errors import GradientRequired, InvalidArgument, NotYetSupported, ShapeMismatch
from attnloom.integrations.transformers.features import Features, layer_features
from attnloom.integrations.transformers.masks import Padding, padding_of
from attnloom.integrations.transformers.paged import CacheRead, paged_inputs, ragged_inputs
from attnloom.integrations.transformers.session import LayerKey, PlanInputs, StepKey, session_of

# keywords of transformers that would change the numbers and that we do not compute
_REFUSED = ("position_bias", "alibi", "attention_bias", "head_mask", "block_table", "block_indices")


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    attnloom_read: CacheRead | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """One layer on AttnLoom, with the signature of transformers' AttentionInterface.

    Args:
        query: [B, H_qo, S_q, D]; with continuous batching [1, H_qo, total_q, D].
        key, value: [B, H_kv, S_k, D], the cache included; with continuous batching [1, H_kv, total, D].
        attention_mask: None or what `masks.attention_mask` returned, bool [B, kv_len].
        attnloom_read: where continuous batching's cache lies, put in by `compat`.

    Returns:
        ([B, S_q, H_qo, D_vo], None): no attention weights exist.

    Raises:
        NotYetSupported, InvalidArgument, GradientRequired: for what AttnLoom does not compute.
    """
    _refuse(
        module, dropout=dropout, tensors={"query": query, "key": key, "value": value, "sinks": s_aux}, kwargs=kwargs
    )
    # continuous batching's layers need no mask: their requests are apart, and nothing is padded
    padding = padding_of(attention_mask if attnloom_read is None else None)
    if attnloom_read is None and cu_seq_lens_q is not None:
        attnloom_read = _packed(cu_seq_lens_q, cu_seq_lens_k, attention_mask)
    features = layer_features(
        causal=_is_causal(module, is_causal),
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=s_aux is not None,
        padding=padding.kind,
    )
    tensors = (query, key, value)
    layer = _layer_key(features, tensors, scaling, None if attnloom_read is None else attnloom_read.group)
    sinks = _sinks(features, s_aux, query.device)
    if attnloom_read is None:
        return _dense(module, layer, tensors, (attention_mask, padding), sinks), None
    return _batched(module, layer, tensors, attnloom_read, sinks), None


def _layer_key(
    features: Features,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scaling: float | None,
    group: int | str | None,
) -> LayerKey:
    query, key, value = tensors
    return LayerKey(
        features=features,
        group="dense" if group is None else group,
        num_qo_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=query.shape[3],
        head_dim_vo=value.shape[3],
        dtype=query.dtype,
        device=query.device,
        kv_layout="HND" if group is None else "NHD",
        sm_scale=None if scaling is None else float(scaling),
    )


def _dense(
    module: torch.nn.Module,
    layer: LayerKey,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: tuple[torch.Tensor | None, Padding],
    sinks: dict[str, torch.Tensor] | None,
) -> torch.Tensor:
    """`generate()`: K and V [B, H_kv, S, D] are an HND pool whose page i is row i of the batch."""
    query, key, value = tensors
    attention_mask, padding = mask
    batch, heads, q_len, head_dim = query.shape
    slots = key.shape[2]
    kv_len = slots if attention_mask is None else attention_mask.shape[1]
    if not 0 < kv_len <= slots or (attention_mask is not None and attention_mask.shape[0] != batch):
        raise ShapeMismatch(
            name="attention_mask", given=tuple(attention_mask.shape) if attention_mask is not None else None,
            expected=f"[{batch}, 1 to {slots}]", fix="It covers the cache and the new tokens.",
        )  # fmt: skip

    def inputs() -> PlanInputs:
        # on the host whatever torch's default device is: the planner reads them there
        rows = torch.arange(batch + 1, dtype=torch.int32, device="cpu")
        last = torch.full((batch,), kv_len, dtype=torch.int32, device="cpu")
        kv = al.PagedKV(rows, rows[:batch], last, page_size=slots)
        name = {"left": "pad", "mask": "keep", None: None}[layer.features.padding]
        return PlanInputs(rows * q_len, kv, None if name is None else {name: padding.operand})

    # without padding the lengths say everything, and equal steps share their plan
    step = StepKey(anchor=attention_mask if padding.kind else None, lengths=(batch, q_len, kv_len, slots))
    attn = session_of(module).planned(layer, step, inputs)
    q = query.transpose(1, 2).reshape(batch * q_len, heads, head_dim)
    out: torch.Tensor = attn.run(q, key, value, params=sinks)
    return out.view(batch, q_len, heads, -1)


def _batched(
    module: torch.nn.Module,
    layer: LayerKey,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    read: CacheRead,
    sinks: dict[str, torch.Tensor] | None,
) -> torch.Tensor:
    """Continuous batching: rows of all requests packed; K and V are the pool itself, or a ragged window."""
    query, key, value = tensors
    q = query[0].transpose(0, 1)
    step = StepKey(anchor=read.cu_seq_lens_q)
    if read.pages is not None:
        attn = session_of(module).planned(layer, step, lambda: paged_inputs(read))
        k_cache, v_cache = read.pages
    else:
        attn = session_of(module).planned(layer, step, lambda: ragged_inputs(read))
        k_cache, v_cache = key[0].transpose(0, 1), value[0].transpose(0, 1)
    out: torch.Tensor = attn.run(q, k_cache, v_cache, params=sinks)
    return out.unsqueeze(0)


def _packed(
    cu_seq_lens_q: torch.Tensor, cu_seq_lens_k: torch.Tensor | None, attention_mask: torch.Tensor | None
) -> CacheRead:
    """Sequences packed into one row without a cache, as vision towers hand them over."""
    if attention_mask is not None or cu_seq_lens_k is None:
        raise NotYetSupported(
            feature="cu_seq_lens_q with an attention mask or without cu_seq_lens_k", fix="Pass one or the other."
        )
    return CacheRead(group="packed", cu_seq_lens_q=cu_seq_lens_q, cu_seq_lens_k=cu_seq_lens_k)


def _sinks(features: Features, s_aux: torch.Tensor | None, device: torch.device) -> dict[str, torch.Tensor] | None:
    """The operand of this layer's sinks: one plan serves layers whose sinks differ."""
    if not features.sinks or s_aux is None:
        return None
    return {"sinks": s_aux.to(device=device, dtype=torch.float32)}


def _is_causal(module: torch.nn.Module, is_causal: bool | None) -> bool:
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    return bool(is_causal) and getattr(getattr(module, "config", None), "is_causal", True)


def _refuse(
    module: torch.nn.Module, *, dropout: float, tensors: dict[str, torch.Tensor | None], kwargs: dict[str, Any]
) -> None:
    if dropout:
        raise InvalidArgument(
            name="dropout", given=dropout, supported="0.0 (inference)", fix="Call model.eval() before generating."
        )
    if kwargs.get("output_attentions"):
        raise InvalidArgument(
            name="output_attentions", given=True, supported="False: attention weights are never stored",
            fix="Load the model with attn_implementation='eager' to look at them.",
        )  # fmt: skip
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise NotYetSupported(
                feature=f"{name} in {type(module).__name__}", fix="Use attn_implementation='sdpa' for this model."
            )
    if torch.is_grad_enabled():
        for name, tensor in tensors.items():
            if tensor is not None and tensor.requires_grad:
                raise GradientRequired(name=name)
