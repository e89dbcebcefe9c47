"""What the decode kernel's code is made of: its products, its copies, and that its cache key sees every function."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from attnloom.compile import toolchain
from attnloom.impl.gluon_sm90.configs import ClassConfig
from attnloom.kernels.gluon import (
    decode,
    decode_consumer,
    decode_finish,
    decode_producer,
    decode_tile,
    decode_walk,
    gather,
)
from tools.hopper_list import SM90, Case

MODULES = (decode, decode_consumer, decode_finish, decode_producer, decode_tile, decode_walk, gather)


@pytest.fixture(scope="module")
def ptx_of(tmp_path_factory):
    """case -> its kernel's PTX, compiled once."""
    known: dict[Case, str] = {}

    def compiled(case: Case) -> str:
        if case not in known:
            request = case.request()
            with toolchain.cached_in(tmp_path_factory.mktemp("cache")):
                options = request.parsed_options.__dict__
                known[case] = triton.compile(request.source, target=GPUTarget(*SM90), options=options).asm["ptx"]
        return known[case]

    return compiled


def tile(rows: int) -> ClassConfig:
    return ClassConfig("decode", rows, 64, 2, 1)


@pytest.mark.parametrize("rows", [8, 16, 32, 64])
def test_rows_of_q_are_the_columns_of_both_products(ptx_of, rows):
    """Scores take a product per 16 of 128 dims, the output one per 64 dims and 16 keys; no others."""
    shapes = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)", ptx_of(Case((128, 128), tile(rows))))
    assert shapes == [f"m64n{rows}k16"] * (128 // 16 + 128 // 64 * (64 // 16))


@pytest.mark.parametrize("rows", [8, 64])
def test_products_are_not_serialised(ptx_of, tmp_path, rows):
    source = tmp_path / "kernel.ptx"
    source.write_text(ptx_of(Case((128, 128), tile(rows))))
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    command = [str(ptxas), "-v", "--gpu-name=sm_90a", str(source), "-o", str(tmp_path / "kernel.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr
    assert "registers" in said  # it does speak
    assert "serializ" not in said


@pytest.mark.parametrize(
    ("cache", "size", "copies"),
    [
        ("page 24", 16, 8),
        ("page 4, rows 8 bytes apart", 8, 16),
        ("page 16, rows 4 bytes apart", 4, 32),
        ("ragged, rows 2 bytes apart", 2, 0),
    ],
)
def test_gathered_rows_are_copied_in_the_widest_vectors(ptx_of, cache, size, copies):
    """64 keys and values of 128 dims by 128 threads; what cp.async cannot take passes through registers."""
    text = ptx_of(Case((128, 128), tile(8), cache=cache))
    sizes = [int(found, 16) for found in re.findall(r"cp\.async\.c[ag]\.shared\.global .*?, (0x\w+),", text)]
    assert sizes == [size] * (2 * copies)
    assert "cp.async.bulk.tensor" not in text
    assert text.count("cp.async.mbarrier.arrive.noinc") == 1


@pytest.mark.parametrize(("cache", "boxes"), [("page 8", 8), ("page 16", 4), ("page 64", 1), ("page 256", 1)])
def test_a_page_is_a_box(ptx_of, cache, boxes):
    """Of k and of v, and in halves: a box of swizzled memory is 128 bytes wide."""
    assert ptx_of(Case((128, 128), tile(8), cache=cache)).count("cp.async.bulk.tensor") == 2 * boxes * 2


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".", 1)[1])
def test_the_key_of_a_kernel_sees_every_function(module):
    """Triton's search for what a function calls leaves half a key behind where it fails, as on nested targets."""
    functions = [one for one in vars(module).values() if isinstance(one, JITFunction)]
    assert functions
    assert all(re.fullmatch(r"[0-9a-f]{64}", one.cache_key[:64]) for one in functions)
