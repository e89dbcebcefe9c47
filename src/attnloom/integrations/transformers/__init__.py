"""Hugging Face transformers on AttnLoom: `generate()` and continuous batching.

    from attnloom.integrations.transformers import enable
    model = enable(AutoModelForCausalLM.from_pretrained(...))
    model.generate(...)            # [B, H_kv, S, D] caches, read in place as HND pools of one page a row
    model.generate_batch([...])    # the paged cache, read in place through its block tables

Importing this package does not import transformers; `enable` and `register` do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnloom.errors import InvalidArgument, NotYetSupported
from attnloom.integrations.transformers import compat
from attnloom.integrations.transformers.compat import NAME
from attnloom.integrations.transformers.features import Features
from attnloom.integrations.transformers.layer import attention
from attnloom.integrations.transformers.masks import attention_mask
from attnloom.integrations.transformers.session import PlanEvent, Session, bind, probe

__all__ = ["NAME", "Features", "PlanEvent", "enable", "register"]


def register() -> str:
    """Register AttnLoom with transformers, once, and return the name to give as `attn_implementation`.

    `enable` calls this. Call it yourself before `from_pretrained(..., attn_implementation=register())`.

    Raises:
        MissingDependency: transformers is missing, or of a version that is not supported.
    """
    compat.install(attention, attention_mask)
    return NAME


def enable(
    model: Any,
    *,
    implementation: str | None = None,
    num_ctas: int | None = None,
    on_plan: Callable[[PlanEvent], None] | None = None,
) -> Any:
    """Run every attention layer of `model` on AttnLoom; returns the same model.

    `generate()` and continuous batching (`generate_batch`, `ContinuousBatchingManager`) then plan once a
    step for each distinct (variant, cache group) and run every layer on that plan. CUDA graphs of continuous
    batching are kept off, because plans are made on the host. What only a step shows and is refused there (dropout,
    masks of other kinds) raises from `generate()`; `generate_batch` runs its steps in a thread, where transformers
    logs the error and puts it into every result's `error`. Undo with `model.set_attn_implementation("sdpa")`.

    Args:
        model: a `transformers.PreTrainedModel` that takes its attention from `AttentionInterface`.
        implementation: an AttnLoom implementation by name (`attnloom.implementations()`); None takes the first
            that can run here.
        num_ctas: number of workers that a plan is cut for; None is the implementation's own choice.
        on_plan: called after every plan with a `PlanEvent` (for logs and pictures); it must not change it.

    Raises:
        MissingDependency: transformers is missing or too old.
        InvalidArgument: `model` is no `PreTrainedModel`, `implementation` is unknown, or the head dim unsupported.
        UnsupportedSpec: no implementation here can compute this model's heads, head dim or dtype.
        NotYetSupported: the model's attention code does not go through `AttentionInterface`.
    """
    name = register()
    if not compat.is_pretrained_model(model):
        raise InvalidArgument(
            name="model", given=type(model).__name__, supported="a transformers.PreTrainedModel",
            fix="Load it with AutoModelForCausalLM.from_pretrained(...).",
        )  # fmt: skip
    session = Session(implementation=implementation, num_ctas=num_ctas, on_plan=on_plan)
    probe(session, model)
    compat.allow_name(model)
    model.set_attn_implementation(name)
    if model.config.get_text_config()._attn_implementation != name:
        raise NotYetSupported(
            feature=f"{type(model).__name__}, whose attention does not go through transformers' AttentionInterface,",
            fix="Use a model class with _supports_attention_backend = True.",
        )
    bind(session, model)
    return model
