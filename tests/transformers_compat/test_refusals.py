"""What AttnLoom does not compute is refused with advice, never computed as something else."""

import copy
import sys

import pytest
import torch
import transformers
from transformers import modeling_flash_attention_utils

from attnloom import errors
from attnloom.integrations.transformers import NAME, compat, enable, layer, register
from attnloom.integrations.transformers.features import layer_features
from tests.transformers_compat import models

IDS = torch.tensor([[1, 2, 3, 4]])


@pytest.fixture
def model():
    return enable(models.CASES["llama"].build())


def test_dropout(model):
    model.config.attention_dropout = 0.5
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    model.train()
    with torch.no_grad(), pytest.raises(errors.InvalidArgument, match=r"dropout = 0\.5.*model\.eval\(\)"):
        model(IDS)


def test_gradients(model):
    with pytest.raises(errors.GradientRequired, match="forward only"):
        model(IDS)


def test_masks_of_four_dimensions(model):
    mask = torch.zeros(1, 1, 4, 4)
    with torch.no_grad(), pytest.raises(errors.NotYetSupported, match="4 dimensions"):
        model(IDS, attention_mask=mask)


def test_packed_sequences(model):
    with torch.no_grad(), pytest.raises(errors.NotYetSupported, match="packed_sequence_mask_function"):
        model(IDS, position_ids=torch.tensor([[0, 1, 0, 1]]), use_cache=False)


@pytest.mark.parametrize("name", ["position_bias", "block_table"])
def test_keywords_that_would_change_the_numbers(model, name):
    attention = model.model.layers[0].self_attn
    q, kv = torch.zeros(1, 4, 3, 16), torch.zeros(1, 2, 3, 16)
    with pytest.raises(errors.NotYetSupported, match=name):
        layer.attention(attention, q, kv, kv, **{name: torch.zeros(1)})
    with pytest.raises(errors.InvalidArgument, match="eager"):
        layer.attention(attention, q, kv, kv, output_attentions=True)


def test_a_mask_that_does_not_fit_the_cache(model):
    q, kv = torch.zeros(1, 4, 3, 16), torch.zeros(1, 2, 3, 16)
    mask = torch.tensor([[False, True, True, True]])
    with pytest.raises(errors.ShapeMismatch, match="attention_mask"):
        layer.attention(model.model.layers[0].self_attn, q, kv, kv, mask)


def test_a_refusal_that_lost_its_note_is_still_refused(model):
    """[B, 0] stands for it, which no layer takes."""
    q, kv = torch.zeros(1, 4, 3, 16), torch.zeros(1, 2, 3, 16)
    with pytest.raises(errors.ShapeMismatch, match=r"\(1, 0\)"):
        layer.attention(model.model.layers[0].self_attn, q, kv, kv, torch.ones(1, 0, dtype=torch.bool))


def test_packed_rows_with_a_mask(model):
    q, kv, cu = torch.zeros(1, 4, 3, 16), torch.zeros(1, 2, 3, 16), torch.tensor([0, 1, 3])
    lengths = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu}
    with pytest.raises(errors.NotYetSupported, match="cu_seq_lens_q"):
        layer.attention(model.model.layers[0].self_attn, q, kv, kv, torch.tensor([[False, True, True]]), **lengths)


def test_windows_that_look_both_ways():
    with pytest.raises(errors.InvalidArgument, match="sliding_window = 8"):
        layer_features(causal=False, sliding_window=8, softcap=None, sinks=False, padding=None)


def test_head_dims_that_nothing_computes_are_refused_at_enable():
    config = transformers.LlamaConfig(**{**models.BASE, "head_dim": 24}, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config)
    with pytest.raises(errors.InvalidArgument, match="head_dim = 24"):
        enable(model)
    assert model.config._attn_implementation == "eager"


def test_unknown_implementations_are_refused_at_enable():
    model = models.CASES["llama"].build()
    with pytest.raises(errors.AttnLoomError, match="cuneiform"):
        enable(model, implementation="cuneiform")
    assert model.config._attn_implementation == "eager"


def test_things_that_are_no_model():
    with pytest.raises(errors.InvalidArgument, match="PreTrainedModel"):
        enable(torch.nn.Linear(1, 1))


def test_models_whose_attention_is_their_own(monkeypatch):
    model = models.CASES["llama"].build()
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda cls: False))
    with pytest.raises(errors.NotYetSupported, match="AttentionInterface"):
        enable(model)


def test_models_that_call_flash_attention_themselves(model):
    functions = modeling_flash_attention_utils._lazy_imports(NAME)
    with pytest.raises(errors.NotYetSupported, match="past transformers' AttentionInterface"):
        functions[1](None)


@pytest.mark.parametrize("version", ["4.57.3", "5.16.0"])
def test_transformers_of_another_version(monkeypatch, version):
    monkeypatch.setattr(compat, "_installed", [])
    monkeypatch.setattr(sys.modules["transformers"], "__version__", version)  # not always this file's `transformers`
    with pytest.raises(errors.MissingDependency, match=rf"installed: {version}.*pip install"):
        register()


def test_transformers_missing(monkeypatch):
    monkeypatch.setattr(compat, "_installed", [])
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(errors.MissingDependency, match="pip install"):
        register()


def test_registering_again_patches_nothing_twice():
    register()
    before = modeling_flash_attention_utils._lazy_imports
    register()
    assert modeling_flash_attention_utils._lazy_imports is before


def test_models_loaded_by_name_and_copied_models_run_without_enable():
    model, rows = models.CASES["gpt_oss"].build(), models.prompts()
    expected = models.generate_alone(model, rows)
    copied = copy.deepcopy(enable(model))
    assert models.generate_alone(copied, rows) == expected
    assert models.generate_batched(copied, rows) == expected
