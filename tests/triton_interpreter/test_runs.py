"""Runs of kv tiles: neighbouring segments in one loop, breaks between them, full tiles before, between and after."""

from __future__ import annotations

import pytest
import torch
from harness import Positions, Runner, check
from oracle import Functors
from variant_pairs import Pair

import attnloom as al
from attnloom.testing.inputs import random_sequences
from attnloom.testing.placement import Heads, Placement
from attnloom.variant.bounds import compile_bounds

RUNNER = Runner("triton")
HEADS = Heads.of(4, 2, 16, torch.float32)
QO, KV = [40, 1, 7, 90], [420, 300, 7, 90]


def islands(q_pos, kv_pos):
    """The past, and two stretches of the future: full, partial and empty tiles between them."""
    d = kv_pos - q_pos
    return (d <= 0) | ((d >= 100) & (d <= 220)) | ((d >= 250) & (d <= 262))


def beyond(q_pos, kv_pos):
    return kv_pos <= q_pos + 37


def causal(q_pos, kv_pos):
    return kv_pos <= q_pos


def window(q_pos, kv_pos):
    return (kv_pos <= q_pos) & (kv_pos >= q_pos - 50)


def gap(q_pos, kv_pos):
    return (kv_pos <= q_pos) & ((kv_pos < 40) | (kv_pos >= 200))


MASKS = {"islands": islands, "beyond": beyond, "causal": causal, "window": window, "gap": gap}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("page_size", [16, 5])
def test_every_key_that_is_seen_counts_once(name, page_size):
    mask = MASKS[name]
    batch = RUNNER.place(random_sequences(QO, KV, HEADS), Placement("csr", page_size))
    pair = Pair(al.Variant(logits_mask=mask), Functors((), mask))
    check(RUNNER, batch, pair, num_ctas=(1, 9))


def test_given_positions_may_hide_keys_of_any_mask():
    batch = RUNNER.place(random_sequences(QO, KV, HEADS), Placement("csr", 16))
    q_pos = torch.arange(batch.q.shape[0], dtype=torch.int32) % 30
    check(RUNNER, batch, RUNNER.pair("causal", batch.sequences), num_ctas=(9,), positions=Positions(q_pos))


@pytest.mark.parametrize(("name", "sees_all"), [(n, n in ("islands", "beyond", "causal")) for n in MASKS])
def test_which_masks_show_the_last_row_every_key(name, sees_all):
    assert compile_bounds(al.Variant(logits_mask=MASKS[name]).program).last_row_sees_all is sees_all


def test_masks_that_depend_on_operands_or_lengths_promise_nothing():
    first_hidden = al.Variant(logits_mask=lambda kv_pos: kv_pos > 3)
    for variant in (al.variants.prefix_lm(), al.variants.custom_mask(), first_hidden):
        assert not compile_bounds(variant.program).last_row_sees_all
    assert compile_bounds(al.Variant().program).last_row_sees_all
