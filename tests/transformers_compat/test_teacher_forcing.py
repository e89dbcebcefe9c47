"""bf16: logits with the tokens given err as eager attention's do, and miss by more without each feature."""

import dataclasses

import pytest
import torch
import transformers

from attnloom.integrations.transformers import enable
from tests.transformers_compat import models

CASES = {
    **models.CASES,
    # every token goes to both experts: to which of two it goes may turn on one rounding
    "gpt_oss": dataclasses.replace(
        models.CASES["gpt_oss"], config={**models.CASES["gpt_oss"].config, "num_experts_per_tok": 2}
    ),
    "wide_llama": models.ModelCase(
        "wide_llama",
        "Llama",
        {
            "vocab_size": 1024,
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "head_dim": 64,
            "initializer_range": 0.06,
        },
        (),
        "ffffff",
    ),
}
LENGTHS = (200, 3, 70)
NEW_TOKENS = 8


def set_dtype(model: transformers.PreTrainedModel, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """The parameters in `dtype`; buffers such as the rotary frequencies keep their own, as in `from_pretrained`."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def build(name: str, device: str) -> transformers.PreTrainedModel:
    case = CASES[name]
    model = set_dtype(case.build(device), torch.bfloat16)
    if name == "wide_llama":  # its projections are drawn wide enough
        for parameter_name, weight in model.named_parameters():
            if parameter_name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.data /= 8
    return model


def token_rows(model) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, model.config.vocab_size, (n,), generator=generator).tolist() for n in LENGTHS]


def logits_of(model, rows) -> torch.Tensor:
    """fp32 [tokens, vocabulary] of all rows, as one left-padded batch."""
    inputs = models.left_padded(rows, model.device)
    with torch.no_grad():
        return model(**inputs, use_cache=False).logits[inputs["attention_mask"].bool()].float()


def reference_of(model, rows) -> torch.Tensor:
    """`logits_of` by eager attention in fp32, on the same weights."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    logits = logits_of(set_dtype(model, torch.float32), rows)
    set_dtype(model, torch.bfloat16).set_attn_implementation(implementation)
    return logits


def tolerance(eager: torch.Tensor, reference: torch.Tensor) -> float:
    error, largest = (eager - reference).abs().max(), reference.abs().max()
    return float(2 * error + torch.finfo(torch.bfloat16).eps * largest)


@pytest.mark.parametrize("name", CASES)
def test_logits_err_as_eager_attentions_do(name, device):
    model = build(name, device)
    rows = token_rows(model)
    eager, reference = logits_of(model, rows), reference_of(model, rows)
    got = logits_of(enable(model), rows)
    assert model.dtype == torch.bfloat16
    assert float((got - reference).abs().max()) <= tolerance(eager, reference)


@pytest.mark.parametrize(("name", "feature"), models.SWITCHED)
def test_logits_err_by_more_without_the_feature(name, feature, device, monkeypatch):
    model = build(name, device)
    rows = token_rows(model)
    eager, reference = logits_of(model, rows), reference_of(model, rows)
    models.switch_off(monkeypatch, feature)
    got = logits_of(enable(model), rows)
    assert float((got - reference).abs().max()) > tolerance(eager, reference)


@pytest.mark.parametrize("name", CASES)
def test_served_tokens_are_nearly_the_best(name, device):
    """Continuous batching, from the paged cache in bf16: what a token falls short by is within both errors."""
    model = enable(build(name, device))
    rows = token_rows(model)
    served = models.generate_batched(model, rows)
    fed = [[*row, *tokens[:-1]] for row, tokens in zip(rows, served, strict=True)]
    reference = reference_of(model, fed)
    model.set_attn_implementation("eager")
    limit = 2 * tolerance(logits_of(model, fed), reference)
    ends = torch.tensor([len(row) for row in fed]).cumsum(0).tolist()
    for tokens, end in zip(served, ends, strict=True):
        logits = reference[end - NEW_TOKENS : end]
        chosen = logits.gather(-1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
        assert float((logits.max(dim=-1).values - chosen).max()) <= limit
    assert limit < float(reference.std()), "a token of chance would pass"
