"""append_kv's kernel compiled without a GPU: no spills, next to no shared memory."""

from __future__ import annotations

import pytest
import torch

from attnloom.compile.cache import kernel_of
from attnloom.compile.resources import resources_of
from attnloom.impl.triton.append import constants_of, request_of


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Compiled here, not found."""
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("dims", [(128, 128), (80, 80), (576, 512)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("slots", [torch.int32, torch.int64], ids=str)
def test_it_compiles_without_spills(arch, dims, dtype, slots):
    rows = [torch.empty(7, 2, dim, dtype=dtype, device="meta") for dim in dims]
    views = [torch.empty(5, 16, 2, dim, dtype=dtype, device="meta") for dim in dims]
    tensors = (*rows, *views, torch.empty(7, dtype=slots, device="meta"))
    request = request_of(tensors, constants_of(rows, views), ("cuda", arch, 32))
    kernel = kernel_of(request)
    taken = resources_of(kernel)
    assert taken is not None
    assert taken.stack == 0
    assert kernel.shared_memory <= 2048
    assert request.key != request_of((*tensors[:4], tensors[4].long()), constants_of(rows, views), ("cuda", 86, 32)).key


@pytest.mark.parametrize("arch", [80, 86, 90])
@pytest.mark.parametrize("fp8", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("as_tensors", [False, True], ids=["numbers", "tensors"])
def test_quantising_compiles_without_spills(arch, fp8, as_tensors):
    rows = tuple(torch.empty(7, 2, dim, dtype=torch.bfloat16, device="meta") for dim in (128, 80))
    views = tuple(torch.empty(5, 16, 2, dim, dtype=fp8, device="meta") for dim in (128, 80))
    tensors = (*rows, *views, torch.empty(7, dtype=torch.int64, device="meta"))
    scales = (torch.empty(2, device="meta"), torch.empty((), device="meta")) if as_tensors else (1.0, 0.5)
    request = request_of(tensors, constants_of(rows, views), ("cuda", arch, 32), scales)
    kernel = kernel_of(request)
    taken = resources_of(kernel)
    assert taken is not None
    assert taken.stack == 0
    assert kernel.shared_memory <= 4096
    if not as_tensors:
        again = request_of(tensors, constants_of(rows, views), ("cuda", arch, 32), (16.0, 0.0))
        assert again.key == request.key
