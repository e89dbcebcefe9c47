"""Adapters of peers hand over the right tensors: torch's own run here, the others' places are taken by plain torch.

The stand-ins have those parameters of `flashinfer-python` 0.6.13 and `fa3-fwd` 0.0.3 that the adapters use.
"""

from __future__ import annotations

import sys
import types

import oracle
import pytest
import torch
from bench_fakes import small

from attnloom.bench.gpu import engine
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peers import all_peers, flashinfer_modules

WORKLOADS = ("constant_2x40", "sharegpt_3_seed7")


def attend(q, k, v, causal):
    mask = oracle.Functors(mask=lambda q_pos, kv_pos: kv_pos <= q_pos) if causal else oracle.Functors()
    return oracle.attend(oracle.Request(q, k, v), mask, q.shape[-1] ** -0.5).out.to(q.dtype)


def attend_packed(q, k, v, indptrs, causal):
    """q, k, v packed by cumulative lengths (int32, like the peers want them)."""
    assert [x.dtype for x in indptrs] == [torch.int32] * 2
    qo, kv = (x.tolist() for x in indptrs)
    pieces = [attend(q[a:b], k[c:d], v[c:d], causal) for a, b, c, d in zip(qo, qo[1:], kv, kv[1:], strict=False)]
    return torch.cat(pieces)


class Planned:
    """What FlashInfer's wrappers have in common."""

    def __init__(self, workspace, kv_layout="NHD", use_tensor_cores=None, backend="auto"):
        assert (workspace.dtype, kv_layout) == (torch.uint8, "NHD")
        assert not workspace.any()


class PagedPrefill(Planned):
    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, *, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, causal=False, q_data_type="float16", kv_data_type=None,
    ):  # fmt: skip
        self.pages = paged_kv_indptr.tolist(), paged_kv_indices.long(), paged_kv_last_page_len.tolist()
        self.qo_indptr, self.page_size, self.causal = qo_indptr, page_size, causal
        self.shape = (num_qo_heads, num_kv_heads, head_dim_qk, q_data_type, kv_data_type)

    def run(self, q, paged_kv_cache, *, out=None):
        indptr, ids, last = self.pages
        assert self.shape == (q.shape[1], paged_kv_cache[0].shape[2], q.shape[2], q.dtype, paged_kv_cache[0].dtype)
        assert paged_kv_cache[0].shape[1] == self.page_size
        lens = [(b - a - 1) * self.page_size + n for a, b, n in zip(indptr, indptr[1:], last, strict=False)]
        k, v = (
            torch.cat([x[ids[a:b]].flatten(0, 1)[:n] for a, b, n in zip(indptr, indptr[1:], lens, strict=False)])
            for x in paged_kv_cache
        )
        tokens = torch.tensor([0, *lens]).cumsum(0).int()
        return out.copy_(attend_packed(q, k, v, (self.qo_indptr, tokens), self.causal))


class RaggedPrefill(Planned):
    def plan(
        self, qo_indptr, kv_indptr, *, num_qo_heads, num_kv_heads, head_dim_qk, causal=False, q_data_type="float16",
        kv_data_type=None,
    ):  # fmt: skip
        self.indptrs, self.causal = (qo_indptr, kv_indptr), causal

    def run(self, q, k, v, *, out=None):
        return out.copy_(attend_packed(q, k, v, self.indptrs, self.causal))


class PagedDecode(PagedPrefill):
    def plan(self, *given, q_data_type="float16", kv_data_type=None):
        indptr, indices, last_page_len, *sizes = given
        names = ("num_qo_heads", "num_kv_heads", "head_dim_qk", "page_size")
        options = dict(zip(names, sizes, strict=True), q_data_type=q_data_type, kv_data_type=kv_data_type)
        super().plan(torch.arange(len(indptr)).int(), indptr, indices, last_page_len, **options)


def flash_attn_func(q, k, v, *, causal=False, num_splits=1, pack_gqa=None):
    return torch.stack([attend(*each, causal) for each in zip(q, k, v, strict=True)])


def flash_attn_varlen_func(*given, causal=False, num_splits=1, pack_gqa=None):
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k = given
    assert (cu_seqlens_q.diff().max(), cu_seqlens_k.diff().max()) == (max_seqlen_q, max_seqlen_k)
    return attend_packed(q, k, v, (cu_seqlens_q, cu_seqlens_k), causal), "lse"


def flash_attn_with_kvcache(q, k_cache, v_cache, *, cache_seqlens=None, causal=False, num_splits=0, pack_gqa=None):
    each = zip(q, k_cache, v_cache, cache_seqlens.tolist(), strict=True)
    return torch.stack([attend(one, k[:n], v[:n], causal) for one, k, v, n in each])


