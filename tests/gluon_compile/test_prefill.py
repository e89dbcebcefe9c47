"""What the prefill kernel's code is made of, and that the cache key of every Gluon function can be made."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import attnloom.kernels.gluon
from attnloom.compile import toolchain
from attnloom.impl.gluon_sm90.configs import ClassConfig
from tools.hopper_list import SM90, Case

MODULES = [one.name for one in pkgutil.iter_modules(attnloom.kernels.gluon.__path__)]


@pytest.fixture(scope="module")
def ptx(tmp_path_factory):
    """The PTX of a prefill kernel over pages of 16, causal."""
    tile = ClassConfig("prefill", 128, 128, 3, 1, 168, q_stages=2, k_stages=2)
    request = Case((128, 128), tile).request()
    with toolchain.cached_in(tmp_path_factory.mktemp("cache")):
        options = request.parsed_options.__dict__
        return triton.compile(request.source, target=GPUTarget(*SM90), options=options).asm["ptx"]


def test_products_of_both_warpgroups(ptx):
    """At the first tile of an item (twice: of the first and of any other), at its others, and for its last values:

    8 products of 16 dims for scores, 8 of 16 keys for the output, 64 rows and 128 columns each.
    """
    shapes = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)", ptx)
    assert set(shapes) == {"m64n128k16"}
    scores, outputs = 3, 3
    assert len(shapes) == 2 * 8 * (scores + outputs)


def test_products_are_not_serialised(ptx, tmp_path):
    source = tmp_path / "kernel.ptx"
    source.write_text(ptx)
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    command = [ptxas, "-v", "--gpu-name=sm_90a", source, "-o", tmp_path / "kernel.cubin"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "serializ" not in said
    assert "registers" in said


@pytest.mark.parametrize("module", MODULES)
def test_the_key_of_a_kernel_sees_every_function(module):
    """Triton's search for what a function calls leaves half a key behind where it fails, as on nested targets."""
    found = vars(importlib.import_module(f"attnloom.kernels.gluon.{module}"))
    for one in found.values():
        if isinstance(one, JITFunction):
            assert re.fullmatch(r"[0-9a-f]{64}", one.cache_key[:64])
