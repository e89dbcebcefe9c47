"""Tiny models with random weights, whose tokens depend on the feature that each of them is here for."""

from __future__ import annotations

import collections
import dataclasses
import functools
from dataclasses import dataclass

import torch
import transformers

import attnloom as al
from attnloom.integrations.transformers import layer

WINDOW = 8
BASE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
MIXED = ["sliding_attention", "full_attention"]
GREEDY = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}


@dataclass(frozen=True)
class ModelCase:
    """A model class, its config's own arguments, the features that one may switch off to see tokens change, and
    its layers in order: f full attention, s sliding."""

    name: str
    kind: str
    config: dict
    switches: tuple[str, ...]
    layers: str

    def build(self, device: str = "cpu") -> transformers.PreTrainedModel:
        """The model in fp32 on `device`; its weights are drawn on the host, so that they are the same everywhere."""
        torch.manual_seed(0)
        config_class = getattr(
            transformers, f"{self.kind}TextConfig" if self.kind == "Gemma3" else f"{self.kind}Config"
        )
        config = config_class(**{**BASE, **self.config}, attn_implementation="eager", experts_implementation="eager")
        model = getattr(transformers, f"{self.kind}ForCausalLM")(config).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("sinks"):
                    weight.uniform_(1.0, 4.0)
                elif name.endswith(("q_proj.weight", "k_proj.weight")):
                    weight.mul_(8.0)  # attention that is nearly uniform would hide what it attends to
        return model.to(device)


CASES = {
    case.name: case
    for case in (
        ModelCase("llama", "Llama", {}, (), "ff"),
        ModelCase("qwen3", "Qwen3", {}, (), "ff"),
        ModelCase("mistral", "Mistral", {"sliding_window": WINDOW}, ("window_left",), "ss"),
        ModelCase(
            "gemma2",
            "Gemma2",
            {"sliding_window": WINDOW, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
            ("window_left", "soft_cap"),
            "sf",
        ),
        ModelCase(
            "gemma3",
            "Gemma3",
            {"sliding_window": WINDOW, "query_pre_attn_scalar": 16, "layer_types": MIXED},
            ("window_left",),
            "sf",
        ),
        ModelCase(
            "gpt_oss",
            "GptOss",
            {
                "sliding_window": WINDOW,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "layer_types": MIXED * 2,
                "num_hidden_layers": 4,
            },
            ("window_left", "sinks"),
            "sfsf",
        ),
    )
}
SWITCHED = [(name, switch) for name, case in CASES.items() for switch in case.switches]


def prompts() -> list[list[int]]:
    """Shorter and longer than the window, than a page of 16 and than a step of 32 tokens; two share 32 tokens."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(1, 128, (n,), generator=generator).tolist() for n in (5, 20, 45, 12)]
    return [*drawn, [*drawn[2][:32], 3, 4, 5]]


def switch_off(monkeypatch, feature: str) -> None:
    """Drop one feature from every layer on AttnLoom's side."""
    build = layer.layer_features
    neutral = {"window_left": None, "soft_cap": None, "sinks": False, "padding": None}[feature]
    monkeypatch.setattr(layer, "layer_features", lambda **kw: dataclasses.replace(build(**kw), **{feature: neutral}))


def count_calls(monkeypatch, method: str) -> collections.Counter:
    """Counts calls of a BatchAttention method from now on, by object."""
    counter, original = collections.Counter(), getattr(al.BatchAttention, method)

    def counted(self, *args, **kwargs):
        counter[id(self)] += 1
        return original(self, *args, **kwargs)

    monkeypatch.setattr(al.BatchAttention, method, counted)
    return counter


def record_steps(monkeypatch, model) -> list[tuple[int, int, int]]:
    """(plans, runs, plans of the object that planned most) of every forward of `model` from now on."""
    plans, runs, steps = count_calls(monkeypatch, "plan"), count_calls(monkeypatch, "run"), []
    forward = type(model).forward

    @functools.wraps(forward)  # generate() reads the signature
    def counted(self, *args, **kwargs):
        plans.clear()
        runs.clear()
        out = forward(self, *args, **kwargs)
        steps.append((plans.total(), runs.total(), max(plans.values(), default=0)))
        return out

    monkeypatch.setattr(type(model), "forward", counted)
    return steps


def left_padded(rows: list[list[int]], device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device),
    }


def generate_alone(model, rows: list[list[int]]) -> list[list[int]]:
    """Tokens of each prompt generated by itself, without padding."""
    return [model.generate(torch.tensor([row], device=model.device), **GREEDY)[0, len(row) :].tolist() for row in rows]


def generate_padded(model, rows: list[list[int]]) -> list[list[int]]:
    """Tokens of all prompts as one left-padded batch."""
    inputs = left_padded(rows, model.device)
    return model.generate(**inputs, **GREEDY)[:, inputs["input_ids"].shape[1] :].tolist()


def batching_config(page_size: int = 16, **options) -> transformers.generation.ContinuousBatchingConfig:
    fields = {field.name for field in dataclasses.fields(transformers.generation.ContinuousBatchingConfig)}
    size = {"page_size" if "page_size" in fields else "block_size": page_size}
    options = {"num_blocks": 64, "max_batch_tokens": 32, **options}
    return transformers.generation.ContinuousBatchingConfig(**size, **options)


def generate_batched(model, rows: list[list[int]], **options) -> list[list[int]]:
    """Tokens of all prompts by continuous batching, in steps of at most 32 tokens."""
    results = model.generate_batch(
        rows,
        generation_config=transformers.GenerationConfig(**GREEDY),
        continuous_batching_config=batching_config(**options),
    )
    assert [result.error for result in results.values()] == [None] * len(rows)
    return [result.generated_tokens for result in results.values()]
