"""Continuous batching on AttnLoom: eager's tokens, one plan a step, and the paged cache read where it lies."""

import collections
import time

import pytest
import torch
import transformers
from transformers.generation.continuous_batching.cache import PagedAttentionCache

import attnloom as al
from attnloom.integrations.transformers import enable
from tests.transformers_compat import models


def lengths(indptr):
    return torch.as_tensor(indptr).diff().tolist()


def pages_of(event):
    """Page ids of each request of a paged plan."""
    return [pages.tolist() for pages in event.inputs.kv.kv_indices.split(lengths(event.inputs.kv.kv_indptr))]


def kv_lengths(event):
    if isinstance(event.inputs.kv, al.RaggedKV):
        return lengths(event.inputs.kv.kv_indptr)
    last, size = event.inputs.kv.kv_last_page_len.tolist(), event.inputs.kv.page_size
    return [(len(pages) - 1) * size + n for pages, n in zip(pages_of(event), last, strict=True)]


def is_mixed(event):
    """One request decodes while another's prompt, or a chunk of it, is read."""
    pairs = list(zip(lengths(event.inputs.qo_indptr), kv_lengths(event), strict=True))
    return any(q == 1 < kv for q, kv in pairs) and any(q > 1 for q, _ in pairs)


def is_chunked(event):
    return any(1 < q < kv for q, kv in zip(lengths(event.inputs.qo_indptr), kv_lengths(event), strict=True))


@pytest.mark.parametrize("name", models.CASES)
def test_tokens_equal_eager(name, device):
    case, rows, events = models.CASES[name], models.prompts(), []
    model = case.build(device)
    expected = models.generate_alone(model, rows)
    assert models.generate_batched(enable(model, on_plan=events.append), rows) == expected
    assert any(map(is_mixed, events))
    assert any(map(is_chunked, events))
    assert {type(event.inputs.kv) for event in events} == {
        {"f": al.PagedKV, "s": al.RaggedKV}[kind] for kind in case.layers
    }


@pytest.mark.parametrize(("name", "feature"), models.SWITCHED)
def test_tokens_differ_without_the_feature(name, feature, monkeypatch, device):
    model, rows = models.CASES[name].build(device), models.prompts()
    expected = models.generate_alone(model, rows)
    enable(model)
    models.switch_off(monkeypatch, feature)
    assert models.generate_batched(model, rows) != expected


@pytest.mark.parametrize("name", models.CASES)
def test_one_plan_a_step_for_each_variant_and_group(name, monkeypatch, device):
    """Layers of gpt-oss share a plan though each has sinks of its own."""
    case = models.CASES[name]
    model = enable(case.build(device))
    steps = models.record_steps(monkeypatch, model)
    models.generate_batched(model, models.prompts())
    assert len(steps) > 8
    assert set(steps) == {(len(set(case.layers)), len(case.layers), 1)}


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_full_attention_reads_the_pool_itself(name, monkeypatch, device):
    """No gather happens in a full layer's update, and `run` gets views of the cache's own storage."""
    case, rows = models.CASES[name], models.prompts()
    model = case.build(device)
    expected = models.generate_alone(model, rows)
    enable(model)
    pools, gathers, caches = set(), collections.Counter(), []
    original_update, original_select = PagedAttentionCache.update, torch.index_select
    original_run, layer_of = al.BatchAttention.run, []

    def update(self, *args, **kwargs):
        layer = kwargs["layer_idx"] if "layer_idx" in kwargs else args[2]
        tensors = [self.cache_tensor] if hasattr(self, "cache_tensor") else [*self.key_cache, *self.value_cache]
        pools.update(tensor.untyped_storage().data_ptr() for tensor in tensors)
        layer_of.append(layer)
        try:
            return original_update(self, *args, **kwargs)
        finally:
            layer_of.pop()

    def index_select(*args, **kwargs):
        if layer_of:
            gathers[layer_of[-1]] += 1
        return original_select(*args, **kwargs)

    def run(self, q, k_cache, v_cache, **kwargs):
        caches.append((k_cache, v_cache))
        return original_run(self, q, k_cache, v_cache, **kwargs)

    monkeypatch.setattr(PagedAttentionCache, "update", update)
    monkeypatch.setattr(torch, "index_select", index_select)
    monkeypatch.setattr(al.BatchAttention, "run", run)
    assert models.generate_batched(model, rows) == expected

    assert set(gathers) == {layer for layer, kind in enumerate(case.layers) if kind == "s"}
    paged = [pair for pair in caches if pair[0].ndim == 4]
    assert len(paged) * len(case.layers) == len(caches) * case.layers.count("f")
    assert len(paged) > 8
    for k_cache, v_cache in paged:
        assert {k_cache.untyped_storage().data_ptr(), v_cache.untyped_storage().data_ptr()} <= pools


