"""generate() on AttnLoom gives eager attention's tokens, and would not without each feature."""

import contextlib

import pytest
import torch
import transformers

import attnloom as al
from attnloom.integrations.transformers import NAME, enable, layer
from tests.transformers_compat import models


@contextlib.contextmanager
def plans_under(device):
    """Every attention call runs with `device` as torch's default; its own tensors are on the model's."""
    original = layer._dense, layer._batched

    def under(function):
        def inner(*args):
            with torch.device(device):
                return function(*args)

        return inner

    layer._dense, layer._batched = map(under, original)
    try:
        yield
    finally:
        layer._dense, layer._batched = original


@pytest.mark.parametrize("name", models.CASES)
def test_tokens_equal_eager(name, device):
    model, rows = models.CASES[name].build(device), models.prompts()
    alone, padded = models.generate_alone(model, rows), models.generate_padded(model, rows)
    assert padded == alone
    assert enable(model) is model
    assert model.config._attn_implementation == NAME
    assert models.generate_alone(model, rows) == alone
    assert models.generate_padded(model, rows) == alone


@pytest.mark.parametrize("name", models.CASES)
def test_one_plan_a_step_on_the_cache_itself(name, monkeypatch, device):
    """A padded step plans once for each variant; K and V come as the cache's own tensors, never a copy of them.

    Sliding layers whose window is full and has left the padding behind need no new plan any more.
    """
    case, handed, updated = models.CASES[name], [], []
    model = enable(case.build(device))
    steps = models.record_steps(monkeypatch, model)
    run, update = al.BatchAttention.run, transformers.DynamicCache.update

    def spied_run(self, q, k_cache, v_cache, **kwargs):
        handed.append((k_cache.data_ptr(), k_cache.stride(), v_cache.data_ptr(), v_cache.stride()))
        return run(self, q, k_cache, v_cache, **kwargs)

    def spied_update(self, *args, **kwargs):
        k, v = update(self, *args, **kwargs)
        updated.append((k.data_ptr(), k.stride(), v.data_ptr(), v.stride()))
        return k, v

    monkeypatch.setattr(al.BatchAttention, "run", spied_run)
    monkeypatch.setattr(transformers.DynamicCache, "update", spied_update)
    models.generate_padded(model, models.prompts())
    full, sliding = "f" in case.layers, "s" in case.layers
    assert steps[0] == (full + sliding, len(case.layers), 1)
    assert {plans for plans, *_ in steps} == ({full, full + sliding} if sliding else {full})
    assert max(most for *_, most in steps) == 1
    assert handed == updated
    assert len(handed) == len(case.layers) * models.GREEDY["max_new_tokens"]


@pytest.mark.parametrize(("name", "feature"), models.SWITCHED)
def test_tokens_differ_without_the_feature(name, feature, monkeypatch, device):
    model, rows = models.CASES[name].build(device), models.prompts()
    expected = models.generate_alone(model, rows)
    enable(model)
    models.switch_off(monkeypatch, feature)
    assert models.generate_alone(model, rows) != expected


@pytest.mark.parametrize("name", models.CASES)
def test_tokens_differ_when_padding_is_ignored(name, monkeypatch, device):
    model, rows = models.CASES[name].build(device), models.prompts()
    expected = models.generate_padded(model, rows)
    enable(model)
    models.switch_off(monkeypatch, "padding")
    assert models.generate_padded(model, rows) != expected


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_masks_with_holes(name, device):
    """Padding in the middle of a row, as turns of a padded chat leave it."""
    model, rows = models.CASES[name].build(device), models.prompts()
    inputs = models.left_padded(rows, device)
    for row, start in enumerate((46, 30, 5, 38, 12)):
        inputs["attention_mask"][row, start : start + 3] = 0
    expected = model.generate(**inputs, **models.GREEDY)
    assert not torch.equal(expected, model.generate(**models.left_padded(rows, device), **models.GREEDY))
    torch.testing.assert_close(enable(model).generate(**inputs, **models.GREEDY), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_static_cache(name, device):
    """A static cache hands over slots that nothing was written to."""
    model, rows = models.CASES[name].build(device), models.prompts()
    inputs = models.left_padded(rows, device)
    expected = model.generate(**inputs, **models.GREEDY)
    options = {**models.GREEDY, "cache_implementation": "static", "disable_compile": True}  # a GPU compiles by itself
    tokens = enable(model).generate(**inputs, **options)
    torch.testing.assert_close(tokens, expected, rtol=0, atol=0)


def test_beam_search_and_sampled_batches_reorder_the_cache(device):
    model, rows = models.CASES["llama"].build(device), models.prompts()
    options = {**models.GREEDY, "num_beams": 3, "num_return_sequences": 2}
    inputs = models.left_padded(rows, device)
    expected = model.generate(**inputs, **options)
    torch.testing.assert_close(enable(model).generate(**inputs, **options), expected, rtol=0, atol=0)


def test_logits_without_a_cache(device):
    model, rows = models.CASES["gpt_oss"].build(device), models.prompts()
    inputs = models.left_padded(rows, device)
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        expected = model(**inputs, use_cache=False).logits[real]
        got = enable(model)(**inputs, use_cache=False).logits[real]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_causal", [True, False])
def test_packed_rows_equal_rows_apart(is_causal, device):
    """Sequences of 3, 1 and 7 in one row, told apart by cu_seq_lens."""
    generator, attention = torch.Generator().manual_seed(2), torch.nn.Module()
    q, k, v = (torch.randn(1, heads, 11, 16, generator=generator).to(device) for heads in (4, 2, 2))
    cu = torch.tensor([0, 3, 4, 11], dtype=torch.int32, device=device)
    got, weights = layer.attention(attention, q, k, v, is_causal=is_causal, cu_seq_lens_q=cu, cu_seq_lens_k=cu)
    parts = [
        torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=is_causal, enable_gqa=True)
        for parts in zip(*(x.split([3, 1, 7], dim=2) for x in (q, k, v)), strict=True)
    ]
    assert weights is None
    torch.testing.assert_close(got, torch.cat(parts, dim=2).transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_switching_back_leaves_attnloom(device):
    model, rows = models.CASES["llama"].build(device), models.prompts()[:1]
    expected = models.generate_alone(model, rows)
    enable(model).set_attn_implementation("eager")
    assert model.config._attn_implementation == "eager"
    assert models.generate_alone(model, rows) == expected


def test_torchs_default_device_does_not_reach_the_plan(device):
    """`torch.set_default_device` is common with GPUs: index arrays are made where the planner reads them."""
    model, rows = models.CASES["gemma2"].build(device), models.prompts()
    expected = models.generate_alone(model, rows)
    enable(model)
    other = "meta" if device == "cpu" else device  # where nothing can be read, so that a stray array is noticed
    steps = {"padded": models.generate_padded, "batched": models.generate_batched}
    for name, generate in steps.items():
        with plans_under(other):
            assert generate(model, rows) == expected, name
