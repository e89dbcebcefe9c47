"""Every difference between versions of transformers, and every place where it is patched.

Two interfaces of continuous batching exist. "modern" (from 5.19): the model calls `cache.update(..., kwargs=)`
before the attention function. "legacy" (5.17): the attention function, registered as `paged|name`, does.
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
_SUPPORTED = "5.17 or at least 5.19"
_installed: list[str] = []


def install(attention: Callable[..., Any], attention_mask: Callable[..., Any]) -> None:
    """Register the functions under `NAME` and put the patches in place, once in a process."""
    if _installed:
        return
    interface = _require()
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, attention_mask)
    _patch_lazy_imports()
    _patch_manager()
    if interface == "modern":
        _patch_modern_update()
    else:
        # no mask function under this name: continuous batching then builds no mask
        AttentionInterface.register(f"paged|{NAME}", functools.partial(_legacy_attention, attention))
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
    if version >= Version("5.19.dev0"):
        return "modern"
    if version.release[:2] == (5, 17):
        return "legacy"
    raise MissingDependency(
        feature=_FEATURE, package='"transformers>=5.19"', reason=f"supported: {_SUPPORTED}; installed: {version}"
    )


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


def _patch_modern_update() -> None:
    from transformers.generation.continuous_batching.cache import PagedAttentionCache

    original = PagedAttentionCache.update

    @torch.compiler.disable
    @functools.wraps(original)
    def update(
        self: Any, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not _is_ours(self.config):
            return original(self, key_states, value_states, layer_idx, kwargs)  # type: ignore[no-any-return]
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
        return states  # type: ignore[no-any-return]

    PagedAttentionCache.update = update


def _slots(read_index: list[torch.Tensor], write_index: list[torch.Tensor], group: int) -> torch.Tensor:
    """Slots of all keys of a group: a step of whole prompts reads exactly what it writes, and has no read index."""
    return read_index[group] if read_index[group].numel() else write_index[group]


# --- legacy: 5.17 -----------------------------------------------------------------------------------------------


def _legacy_attention(
    attention: Callable[..., Any],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """The function of `paged|name`: key and value [1, H_kv, total_q, D] hold the new tokens only."""
    cache, layer_idx = kwargs.pop("cache"), int(module.layer_idx)  # type: ignore[arg-type]
    read_index, write_index, cu_k = (kwargs.pop(name) for name in ("read_index", "write_index", "cu_seq_lens_k"))
    group, layer_in_group = cache.layer_index_to_group_indices[layer_idx]
    sliding = hasattr(cache.group_cache_managers[group], "sliding_window")
    states = cache.update(
        key_states=key,
        value_states=value,
        layer_idx=layer_idx,
        read_index=read_index if sliding else _unread(read_index),
        write_index=write_index,
    )
    if isinstance(cu_k, dict):
        cu_k = cu_k["sliding_attention" if sliding else "full_attention"]
    pages = None
    if not sliding:
        k_pool, v_pool = cache.key_cache[layer_in_group], cache.value_cache[layer_in_group]
        shape = (-1, cache.block_size, cache.num_key_value_heads, cache.head_dim)
        pages = (k_pool.view(shape), v_pool.view(shape))
    read = CacheRead(
        group=group,
        cu_seq_lens_q=kwargs.pop("cu_seq_lens_q"),
        cu_seq_lens_k=cu_k,
        pages=pages,
        slots=None if sliding else _slots(read_index, write_index, group),
    )
    key, value = (state.transpose(0, 1).unsqueeze(0) for state in states)
    return attention(module, query, key, value, attention_mask, attnloom_read=read, **kwargs)