def test_requests_arrive_share_a_prefix_and_leave(device):
    """Waves on a running manager: the second prompt shares the first one's pages while both are being answered."""
    model, events = models.CASES["llama"].build(device), []
    long = models.prompts()[2]
    waves = [(long, 40), ([*long[:32], 9, 8, 7], 6), (models.prompts()[1], 12)]
    expected = []
    for row, n in waves:
        tokens = model.generate(torch.tensor([row], device=device), **{**models.GREEDY, "max_new_tokens": n})
        expected.append(tokens[0, len(row) :].tolist())
    enable(model, on_plan=events.append)
    results, started = {}, 0
    with model.continuous_batching_context_manager(
        generation_config=transformers.GenerationConfig(**models.GREEDY),
        continuous_batching_config=models.batching_config(),
    ) as manager:
        deadline = time.monotonic() + 60
        while len(results) < len(waves) and time.monotonic() < deadline:
            if started < len(waves):  # one wave as soon as the one before is seen to be answered
                row, budget = waves[started]
                manager.add_request(row, request_id=str(started), max_new_tokens=budget, streaming=True)
                started += 1
            while (output := manager.get_result(timeout=30)) is not None:
                if output.is_finished():
                    results[output.request_id] = output.generated_tokens
                if started < len(waves) or len(results) == len(waves):
                    break
    assert [results[str(i)] for i in range(len(waves))] == expected
    batch_sizes = [len(pages_of(event)) for event in events]
    assert batch_sizes[0] == 1 < max(batch_sizes)
    assert any(map(is_mixed, events))
    shared = [set(a) & set(b) for event in events for a, b in zip(pages_of(event), pages_of(event)[1:], strict=False)]
    assert max(map(len, shared)) == 2, "32 shared tokens are two pages of 16"


@pytest.mark.parametrize("page_size", [4, 16, 256])
def test_page_sizes(page_size, device):
    model, rows = models.CASES["gpt_oss"].build(device), models.prompts()
    expected = models.generate_alone(model, rows)
    assert models.generate_batched(enable(model), rows, page_size=page_size) == expected


def test_generate_between_batches_keeps_its_own_plans(device):
    model, rows = models.CASES["gemma2"].build(device), models.prompts()
    expected = models.generate_alone(model, rows)
    enable(model)
    for _ in range(2):
        assert models.generate_batched(model, rows) == expected
        assert models.generate_padded(model, rows) == expected


def test_another_implementations_cache_update_is_left_alone(device):
    """The patched update acts for AttnLoom's name only: another model's batches keep transformers' own."""
    rows = models.prompts()
    enable(models.CASES["llama"].build(device))
    other = models.CASES["llama"].build(device)
    expected = models.generate_alone(other, rows)
    other.set_attn_implementation("paged|eager")
    assert models.generate_batched(other, rows) == expected


def test_cuda_graphs_are_refused_and_off_by_default(monkeypatch, device):
    model = enable(models.CASES["llama"].build(device))
    graphs = models.batching_config(use_cuda_graph=True)
    config = transformers.GenerationConfig(**models.GREEDY)
    with pytest.raises(al.errors.InvalidArgument, match="use_cuda_graph"):
        model.generate_batch([[1, 2]], generation_config=config, continuous_batching_config=graphs)
    default = models.batching_config()
    assert default.use_cuda_graph is None
    manager = model.init_continuous_batching(config, default)
    assert not any(manager.continuous_batching_config.cuda_graph_booleans)
    assert default.use_cuda_graph is None
