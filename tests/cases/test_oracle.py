"""The oracle against closed forms and torch's own attention; it must be right before anything is measured by it."""

import ast
import math
from pathlib import Path

import oracle
import pytest
import torch
from oracle import Functors, Request


def request(qo: int, kv: int, *, heads: int = 4, kv_heads: int = 2, dim: int = 16, dtype=torch.float64) -> Request:
    generator = torch.Generator().manual_seed(qo * 1000 + kv)

    def normal(n: int, h: int) -> torch.Tensor:
        return torch.randn(n, h, dim, generator=generator, dtype=torch.float64).to(dtype)

    return Request(normal(qo, heads), normal(kv, kv_heads), normal(kv, kv_heads), index=1)


def test_it_imports_nothing_of_the_engine():
    tree = ast.parse(Path(oracle.__file__).read_text())
    imported = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    imported += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    assert imported
    assert not [name for name in imported if name.startswith("attnloom")]


def test_equals_torch_attention():
    r = request(5, 9)
    result = oracle.attend(r, oracle.causal(), 0.3)
    mask = torch.ones(5, 9, dtype=torch.bool).tril(4)
    q, k, v = (x.transpose(0, 1)[None] for x in (r.q, r.k, r.v))
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(result.out, theirs[0].transpose(0, 1))
    logits = 0.3 * torch.einsum("qhd,khd->qhk", r.q, r.k.repeat_interleave(2, 1))
    lse = torch.logsumexp(logits.masked_fill(~mask[:, None], -torch.inf), -1)
    torch.testing.assert_close(result.lse, lse)


def test_zero_queries_give_the_mean_and_ln_count():
    r = request(3, 8)
    result = oracle.attend(Request(torch.zeros_like(r.q), r.k, r.v), oracle.causal(), 1.0)
    for row in range(3):
        mean = r.v[: 6 + row].mean(0).repeat_interleave(2, 0)
        torch.testing.assert_close(result.out[row], mean)
        torch.testing.assert_close(result.lse[row], torch.full((4,), math.log(6 + row), dtype=torch.float64))


@pytest.mark.parametrize(("qo", "kv"), [(5, 3), (2, 0), (0, 4)])
def test_rows_without_a_key_are_the_identity(qo, kv):
    result = oracle.attend(request(qo, kv), oracle.causal(), 1.0)
    blind = max(qo - kv, 0)
    assert (result.out[:blind] == 0).all()
    assert torch.isneginf(result.lse[:blind]).all()
    assert torch.isfinite(result.lse[blind:]).all()


def test_sink_is_one_more_logit_without_a_value():
    r = request(2, 3)
    values = torch.tensor([0.5, -1.0, 2.0, 30.0])
    plain, sunk = oracle.attend(r, Functors(), 1.0), oracle.attend(r, oracle.sinks(values), 1.0)
    share = plain.lse.exp() / (plain.lse.exp() + values.exp())
    torch.testing.assert_close(sunk.out, plain.out * share[..., None])
    torch.testing.assert_close(sunk.lse, (plain.lse.exp() + values.exp()).log())
    empty = oracle.attend(request(2, 0), oracle.sinks(values), 1.0)
    assert (empty.out == 0).all()
    torch.testing.assert_close(empty.lse, values.double().expand(2, 4))


def test_sigmoid_weights_are_summed():
    r = request(2, 3)
    result = oracle.attend(r, oracle.causal() & oracle.sigmoid(-1.0), 0.5)
    logits = 0.5 * torch.einsum("qhd,khd->qhk", r.q, r.k.repeat_interleave(2, 1)) - 1.0
    weights = torch.sigmoid(logits) * torch.ones(2, 3).tril(1)[:, None]
    torch.testing.assert_close(result.out, torch.einsum("qhk,khd->qhd", weights, r.v.repeat_interleave(2, 1)))
    assert result.lse is None


def test_transforms_run_left_to_right():
    r = request(1, 4)
    plus = Functors(logits=(lambda logits: logits + 1,))
    double = Functors(logits=(lambda logits: logits * 2,))
    lse = oracle.attend(r, plus & double, 1.0).lse - oracle.attend(r, double & plus, 1.0).lse
    torch.testing.assert_close(lse, torch.ones_like(lse))  # (x + 1) * 2 against x * 2 + 1


def test_unseen_keys_may_hold_anything():
    r = request(2, 6)
    clean = oracle.attend(r, oracle.sliding_window(1) & oracle.causal(), 1.0)
    r.k[:3], r.v[:3] = math.nan, math.inf
    dirty = oracle.attend(r, oracle.sliding_window(1) & oracle.causal(), 1.0)
    assert torch.equal(clean.out, dirty.out)


def test_functors_get_what_their_names_ask_for():
    seen = {}

    def record(*, kv_pos, q_pos, qo_head, kv_head, batch, qo_len, kv_len, q_idx, logits):
        seen.update(locals())
        return logits

    oracle.attend(request(2, 3), Functors(logits=(record,)), 1.0)
    assert seen["q_pos"][0, :, 0].tolist() == [1, 2]
    assert seen["q_idx"][0, :, 0].tolist() == [0, 1]
    assert seen["kv_pos"][0, 0].tolist() == [0, 1, 2]
    assert seen["qo_head"][:, 0, 0].tolist() == [0, 1, 2, 3]
    assert seen["kv_head"][:, 0, 0].tolist() == [0, 0, 1, 1]
    assert (seen["batch"][0, 0, 0], seen["qo_len"][0, 0, 0], seen["kv_len"][0, 0, 0]) == (1, 2, 3)


def test_the_model_keeps_storage_types_and_errs_accordingly():
    errors = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        r = request(4, 64, dtype=dtype)
        exact, low = oracle.attend(r, Functors(), 0.25), oracle.model(r, Functors(), 0.25)
        assert low.out.dtype == dtype
        assert low.lse.dtype == torch.float32
        errors[dtype] = (low.out.double() - exact.out).abs().max().item()
    assert 0 < errors[torch.float32] < 1e-5 < errors[torch.float16] < errors[torch.bfloat16] < 3e-2
