"""The shipped tiles of triton: every head dim and dtype fits every family of GPUs; a reason says by how much not."""

from __future__ import annotations

import pytest
import torch

import attnloom as al
from attnloom.impl.triton import TritonImplementation
from attnloom.impl.triton.candidates import TILES_KV, TILES_Q
from attnloom.impl.triton.configs import ClassConfig
from attnloom.impl.triton.footprint import depth
from attnloom.impl.triton.tables import AMD, FAMILIES, SM86, config_of, family_of
from attnloom.spec import FP8_DTYPES, AttentionSpec
from attnloom.target import Target

DIMS = [(d, d) for d in (16, 32, 64, 80, 96, 112, 128, 192, 256, 512)] + [(192, 128), (576, 512)]
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ARCHS = {"sm80": 80, "sm86": 89, "sm90": 90, "sm100": 100, "AMD": None}
TRITON = TritonImplementation()
CAUSAL = al.variants.causal().program


def spec_of(dims, dtype, page_size=16, kv_dtype=None):
    return AttentionSpec(
        num_qo_heads=8,
        num_kv_heads=2,
        head_dim_qk=dims[0],
        head_dim_vo=dims[1],
        dtype=dtype,
        kv_dtype=kv_dtype or dtype,
        page_size=page_size,
        kv_layout="NHD",
        sm_scale=0.1,
    )


def target_of(family, shared=None):
    arch = ARCHS[family.name]
    return Target("cuda", arch, 100, family.shared if shared is None else shared, f"a GPU of {family.name}")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_tiles_fit(family, dims, dtype):
    spec = spec_of(dims, dtype)
    assert family_of(ARCHS[family.name]) is family
    config = config_of(spec, family)
    assert [one.tile_q for one in config.classes] == sorted({one.tile_q for one in config.classes})
    reasons = TRITON.unsupported_reasons(spec, CAUSAL, target_of(family))
    if family is AMD and dtype == torch.float32 and max(dims) > 256:
        assert len(reasons) == 1, "the one case without a tile that fits"
        return
    assert reasons == []
    assert config.shared_memory(spec, wgmma=family.wgmma) <= family.shared
    reserved = 0 if family is AMD else 1024  # bytes that an SM keeps for itself, a CTA
    for one in config.classes:
        needed = one.shared_memory(spec, wgmma=family.wgmma, paged=True) + reserved
        assert one.ctas_per_sm * needed <= family.per_sm


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
@pytest.mark.parametrize("fp8", FP8_DTYPES, ids=str)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_tiles_of_fp8_caches_fit(family, fp8, dims):
    """They take less than those of 16 bits where the tiles are the same."""
    plain, spec = spec_of(dims, torch.bfloat16), spec_of(dims, torch.bfloat16, kv_dtype=fp8)
    assert TRITON.unsupported_reasons(spec, CAUSAL, target_of(family)) == []
    config = config_of(spec, family)
    assert [one.tile_q for one in config.classes] == sorted({one.tile_q for one in config.classes})
    for one in config.classes:
        needed = one.shared_memory(spec, wgmma=family.wgmma)
        assert needed <= one.shared_memory(plain, wgmma=family.wgmma)
        assert one.ctas_per_sm * (needed + (0 if family is AMD else 1024)) <= family.per_sm
    for found in TRITON.candidate_configs(spec, CAUSAL, target_of(family)):
        assert found.shared_memory(spec, wgmma=family.wgmma) <= family.shared


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_candidates_fit_and_begin_with_the_default(family):
    spec = spec_of((128, 128), torch.bfloat16)
    found = TRITON.candidate_configs(spec, CAUSAL, target_of(family))
    assert found[0] == TRITON.default_config(spec, CAUSAL, target_of(family))
    assert len(set(found)) > 20
    tiles = {(one.tile_q, one.tile_kv) for config in found for one in config.classes}
    if family.wgmma:
        assert tiles >= {(q, kv) for q in TILES_Q for kv in TILES_KV}
    for config in found:
        assert config.shared_memory(spec, wgmma=family.wgmma) <= family.shared
        assert [one.tile_q for one in config.classes] == sorted({one.tile_q for one in config.classes})


def test_the_reason_says_the_numbers():
    spec = spec_of((128, 128), torch.bfloat16)
    (reason,) = TRITON.unsupported_reasons(spec, CAUSAL, target_of(SM86, shared=50_000))
    needed = config_of(spec, SM86).shared_memory(spec, wgmma=False)
    assert needed > 50_000
    assert all(str(part) in reason for part in (needed, 50_000, 128, "bfloat16", "sm86"))


def test_shared_memory_by_hand():
    """q, copies of k and v on their way, page ids, and the weights or the scratch of a moment."""
    spec = spec_of((128, 128), torch.bfloat16)
    decode = ClassConfig(16, 64, 4, 3)
    assert decode.shared_memory(spec, wgmma=False, paged=True) == 16 * 256 + 2 * 64 * 256 + 64 * 4 + 16 * 64 * 2
    assert decode.shared_memory(spec, wgmma=False, paged=False) == 16 * 256 + 2 * 2 * 64 * 256 + 16 * 64 * 2
    assert decode.shared_memory(spec, wgmma=False) == decode.shared_memory(spec, wgmma=False, paged=False)
    prefill = ClassConfig(128, 64, 8, 2)
    assert prefill.shared_memory(spec, wgmma=True) == 128 * 256 + 2 * 2 * 64 * 256 + 8 * 128
    assert prefill.shared_memory(spec, wgmma=False) == 128 * 256 + 2 * 64 * 256 + 8 * 128
    padded = spec_of((112, 112), torch.bfloat16)
    assert prefill.shared_memory(padded, wgmma=True) == prefill.shared_memory(spec, wgmma=True)
    assert [depth(stages, paged=True) for stages in (2, 3, 4, 5, 6, 7)] == [1, 1, 1, 2, 2, 3]
