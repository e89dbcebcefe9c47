"""The engine objects of a model, and one plan a step for each distinct (variant, cache group).

A step is recognised by an object that transformers makes anew for every forward and hands to every layer
(`StepKey.anchor`), so nothing has to be told when a step begins.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import attnloom as al
from attnloom.integrations.transformers.features import Features, build_variant


@dataclass(frozen=True)
class LayerKey:
    """Everything that makes one engine object: options of the layer, geometry, cache group."""

    features: Features
    group: int | str
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_vo: int
    dtype: torch.dtype
    device: torch.device
    kv_layout: str
    sm_scale: float | None


@dataclass(frozen=True)
class StepKey:
    """A plan stays valid while the anchor is the same object and the lengths are equal.

    `anchor` None means that the lengths alone determine the plan: it is then kept for later steps too.
    """

    anchor: object | None
    lengths: tuple[int, ...] = ()

    def same(self, other: StepKey | None) -> bool:
        """Whether a plan made for `other` serves this step."""
        return other is not None and self.anchor is other.anchor and self.lengths == other.lengths


@dataclass(frozen=True)
class PlanInputs:
    """The arguments of one `BatchAttention.plan`."""

    qo_indptr: Any
    kv: Any
    params: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PlanEvent:
    """A plan that was just made: the planned object, its variant's features, cache group and arguments."""

    attn: Any
    features: Features
    group: int | str
    inputs: PlanInputs


@dataclass
class _Planned:
    attn: Any
    step: StepKey | None = None


class Session:
    """Engine objects of one model; each thread has its own, as continuous batching runs in a thread of its own."""

    def __init__(
        self,
        *,
        implementation: str | None = None,
        num_ctas: int | None = None,
        on_plan: Callable[[PlanEvent], None] | None = None,
    ) -> None:
        self.implementation = implementation
        self.num_ctas = num_ctas
        self.on_plan = on_plan
        self._local = threading.local()

    def attention(self, key: LayerKey) -> _Planned:
        """The engine object of `key` in this thread, built at first use."""
        table: dict[LayerKey, _Planned] = self._local.__dict__.setdefault("table", {})
        if key not in table:
            table[key] = _Planned(
                al.BatchAttention(
                    num_qo_heads=key.num_qo_heads,
                    num_kv_heads=key.num_kv_heads,
                    head_dim=key.head_dim,
                    head_dim_vo=key.head_dim_vo,
                    dtype=key.dtype,
                    page_size=None,
                    kv_layout=key.kv_layout,
                    variant=build_variant(key.features),
                    device=key.device,
                    sm_scale=key.sm_scale,
                    implementation=self.implementation,
                )
            )
        return table[key]

    def planned(self, key: LayerKey, step: StepKey, make: Callable[[], PlanInputs]) -> Any:
        """The engine object of `key`, planned for `step`; `make` is called only if a plan has to be made."""
        entry = self.attention(key)
        if step.same(entry.step):
            return entry.attn
        entry.step = None  # a plan that fails leaves none behind
        inputs = make()
        entry.attn.plan(inputs.qo_indptr, inputs.kv, params=inputs.params, num_ctas=self.num_ctas)
        entry.step = step
        if self.on_plan is not None:
            self.on_plan(PlanEvent(entry.attn, key.features, key.group, inputs))
        return entry.attn


_sessions: weakref.WeakKeyDictionary[torch.nn.Module, Session] = weakref.WeakKeyDictionary()
_default = Session()


def bind(session: Session, model: torch.nn.Module) -> None:
    """Let every module of `model` find `session`."""
    for module in model.modules():
        _sessions[module] = session


def session_of(module: torch.nn.Module) -> Session:
    """The session of a layer; a model loaded by name without `enable` shares one with default options."""
    return _sessions.get(module, _default)


def probe(session: Session, model: Any) -> None:
    """Build the plain causal engine object of `model` once, so that what cannot run is refused at `enable`."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        return  # no language model's geometry to look at: the first call checks
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    causal = Features(causal=True, window_left=None, soft_cap=None, sinks=False, padding=None)
    session.attention(
        LayerKey(
            features=causal,
            group="probe",
            num_qo_heads=heads,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=head_dim,
            head_dim_vo=head_dim,
            dtype=model.dtype,
            device=model.device,
            kv_layout="HND",
            sm_scale=None,
        )
    )
