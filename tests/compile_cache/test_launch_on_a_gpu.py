"""Compiled kernels on a device: launched without Triton's binder, by addresses, on the tensors' own device."""

from __future__ import annotations

import pytest
import tiny_kernels as tiny
import torch

from attnloom.compile import cache
from attnloom.impl.triton.launch import target_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def launch(x, out, n=16):
    request = tiny.request(target=target_of(x.device), tensors=(out, x))
    cache.kernel_of(request).launch(x.device.index, (1, 1, 1), (out.data_ptr(), x.data_ptr(), n))


@pytest.mark.parametrize("offset", [0, 1])
def test_addresses_aligned_or_not(private_cache, offset):
    x = torch.randn(64, device="cuda")[offset : offset + 16]
    out = torch.zeros(64, device="cuda")[offset : offset + 16]
    launch(x, out, n=10)
    assert torch.equal(out[:10], x[:10] + 1)
    assert not out[10:].any()


def test_the_current_stream_is_used(private_cache):
    x, out, stream = torch.randn(16, device="cuda"), torch.zeros(16, device="cuda"), torch.cuda.Stream()
    launch(x, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        launch(x, out)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x + 1)


def test_hooks_are_told(private_cache):
    from triton import knobs

    seen = []

    def enter(metadata):
        seen.append(metadata.get()["name"])

    x, out = torch.randn(16, device="cuda"), torch.zeros(16, device="cuda")
    knobs.runtime.launch_enter_hook.add(enter)
    try:
        launch(x, out)
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
    launch(x, out)
    assert seen == ["add_one"]


@pytest.mark.case("M1")
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_another_device_than_the_current_one(private_cache):
    with torch.cuda.device(0):
        for index in (1, 0, 1):
            x = torch.randn(16, device=f"cuda:{index}")
            out = torch.zeros_like(x)
            launch(x, out)
            torch.cuda.synchronize(index)
            assert torch.equal(out, x + 1)
            assert torch.cuda.current_device() == 0
