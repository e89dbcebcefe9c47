"""Files of the cache that are damaged, copied, elsewhere or cannot be written."""

from __future__ import annotations

import shutil
import warnings

import pytest
import tiny_kernels as tiny
from processes import compiled, python

from attnloom.compile import cache, store

# A directory that its owner may not write, for root too: without CAP_DAC_OVERRIDE modes count again.
READ_ONLY = """
import ctypes, os, pathlib, warnings
folder = pathlib.Path(os.environ["ATTNLOOM_CACHE_DIR"])
from attnloom.compile.cache import kernel_of
kernel_of(tiny.request(tiny.add_one))
for path in [*folder.rglob("*"), folder]:
    if path.is_dir():
        path.chmod(0o555)
    else:
        path.chmod(0o444)
if os.geteuid() == 0:
    class Header(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
    class Data(ctypes.Structure):
        _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = Header(0x20080522, 0), (Data * 2)()
    assert libc.capget(ctypes.byref(header), data) == 0
    data[0].effective &= ~(1 << 1)
    assert libc.capset(ctypes.byref(header), data) == 0
try:
    (folder / "x").touch()
    raise SystemExit("the folder can be written")
except PermissionError:
    pass
from attnloom.compile import cache
cache.forget()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    print(kernel_of(tiny.request(tiny.add_one)).compiled, len(seen))
    new = [kernel_of(tiny.request(tiny.double, width=w)) for w in (32, 64)]
    print([k.compiled for k in new], all(k.binary for k in new))
    print(len(seen), "ATTNLOOM_CACHE_DIR" in str(seen[0].message), str(folder) in str(seen[0].message))
for path in [folder, *folder.rglob("*")]:
    path.chmod(0o755)
"""


def fresh(request=None):
    """The kernel as a process that remembers nothing gets it."""
    cache.forget()
    return cache.kernel_of(request or tiny.request())


def damage(data: bytes, how: str) -> bytes:
    half = len(data) // 2
    return {
        "empty": b"",
        "truncated": data[:half],
        "one bit": data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :],
        "no header": data.partition(b"\n")[2],
        "other text": b"[1]\n" + data,
    }[how]


@pytest.mark.case(47)
@pytest.mark.parametrize("how", ["empty", "truncated", "one bit", "no header", "other text"])
def test_a_damaged_file_is_compiled_again(private_cache, how):
    whole, request = fresh(), tiny.request()
    path = store.path_of(request.name, request.key)
    path.write_bytes(damage(path.read_bytes(), how))
    again = fresh()
    assert again.compiled
    assert again.binary == whole.binary
    assert not fresh().compiled


@pytest.mark.case(47)
def test_a_file_of_another_kernel_is_not_taken(private_cache):
    one, other = tiny.request(tiny.add_one), tiny.request(tiny.double)
    fresh(one)
    fresh(other)
    shutil.copy(store.path_of(one.name, one.key), store.path_of(other.name, other.key))
    assert fresh(other).compiled


@pytest.mark.case(49)
def test_a_copied_directory_hits(private_cache, tmp_path, monkeypatch):
    fresh()
    shutil.copytree(private_cache, tmp_path / "elsewhere")
    shutil.rmtree(private_cache)
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert not fresh().compiled


def test_a_missing_directory_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path / "a" / "b"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fresh().compiled
    assert not fresh().compiled
    assert compiled(tmp_path / "a" / "b") == ["add_one"]


def test_a_directory_that_cannot_be_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        kernels = [fresh(), fresh()]
    assert all(kernel.compiled for kernel in kernels)
    assert ["compiled code is not kept" in str(warning.message) for warning in seen] == [True]


def test_a_read_only_directory_is_read_and_warned_of_once(tmp_path):
    out, _ = python(READ_ONLY, tmp_path)
    assert out.splitlines() == ["False 0", "[True, True] True", "1 True True"]
    assert compiled(tmp_path) == ["add_one"]


def test_tritons_own_cache_is_left_alone(private_cache, tmp_path, monkeypatch):
    from triton import knobs

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    before = knobs.cache.manager_class
    assert fresh().compiled
    assert knobs.cache.manager_class is before
    assert not (tmp_path / "triton").exists()
