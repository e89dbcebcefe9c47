"""Every tile class that a config may name: q tiles 1 to 128 with kv tiles 32 to 128, one row without tl.dot."""

from __future__ import annotations

import pytest
import torch
from harness import Runner, check

from attnloom.impl.triton import TritonImplementation
from attnloom.impl.triton.configs import ClassConfig, TritonConfig
from attnloom.testing.inputs import random_sequences
from attnloom.testing.placement import Heads, Placement

RUNNER = Runner("triton")
TILE_Q, TILE_KV = (1, 16, 32, 64, 128), (32, 64, 128)

# Decode, append and prefill in one batch; tails of q and kv tiles; a request without keys and one without rows.
QO, KV = [1, 1, 5, 40, 0, 2], [150, 33, 70, 40, 9, 0]


@pytest.fixture
def tiles(monkeypatch):
    """Sets the classes that every engine gets."""

    def use(*classes: ClassConfig) -> None:
        config = TritonConfig(classes)
        monkeypatch.setattr(TritonImplementation, "default_config", lambda *_: config)

    return use


@pytest.mark.parametrize("tile_kv", TILE_KV)
@pytest.mark.parametrize("tile_q", TILE_Q)
def test_every_tile_alone(tiles, tile_q, tile_kv):
    tiles(ClassConfig(tile_q, tile_kv, 1, 1))
    dtype = torch.float16 if tile_kv == 64 else torch.float32
    batch = RUNNER.place(random_sequences(QO, KV, Heads.of(4, 2, 16, dtype)), Placement("csr", 16, seed=tile_q))
    check(RUNNER, batch, RUNNER.pair("causal", batch.sequences), num_ctas=(7,))


def test_one_row_beside_larger_tiles(tiles):
    """Heads of their own decode by rows, what is longer by tiles; two-piece dims and a sink pass the same way."""
    tiles(ClassConfig(1, 32, 1, 1), ClassConfig(16, 32, 1, 1), ClassConfig(64, 64, 1, 1))
    heads = Heads(2, 2, 80, 96, torch.float16)
    batch = RUNNER.place(random_sequences(QO, KV, heads), Placement("csr", 16))
    for name in ("causal", "sinks"):
        check(RUNNER, batch, RUNNER.pair(name, batch.sequences), num_ctas=(5,))
    engine = RUNNER.for_batch(batch)
    engine.plan(batch.qo_indptr, batch.kv, num_ctas=5)
    assert [bool(part.num_items) for part in engine.current_plan.classes] == [True, True, True]
