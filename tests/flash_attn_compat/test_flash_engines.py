"""Engines are kept, bounded, and never shared by threads; equal steps share a plan, other steps do not."""

import threading

import pytest
import torch
from flash_dense import check, cumulative, ints, normal

import attnloom as al
from attnloom.integrations.flash_attn import (
    engines,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    options,
)

H, HKV, D = 4, 2, 32


def qkv(q_len=4, kv_len=6, seed=0):
    shapes = (2, q_len, H, D), (2, kv_len, HKV, D), (2, kv_len, HKV, D)
    return tuple(normal(*shape, seed=seed + i) for i, shape in enumerate(shapes))


@pytest.fixture
def plans(monkeypatch):
    """The arguments of every plan made from here on, by engines made from here on."""
    engines._engine.cache_clear()
    seen, plan = [], al.BatchAttention.plan

    def recorded(self, *args, **kwargs):
        seen.append(args)
        return plan(self, *args, **kwargs)

    monkeypatch.setattr(al.BatchAttention, "plan", recorded)
    return seen


def test_operands_and_lengths_make_no_engine(plans):
    for length in (3, 5, 9):
        for slope in (0.1, 0.7):
            flash_attn_func(*qkv(kv_len=length), causal=True, alibi_slopes=torch.full((H,), slope))
    assert engines._engine.cache_info().currsize == 1
    assert len(plans) == 3
    flash_attn_func(*qkv(), causal=False)
    flash_attn_func(*qkv(), causal=True, window_size=(2, 0))
    flash_attn_func(*qkv(), causal=True, softcap=3.0)
    flash_attn_func(*qkv(), causal=True, softmax_scale=0.3)
    assert engines._engine.cache_info().currsize == 5


def test_what_means_the_same_is_the_same_variant():
    def read(**changed):
        defaults = {"causal": False, "window_size": (-1, -1), "softcap": 0.0, "alibi_slopes": None}
        return options.read_options(**{**defaults, **changed}, batch=2, heads=H)

    assert read(causal=True) == read(window_size=(-1, 0)) == read(causal=True, window_size=(-7, 5))
    assert read(softcap=-1.0) == read() == read(window_size=(2**31 - 1, 1 << 30))
    assert options.build_variant(read()) is None
    slopes = torch.ones(H)
    assert options.build_variant(read(alibi_slopes=slopes)) is options.build_variant(read(alibi_slopes=slopes * 2))


def test_engines_are_bounded(plans):
    given = qkv()
    for left in range(engines.ENGINES + 5):
        flash_attn_func(*given, window_size=(left, 0))
    assert engines._engine.cache_info().currsize == engines.ENGINES
    assert len(plans) == engines.ENGINES + 5


def test_layers_of_a_step_share_a_plan_and_other_lengths_do_not(plans):
    q, k, v = (x.flatten(0, 1) for x in qkv())
    for lengths in ([2, 6], [2, 6], [3, 5], [2, 6]):
        out, lse, _ = flash_attn_varlen_func(
            q, k, v, cumulative(lengths), cumulative([4, 8]), 8, 8, causal=True, return_attn_probs=True
        )
        check((out[: lengths[0]], lse[:, : lengths[0]]), (q[: lengths[0]], k[:4], v[:4]), causal=True)
    assert len(plans) == 3


def test_a_table_or_padding_changed_in_place_is_seen(plans):
    q, k, v = qkv(q_len=1)
    pool = torch.cat((k, k * 0.5)), torch.cat((v, v * 2))
    table, lengths, leftpad = ints([[0], [1]]), ints([6, 4]), ints([0, 0])
    given = {"cache_seqlens": lengths, "block_table": table, "cache_leftpad": leftpad, "return_softmax_lse": True}
    for changed in (None, (table, (0, 0), 3), (lengths, 1, 2), (leftpad, 0, 5), None):
        if changed is not None:
            changed[0][changed[1]] = changed[2]
        out, lse = flash_attn_with_kvcache(q, *pool, **given)
        for b in range(2):
            own = (x[table[b, 0], leftpad[b] : lengths[b]] for x in pool)
            check((out[b], lse[b]), (q[b], *own))
    assert len(plans) == 4


def test_a_refused_plan_leaves_none_behind(plans):
    q, k, v = (x.flatten(0, 1) for x in qkv())
    good = {"cu_seqlens_q": cumulative([2, 6]), "cu_seqlens_k": cumulative([4, 8]), "max_seqlen_q": 6}
    before = flash_attn_varlen_func(q, k, v, **good, max_seqlen_k=8)
    with pytest.raises(al.errors.InvalidMetadata):
        flash_attn_varlen_func(q, k[:5], v[:5], **good, max_seqlen_k=8)
    assert torch.equal(flash_attn_varlen_func(q, k, v, **good, max_seqlen_k=8), before)


def test_threads_do_not_share_engines():
    """Each thread plans an engine of its own: none runs on the plan of another."""
    expected = {n: flash_attn_func(*qkv(kv_len=n), causal=True) for n in range(4, 10)}
    engines._engine.cache_clear()
    wrong, gate = [], threading.Barrier(len(expected))

    def work(n):
        given = qkv(kv_len=n)
        gate.wait()
        wrong.extend(n for _ in range(20) if not torch.equal(flash_attn_func(*given, causal=True), expected[n]))
        gate.wait()  # all are alive until here, so that no two have the same identity

    workers = [threading.Thread(target=work, args=(n,)) for n in expected]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert engines._engine.cache_info().currsize == len(expected)
