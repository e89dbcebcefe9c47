"""The reference implementation against examples of two or three tokens, worked out by hand.

Keys hold logarithms in their first dimension, q is 1 there and sm_scale is 1: so a key of log w has weight w.
"""

import math

import pytest
import torch

import attnloom as al
from attnloom.impl.reference import ReferenceImplementation

D = 16
NINF = -math.inf


def rows(*values):
    """[tokens, 1, D] with `values` in the first dimension."""
    out = torch.zeros(len(values), 1, D)
    out[:, 0, 0] = torch.tensor(values)
    return out


def keys(*weights):
    return rows(*(math.log(w) for w in weights))


def run(variant, q, k, v, *, sm_scale=1.0, **options):
    """(first dimension of out [rows, heads], lse [rows, heads])."""
    attn = al.BatchAttention(
        num_qo_heads=q.shape[1],
        num_kv_heads=k.shape[-2],
        head_dim=D,
        dtype=q.dtype,
        variant=variant,
        sm_scale=sm_scale,
        device="cpu",
        implementation="reference",
    )
    attn.plan([0, q.shape[0]], al.RaggedKV([0, k.shape[0]]))
    out, lse = attn.run(q, k, v, return_lse=not options.get("return_state"), **options)
    return out[..., 0], lse


def near(given, expected):
    torch.testing.assert_close(given, torch.tensor(expected, dtype=given.dtype), atol=1e-6, rtol=1e-6)


def test_full_attention_of_one_row():
    out, lse = run(None, rows(1.0), keys(1, 3), rows(4.0, 8.0))  # (4 + 3·8) / 4
    near(out, [[7.0]])
    near(lse, [[math.log(4)]])


def test_sm_scale_multiplies_scores():
    given = rows(1.0), keys(1, 3), rows(4.0, 8.0)
    for sm_scale, expected, weight in (
        (2.0, 7.6, 10),
        (0.0, 6.0, 2),
        (-1.0, 5.0, 4 / 3),
    ):  # the weight of log 3: 9, 1, 1/3
        out, lse = run(None, *given, sm_scale=sm_scale)
        near(out, [[expected]])
        near(lse, [[math.log(weight)]])
    near(run(None, rows(2.0), *given[1:])[0], [[7.6]])  # a longer q does the same


def test_causal_rows_of_a_prompt_and_of_a_continuation():
    k, v = keys(1, 3, 4), rows(4.0, 8.0, 1.0)
    out, lse = run(al.variants.causal(), rows(1.0, 1.0, 1.0), k, v)
    near(out, [[4.0], [7.0], [4.0]])  # 4; (4 + 24) / 4; (4 + 24 + 4) / 8
    near(lse, [[0.0], [math.log(4)], [math.log(8)]])
    out, lse = run(al.variants.causal(), rows(1.0, 1.0), k, v)  # the last two rows of the same
    near(out, [[7.0], [4.0]])
    near(lse, [[math.log(4)], [math.log(8)]])


def test_rows_that_see_nothing():
    out, lse = run(al.variants.causal(), rows(1.0, 1.0, 1.0), keys(2), rows(5.0))
    assert out.tolist() == [[0.0], [0.0], [5.0]]
    near(lse, [[NINF], [NINF], [math.log(2)]])
    out, lse = run(None, rows(1.0), keys(2)[:0], rows(5.0)[:0])
    assert out.tolist() == [[0.0]]
    assert lse.tolist() == [[NINF]]


def test_a_window_counts_the_token_itself_separately():
    k, v = keys(1, 3, 4), rows(4.0, 8.0, 1.0)
    for left, expected, weight in ((0, 1.0, 4), (1, 4.0, 7), (2, 4.0, 8)):  # 1; (24 + 4) / 7; all
        out, lse = run(al.variants.causal() & al.variants.sliding_window(left), rows(1.0), k, v)
        near(out, [[expected]])
        near(lse, [[math.log(weight)]])


def test_a_transform_comes_before_the_mask_and_sees_positions():
    """ALiBi of slope log 2: the key one before weighs half, the one two before a quarter."""
    out, lse = run(al.variants.alibi(torch.tensor([math.log(2)])), rows(1.0), keys(4, 2, 1), rows(1.0, 2.0, 6.0))
    near(out, [[3.0]])  # weights 4/4, 2/2, 1
    near(lse, [[math.log(3)]])


def test_soft_cap_by_hand():
    """tanh(log 3) = (9 − 1) / (9 + 1) = 0.8; tanh(0) = 0."""
    out, lse = run(al.variants.soft_cap(1.0), rows(1.0), keys(1, 3), rows(0.0, 1.0))
    near(out, [[math.exp(0.8) / (1 + math.exp(0.8))]])
    near(lse, [[math.log(1 + math.exp(0.8))]])


