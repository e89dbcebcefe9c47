"""transformers on the kernels themselves: dense caches as pages, block tables, windows, padding and sinks."""

import pytest
import torch
import transformers

from attnloom.integrations.transformers import enable
from tests.transformers_compat import models

NEW_TOKENS = 3


@pytest.fixture(autouse=True)
def _few_tokens(monkeypatch):
    monkeypatch.setitem(models.GREEDY, "max_new_tokens", NEW_TOKENS)
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(50)
    yield
    transformers.logging.set_verbosity(verbosity)


def short_prompts():
    """Within and beyond the window of 8 and a page of 16; the longest takes two steps of 32 tokens."""
    return [row[:length] for row, length in zip(models.prompts(), (5, 14, 37), strict=False)]


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_tokens_equal_eager(name):
    model, rows, events = models.CASES[name].build(), short_prompts(), []
    expected = models.generate_alone(model, rows)
    holes = models.left_padded(rows)
    for row, start in enumerate((34, 26, 5)):
        holes["attention_mask"][row, start : start + 2] = 0
    expected_with_holes = model.generate(**holes, **models.GREEDY)
    enable(model, implementation="triton", on_plan=events.append)
    assert models.generate_alone(model, rows) == expected
    assert models.generate_padded(model, rows) == expected
    assert models.generate_batched(model, rows) == expected
    assert torch.equal(model.generate(**holes, **models.GREEDY), expected_with_holes)
    assert {event.attn.implementation for event in events} == {"triton"}
    assert {event.features.padding for event in events} == {None, "left", "mask"}
