"""Every difference between versions of transformers, and every place where it is patched.

Two interfaces of continuous batching exist. "modern" (from 5.19): `cache.update(..., kwargs=)` puts into the
keywords what the attention function needs; the model calls it, up to 5.23 the attention function. "legacy" (5.17,
5.18): the attention function, registered as `paged|name`, updates the cache and has all the indices itself.
Either way the new K and V are written by transformers' own `update`, given an empty read index, which is how it
asks for a write without a read; what is read, we hand to the attention function as a `CacheRead`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from attnloom.errors import InvalidArgument, MissingDependency, NotYetSupported
from attnloom.integrations.transformers.paged import CacheRead

NAME = "attnloom_flash"
"""The value of `attn_implementation`. "flash" in it makes transformers prepare a step without dense masks."""

_FEATURE = "attnloom.integrations.transformers"
_OLDEST = "5.17"
_installed: list[str] = []


def install(attention: Callable[..., Any], attention_mask: Callable[..., Any]) -> None:
    """Register the functions under `NAME` and put the patches in place, once in a process."""
    if _installed:
        return
    interface = _require()
    from transformers import AttentionInterface, AttentionMaskInterface

    # plans are made on the host, step by step: a compiled model leaves its graph for them
    attention, attention_mask = torch.compiler.disable(attention), torch.compiler.disable(attention_mask)
    AttentionMaskInterface.register(NAME, attention_mask)
    _patch_lazy_imports()
    _patch_manager()
    if interface == "modern":
        AttentionInterface.register(NAME, functools.partial(_modern_attention, attention=attention))
        _patch_modern_update()
    else:
        AttentionInterface.register(NAME, attention)
        # no mask function under this name: continuous batching then builds no mask
        AttentionInterface.register(f"paged|{NAME}", functools.partial(_legacy_attention, attention=attention))
    _installed.append(interface)


def is_pretrained_model(model: object) -> bool:
    """Whether `model` is a `transformers.PreTrainedModel`."""
    from transformers import PreTrainedModel

    return isinstance(model, PreTrainedModel)


def allow_name(model: Any) -> None:
    """Models that list the flash kernels they were tried with replace any other name: add ours to their list."""
    for module in model.modules():
        listed = getattr(module, "_compatible_flash_implementations", None)
        if listed is not None and NAME not in listed:
            module._compatible_flash_implementations = [*listed, NAME]


def _require() -> str:
    """Which interface the installed transformers has."""
    try:
        import transformers
    except ImportError as error:
        raise MissingDependency(feature=_FEATURE, package="transformers", reason=str(error)) from error
    from packaging.version import Version

    version = Version(transformers.__version__)
    if version < Version(_OLDEST):
        raise MissingDependency(
            feature=_FEATURE, package=f'"transformers>={_OLDEST}"', reason=f"at least {_OLDEST}; installed: {version}"
        )
    return "modern" if version >= Version("5.19.dev0") else "legacy"


def _patch_lazy_imports() -> None:
    """transformers imports the kernels of any "flash" name from the hub: for ours there is nothing to fetch."""
    from transformers import modeling_flash_attention_utils as utils

    original = utils._lazy_imports

    @functools.wraps(original)
    def lazy_imports(implementation: str | None, *args: Any, **kwargs: Any) -> Any:
        if implementation is not None and implementation.removeprefix("paged|") == NAME:
            return _direct_call, _direct_call, None, utils._pad_input, utils._unpad_input
        return original(implementation, *args, **kwargs)

    utils._lazy_imports = lazy_imports


def _direct_call(*args: Any, **kwargs: Any) -> Any:
    raise NotYetSupported(
        feature="a model that calls flash attention's functions itself, past transformers' AttentionInterface,",
        fix="Use attn_implementation='sdpa' for this model.",
    )


def _patch_manager() -> None:
    """Plans are made on the host, so a replayed CUDA graph would keep the first step's work: graphs stay off."""
    from transformers.generation.continuous_batching import ContinuousBatchingManager

    original = ContinuousBatchingManager.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        model, config = bound.arguments["model"], bound.arguments["continuous_batching_config"]
        if _is_ours(model.config.get_text_config()):
            bound.arguments["continuous_batching_config"] = _without_graphs(config)
        original(*bound.args, **bound.kwargs)

    ContinuousBatchingManager.__init__ = init


def _without_graphs(config: Any) -> Any:
    import copy

    asked = config.use_cuda_graph
    if asked is True or (isinstance(asked, tuple) and any(asked)):
        raise InvalidArgument(
            name="ContinuousBatchingConfig.use_cuda_graph", given=asked, supported="False or None",
            fix="AttnLoom plans every step on the host, which a replayed graph would not see.",
        )  # fmt: skip
    config = copy.deepcopy(config)
    config.use_cuda_graph = False
    return config