@pytest.fixture
def peers(monkeypatch):
    """Every peer, by id, with stand-ins for what is not installed."""
    flashinfer = types.ModuleType("flashinfer")
    flashinfer.BatchPrefillWithPagedKVCacheWrapper = PagedPrefill
    flashinfer.BatchPrefillWithRaggedKVCacheWrapper = RaggedPrefill
    flashinfer.BatchDecodeWithPagedKVCacheWrapper = PagedDecode
    fa3 = types.ModuleType("fa3_fwd_interface")
    for function in (flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache):
        setattr(fa3, function.__name__, function)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", fa3)
    monkeypatch.setattr(flashinfer_modules, "unavailable_reason", lambda backend: None)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # FlexAttention's eager form
    return {peer.id: peer for peer in all_peers()}


def check(peer, batch, skipped=()):
    """Names of the settings, each of which computed causal attention, also once planned again."""
    settings = [setting for setting in peer.settings(batch) if setting.name not in skipped]
    for setting in settings:
        prepared = setting.prepare()
        assert engine.wrong_rows(batch, prepared.rows(prepared.call())) is None, setting.name
        if prepared.plan is not None:
            prepared.plan()
            assert engine.wrong_rows(batch, prepared.rows(prepared.call())) is None, setting.name
    return [setting.name for setting in settings]


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("name", ["flashinfer-paged-fa2", "flashinfer-paged-fa3", "flashinfer-ragged-fa2", "fa3"])
@pytest.mark.parametrize("mode", ["prefill", "mixed"])
def test_prefill(peers, name, workload, mode):
    batch = DeviceBatch(small(workload=workload, mode=mode, dtype="bf16", page_size=7))
    names = check(peers[name], batch)
    if name == "fa3":
        assert len([n for n in names if n.startswith("varlen")]) == 3
        assert any(n.startswith("batched") for n in names) == batch.is_constant


@pytest.mark.parametrize("name", ["flashinfer-paged-fa3", "flashinfer-ragged-fa3", "fa3"])
def test_prefill_that_is_not_causal(peers, name):
    batch = DeviceBatch(small(workload="sharegpt_3_seed7", mode="prefill", dtype="bf16", page_size=7, causal=False))
    assert check(peers[name], batch)
    causal = DeviceBatch(small(workload="sharegpt_3_seed7", mode="prefill", dtype="bf16", page_size=7))
    prepared = peers[name].settings(causal)[0].prepare()
    assert engine.wrong_rows(batch, prepared.rows(prepared.call())) is not None  # the check tells one from the other


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("name", ["flashinfer-decode-cuda", "flashinfer-decode-tensor", "fa3"])
def test_decode(peers, name, workload):
    batch = DeviceBatch(small(workload=workload, dtype="bf16", page_size=7))
    names = check(peers[name], batch)
    if name == "flashinfer-decode-tensor":
        assert names == ["tensor cores, fa2", "tensor cores, fa3"]
    if name == "fa3":
        assert [n.partition(",")[0] for n in names] == ["varlen", "padded cache"] * 6


def test_fa3_tries_no_cache_that_is_mostly_padding(peers):
    batch = DeviceBatch(small(workload="zipf_16x1024", dtype="bf16", heads=(1, 1), head_dim=16))
    assert all(setting.name.startswith("varlen") for setting in peers["fa3"].settings(batch))


@pytest.mark.parametrize(("mode", "causal"), [("prefill", True), ("prefill", False), ("decode", True)])
@pytest.mark.parametrize("name", ["torch-fa2", "torch-cudnn"])
def test_torch(peers, name, mode, causal, monkeypatch):
    """The CPU has neither cuDNN nor the operator below FA2; their calls go to the back end that it has."""
    from attnloom.bench.gpu.peers import torch_fa2

    backends, real = [], torch_fa2.sdpa_kernel

    def here(backend):
        backends.append(backend.name)
        return real(list(torch.nn.attention.SDPBackend.__members__.values())[1:])

    monkeypatch.setattr(torch_fa2, "sdpa_kernel", here)
    batch = DeviceBatch(small(mode=mode, causal=causal))
    assert len(check(peers[name], batch, skipped=("operator, cumulative lengths",))) == 2
    assert set(backends) == {{"torch-fa2": "FLASH_ATTENTION", "torch-cudnn": "CUDNN_ATTENTION"}[name]}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_flex(peers, workload):
    batch = DeviceBatch(small(workload=workload, mode="prefill"))
    assert peers["flex"].unfit_reason(small(mode="prefill", causal=False)) is not None
    assert check(peers["flex"], batch) == ["batched" if workload == "constant_2x40" else "packed, document mask"]
