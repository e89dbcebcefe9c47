"""What cannot be compiled or built: whose line it is, and what was looked for."""

from __future__ import annotations

import functools
import inspect
import shutil

import pytest
import tiny_kernels as tiny
from processes import python

import attnloom as al
from attnloom.bench.kernels import kernels_of
from attnloom.compile import emitted, launchers
from attnloom.compile.cache import kernel_of
from attnloom.compile.failures import explained
from attnloom.errors import KernelCompileError
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant.emit import emit

# Builds, loads again without a compiler, then asks for another one without a compiler.
LAUNCHERS = """
import os, pathlib
from triton.runtime.build import compile_module_from_src
from attnloom.compile import launchers
from attnloom.errors import CompilerMissing
SOURCE = '''
#include <Python.h>
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "NAME", 0, -1, 0};
PyMODINIT_FUNC PyInit_NAME(void) { return PyModule_Create(&def); }
'''
def build(name):
    with launchers.building():
        return compile_module_from_src(SOURCE.replace("NAME", name), name).__name__
def files():
    return {path.name: path for path in launchers.folder().rglob("*.so")}
print(build("first"), len(files()))
whole = next(iter(files().values())).read_bytes()
path = next(iter(files().values()))
path.unlink()
path.write_bytes(whole[: len(whole) // 2])
print(build("first"), path.read_bytes() == whole or len(path.read_bytes()) > len(whole) // 2)
os.environ.pop("CC", None)
os.environ["PATH"] = os.environ["ATTNLOOM_CACHE_DIR"]
print(build("first"), len(files()))
try:
    build("second")
except CompilerMissing as error:
    print(error)
"""


WAYS = {"voc.missing + t": "missing", "tl.exp('one') + t": "one"}


@pytest.fixture(params=WAYS)
def broken(request, monkeypatch):
    """Every emitted function calls what is not there, or what the compiler refuses."""
    monkeypatch.setattr(emitted, "emit", lambda program: emit(program).replace("return t", f"return {request.param}"))
    return request.param


def compile_attention(variant):
    import torch

    spec = AttentionSpec.create(num_qo_heads=2, num_kv_heads=2, head_dim=16, dtype=torch.float16, page_size=16)
    for _, request in kernels_of(spec, variant, Target.of_arch("sm90")):
        kernel_of(request, functools.partial(explained, program=variant.program))


def test_a_failing_functor_is_named_with_its_line(private_cache, broken):
    def mine(logits, kv_pos):
        return logits + 0.25 * kv_pos

    variant = al.variants.causal() & al.Variant(logits_transform=mine)
    with pytest.raises(KernelCompileError) as raised:
        compile_attention(variant)
    text = str(raised.value)
    assert f"{__file__}:{inspect.getsourcelines(mine)[1]}" in text
    assert "the variant's logits_" in text
    assert f"return {broken}" in text
    assert WAYS[broken] in text.partition("innermost: ")[2]
    assert raised.value.__cause__ is not None


def test_both_functors_of_a_composition_are_named(private_cache, broken):
    one = al.Variant(logits_mask=lambda kv_pos: kv_pos > 1)
    two = al.Variant(logits_mask=lambda q_pos: q_pos > 2)
    for variant in (one & two, one | two, ~(one | two)):
        with pytest.raises(KernelCompileError, match="logits_mask") as raised:
            compile_attention(variant)
        assert str(raised.value).count("al.Variant(logits_mask=lambda") == 2


def test_places_do_not_count_for_the_identity():
    one = al.Variant(logits_transform=lambda logits: logits + 1)
    two = al.Variant(logits_transform=lambda logits: logits + 1)
    assert one.program.places != two.program.places
    assert one.program.identity == two.program.identity


def test_a_failing_kernel_names_its_target(private_cache, monkeypatch):
    def fail(*_):
        raise RuntimeError("ptxas fell over")

    monkeypatch.setattr("attnloom.compile.toolchain.compile_kernel", fail)
    with pytest.raises(KernelCompileError, match=r"kernel add_one .*cuda 90, num_warps=1.*ptxas fell over"):
        kernel_of(tiny.request(), functools.partial(explained, program=al.Variant().program))


@pytest.mark.case(50)
@pytest.mark.skipif(
    launchers.c_compiler() is None or not launchers.python_header().exists(), reason="builds one with gcc and Python.h"
)
def test_a_cached_launcher_needs_no_compiler_and_a_new_one_says_what_is_missing(tmp_path):
    out, _ = python(LAUNCHERS, tmp_path)
    first, damaged, cached, message = out.splitlines()
    assert first == cached == "first 1"
    assert damaged == "first True"
    assert "CC (not set), gcc, clang on PATH=" in message
    assert "Python.h" in message
    assert str(tmp_path / "launchers") in message


@pytest.mark.case(50)
def test_a_compiler_is_looked_for_as_triton_does(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    assert launchers.c_compiler() is None
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launchers.c_compiler() is None
    monkeypatch.undo()
    assert launchers.c_compiler() == (shutil.which("gcc") or shutil.which("clang"))
