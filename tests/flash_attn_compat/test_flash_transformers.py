"""The calls that transformers makes to the package flash-attn, answered by these functions."""

import inspect

import pytest
import torch
from flash_dense import check, ints, normal

from attnloom.integrations import flash_attn

utils = pytest.importorskip("transformers.modeling_flash_attention_utils")
H, HKV, D = 4, 2, 32


@pytest.fixture(autouse=True)
def package(monkeypatch):
    """transformers finds our functions where it would import flash-attn's, under a name of its own."""
    functions = tuple(getattr(flash_attn, name) for name in flash_attn.__all__)
    if not hasattr(utils, "_lazy_imports") or len(functions) != 3:
        pytest.skip("this transformers imports flash-attn in another way")
    monkeypatch.setattr(utils, "_lazy_imports", lambda *_, **__: (*functions, utils._pad_input, utils._unpad_input))
    for name in ("_loaded_implementation", "_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn", "_pad_fn"):
        monkeypatch.setattr(utils, name, None, raising=False)
    for name in ("_unpad_fn", "_process_flash_kwargs_fn", "_process_with_kvcache_kwargs_fn"):
        monkeypatch.setattr(utils, name, None, raising=False)


def forward(q, k, v, mask=None, **named):
    given = {"is_causal": True, "attn_implementation": "flash_attention_2", **named}
    return utils._flash_attention_forward(q, k, v, mask, q.shape[1], **given)


def tensors(q_len, kv_len):
    q = normal(2, q_len, H, D, seed=1)
    return q, normal(2, kv_len, HKV, D, seed=2), normal(2, kv_len, HKV, D, seed=3)


def expect(out, q, k, v, **options):
    """Only out is known: its lse comes from a call of ours on the same rows, and is checked with it."""
    _, lse, _ = flash_attn.flash_attn_func(q[None], k[None], v[None], return_attn_probs=True, **options)
    check((out, lse[0]), (q, k, v), **options)


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ({}, {"causal": True}),
        ({"softcap": 1.5, "softmax_scale": 0.3}, {"causal": True, "softcap": 1.5, "softmax_scale": 0.3}),
        ({"sliding_window": 4}, {"causal": True, "window_size": (3, 0)}),
        ({"is_causal": False}, {}),
    ],
)
def test_batches_without_padding(named, options):
    q, k, v = tensors(6, 9)
    out = forward(q, k, v, **named)
    for b in range(2):
        expect(out[b], q[b], k[b], v[b], **options)


def test_padding_becomes_lengths():
    q, k, v = tensors(7, 7)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    out = forward(q, k, v, mask)
    for b in range(2):
        kept = mask[b].bool()
        expect(out[b, kept], q[b, kept], k[b, kept], v[b, kept], causal=True)
    assert not out[0, :2].any()


def test_packed_sequences():
    q, k, v = (x[:1] for x in tensors(9, 9))
    starts = ints([0, 4, 9])
    out = forward(q, k, v, cu_seq_lens_q=starts, cu_seq_lens_k=starts, max_length_q=5, max_length_k=5)
    for part in (slice(0, 4), slice(4, 9)):
        expect(out[0, part], q[0, part], k[0, part], v[0, part], causal=True)


def test_decoding_over_a_block_table():
    """Continuous batching's fast path: one token a request is appended and attended to."""
    if "block_table" not in inspect.signature(utils._flash_attention_forward).parameters:
        pytest.skip("this transformers keeps its fast path elsewhere")
    q, k, v = (x[:1] for x in tensors(3, 3))  # three requests, one token each
    pool = normal(6, 4, HKV, D, seed=4), normal(6, 4, HKV, D, seed=5)
    table = ints([[5, 0], [3, -1], [1, 2]])
    total = [6, 3, 5]
    starts = ints([0, 6, 9, 14])
    named = {"k_cache": pool[0], "v_cache": pool[1], "block_table": table, "cu_seq_lens_k": starts}
    out = forward(q, k, v, **named, cu_seq_lens_q=ints([0, 1, 2, 3]), max_length_q=1, max_length_k=6)
    for b, length in enumerate(total):
        page = table[b, (length - 1) // 4]
        assert torch.equal(pool[0][page, (length - 1) % 4], k[0, b])
        own = (x[table[b].clamp(min=0).long()].flatten(0, 1)[:length] for x in pool)
        expect(out[0, b : b + 1], q[0, b : b + 1], *own, causal=True)