def _is_ours(config: Any) -> bool:
    return str(config._attn_implementation).removeprefix("paged|") == NAME


def _unread(read_index: list[torch.Tensor]) -> list[torch.Tensor]:
    """Empty read indices, which make `update` write the new K and V and gather nothing."""
    return [index[:0] for index in read_index]


# --- modern: 5.19 and later -------------------------------------------------------------------------------------


def _modern_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    attention: Callable[..., Any],
    **kwargs: Any,
) -> Any:
    """The function of `name`. Up to 5.23 the paged cache comes along and is updated here."""
    cache = kwargs.pop("cache", None)
    if cache is not None and "attnloom_read" not in kwargs:
        key, value = cache.update(key, value, layer_idx=module.layer_idx, kwargs=kwargs)
    return attention(module, query, key, value, attention_mask, **kwargs)


def _patch_modern_update() -> None:
    from transformers.generation.continuous_batching.cache import PagedAttentionCache

    original = PagedAttentionCache.update

    @functools.wraps(original)
    def update(
        self: Any, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not _is_ours(self.config):
            return original(self, key_states, value_states, layer_idx, kwargs)
        allocator = self.layer_to_allocator[layer_idx]
        pages, slots, read_index = None, None, kwargs["read_index"]
        if allocator.layer_type == "full_attention":
            pages = allocator.get_cache_for_block_table(layer_idx)
            slots = _slots(read_index, kwargs["write_index"], allocator.index)
            kwargs["read_index"] = _unread(read_index)
        states = original(self, key_states, value_states, layer_idx, kwargs)
        kwargs["read_index"] = read_index
        kwargs["attnloom_read"] = CacheRead(
            group=allocator.index,
            cu_seq_lens_q=kwargs["cu_seq_lens_q"],
            cu_seq_lens_k=kwargs["cu_seq_lens_k"],
            pages=pages,
            slots=slots,
        )
        return states

    PagedAttentionCache.update = torch.compiler.disable(update)


def _slots(read_index: list[torch.Tensor], write_index: list[torch.Tensor], group: int) -> torch.Tensor:
    """Slots of all keys of a group: a step of whole prompts reads exactly what it writes, and has no read index."""
    return read_index[group] if read_index[group].numel() else write_index[group]


# --- legacy: 5.17 and 5.18 --------------------------------------------------------------------------------------


def _legacy_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    attention: Callable[..., Any],
    **kwargs: Any,
) -> Any:
    """The function of `paged|name`: key and value [1, H_kv, total_q, D] hold the new tokens only."""
    cache, layer_idx = kwargs.pop("cache"), int(module.layer_idx)  # type: ignore[arg-type]
    read_index, write_index, cu_k = (kwargs.pop(name) for name in ("read_index", "write_index", "cu_seq_lens_k"))
    group, pages = _legacy_group(cache, layer_idx)
    states = cache.update(
        key_states=key,
        value_states=value,
        layer_idx=layer_idx,
        read_index=read_index if pages is None else _unread(read_index),
        write_index=write_index,
    )
    if isinstance(cu_k, dict):  # a plain tensor where all layers are of one kind
        cu_k = cu_k["sliding_attention" if pages is None else "full_attention"]
    read = CacheRead(
        group=group,
        cu_seq_lens_q=kwargs.pop("cu_seq_lens_q"),
        cu_seq_lens_k=cu_k,
        pages=pages,
        slots=None if pages is None else _slots(read_index, write_index, group),
    )
    key, value = (state.transpose(0, 1).unsqueeze(0) for state in states)
    return attention(module, query, key, value, attention_mask, attnloom_read=read, **kwargs)


def _legacy_group(cache: Any, layer_idx: int) -> tuple[int, tuple[torch.Tensor, torch.Tensor] | None]:
    """Group of a layer, and its pages [num_pages, page_size, H_kv, D] unless the layer is sliding."""
    if hasattr(cache, "layer_to_allocator"):  # 5.18
        allocator = cache.layer_to_allocator[layer_idx]
        sliding = hasattr(allocator, "sliding_window")
        return allocator.index, None if sliding else allocator.get_cache_for_block_table(layer_idx)
    group, layer_in_group = cache.layer_index_to_group_indices[layer_idx]
    if hasattr(cache.group_cache_managers[group], "sliding_window"):
        return group, None
    k_pool, v_pool = cache.key_cache[layer_in_group], cache.value_cache[layer_in_group]
    shape = (-1, cache.block_size, cache.num_key_value_heads, cache.head_dim)
    return group, (k_pool.view(shape), v_pool.view(shape))