def test_a_sink_and_the_raw_state_without_it():
    variant = al.variants.sinks(torch.tensor([math.log(4)]))
    given = rows(1.0), keys(1, 3), rows(4.0, 8.0)
    out, lse = run(variant, *given)
    near(out, [[3.5]])  # (4 + 24) / 8
    near(lse, [[math.log(8)]])
    out, lse = run(variant, *given, return_state=True)
    near(out, [[7.0]])
    near(lse, [[math.log(4)]])


def test_sigmoid_sums_weights():
    attn = al.BatchAttention(
        num_qo_heads=1, num_kv_heads=1, head_dim=D, dtype=torch.float32, variant=al.variants.sigmoid(),
        sm_scale=1.0, device="cpu", implementation="reference",
    )  # fmt: skip
    attn.plan([0, 1], al.RaggedKV([0, 2]))
    near(attn.run(rows(1.0), keys(1, 3), rows(4.0, 8.0))[..., 0], [[8.0]])  # 4 · 1/2 + 8 · 3/4


def test_query_heads_share_their_kv_head():
    q = torch.cat((rows(1.0), rows(2.0), rows(0.0), rows(1.0)), 1)  # two heads for each of two kv heads
    k, v = torch.cat((keys(1, 3), keys(1, 1)), 1), torch.cat((rows(4.0, 8.0), rows(2.0, 6.0)), 1)
    out, lse = run(None, q, k, v)
    near(out, [[7.0, 7.6, 4.0, 4.0]])
    near(lse, [[math.log(4), math.log(10), math.log(2), math.log(2)]])


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
def test_requests_over_permuted_pages(kv_layout):
    """Pages of two tokens: request 0 owns page 2 and half of page 0, request 1 half of page 3, request 2 nothing."""
    k, v = torch.full((4, 2, 1, D), math.nan), torch.full((4, 2, 1, D), math.nan)
    for page, offset, weight, value in ((2, 0, 1, 4.0), (2, 1, 3, 8.0), (0, 0, 4, 1.0), (3, 0, 9, 5.0)):
        k[page, offset], v[page, offset] = keys(weight)[0], rows(value)[0]
    if kv_layout == "HND":
        k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
    page = al.PagedKV([0, 2, 3, 3], [2, 0, 3], [1, 1, 0], page_size=2)
    attn = al.BatchAttention(
        num_qo_heads=1, num_kv_heads=1, head_dim=D, dtype=torch.float32, variant=al.variants.causal(), sm_scale=1.0,
        kv_layout=kv_layout, device="cpu", implementation="reference",
    )  # fmt: skip
    attn.plan([0, 2, 3, 4], page)
    out, lse = attn.run(rows(1.0, 1.0, 1.0, 1.0), k, v, return_lse=True)
    near(out[..., 0], [[7.0], [4.0], [5.0], [0.0]])
    near(lse, [[math.log(4)], [math.log(8)], [math.log(9)], [NINF]])


def test_what_a_functor_may_ask_for(launched):
    """Each name as a logit of its own: two requests, the second with 2 rows over 3 keys and 2 heads on one kv head."""

    def score(logits, q_pos, kv_pos, q_idx, *, qo_head, kv_head, batch, qo_len, kv_len):
        digits = q_pos, kv_pos, q_idx, qo_head, kv_head, batch, qo_len, kv_len
        return logits + sum(digit * 10.0**place for place, digit in enumerate(digits))

    attn = al.BatchAttention(
        num_qo_heads=2, num_kv_heads=1, head_dim=D, dtype=torch.float32, variant=al.Variant(logits_transform=score),
        sm_scale=1.0, device="cpu", implementation="reference",
    )  # fmt: skip
    attn.plan([0, 1, 3], al.RaggedKV([0, 1, 4]))
    attn.run(torch.zeros(3, 2, D), torch.zeros(4, 1, D), torch.zeros(4, 1, D))
    seen = ReferenceImplementation(torch.float64).dump_logits(*launched[0])
    assert seen[0].tolist() == [[[11000000.0]], [[11001000.0]]]  # kv_len 1, qo_len 1, batch 0
    for head in range(2):
        for row in range(2):
            expected = [32100000 + head * 1000 + row * 100 + key * 10 + (row + 1) for key in range(3)]
            assert seen[1][head, row].tolist() == expected


def test_what_no_row_sees_may_be_nan():
    k, v = keys(1, 3, 4), rows(4.0, 8.0, 1.0)
    k[0], v[0] = math.nan, math.nan
    out, lse = run(al.Variant(logits_mask=lambda kv_pos: kv_pos >= 1), rows(1.0), k, v)
    near(out, [[4.0]])  # (24 + 4) / 7
    near(lse, [[math.log(7)]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_out_has_the_type_of_the_inputs(dtype):
    out, lse = run(None, rows(1.0).to(dtype), rows(0.0, 0.0).to(dtype), rows(4.0, 8.0).to(dtype))
    assert out.dtype == dtype
    assert out.tolist() == [[6.0]]
    near(lse, [[math.log(2)]])
