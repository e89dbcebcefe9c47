"""The compiled functions' cache: a folder that cannot be written, or damaged files, cost a compilation only."""

from __future__ import annotations

from pathlib import Path

import numba
import numpy as np
import pytest

from attnloom.schedule import jit


def double_all(numbers):
    total = 0
    for i in range(numbers.shape[0]):
        total += 2 * numbers[i]
    return total


@pytest.fixture
def numbers():
    return np.arange(5)


def test_cached_in_the_engines_folder(tmp_path, monkeypatch, numbers):
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path))
    before = numba.config.CACHE_DIR
    assert jit.Entry(double_all)(numbers) == 20
    assert list(tmp_path.rglob("*.nbc"))
    again = jit.Entry(double_all)
    assert again(numbers) == 20
    assert sum(again.compiled.stats.cache_hits.values()) == 1
    assert before == numba.config.CACHE_DIR


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"not a cache"])
def test_damaged_cache(tmp_path, monkeypatch, numbers, suffix, content):
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path))
    jit.Entry(double_all)(numbers)
    (file,) = tmp_path.rglob(f"*.{suffix}")
    file.write_bytes(content)
    entry = jit.Entry(double_all)
    assert entry(numbers) == 20
    assert entry(numbers + 1) == 30


def test_no_writable_folder(tmp_path, monkeypatch, numbers):
    (tmp_path / "file").write_text("a file where the folder should be")
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path / "file"))
    assert jit.Entry(double_all)(numbers) == 20


def test_folder_that_vanishes_before_the_first_call(tmp_path, monkeypatch, numbers):
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path / "cache"))
    entry = jit.Entry(double_all)
    for folder in sorted(tmp_path.rglob("*"), reverse=True):
        folder.rmdir()
    (tmp_path / "cache").write_text("")
    assert entry(numbers) == 20


def test_an_error_of_the_function_is_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path))
    with pytest.raises(numba.TypingError):
        jit.Entry(double_all)("words")


def test_with_the_compiler_switched_off(monkeypatch, numbers):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert jit.Entry(double_all)(numbers) == 20


def test_the_cache_watches_every_file_with_compiled_code():
    folder = Path(jit.__file__).parent
    compiled = {
        p.name for p in folder.glob("*.py") if "schedule.jit import" in p.read_text() and "@inner" in p.read_text()
    }
    assert len(compiled) >= 4
    assert not (compiled | {"native.py", "work.py", "jit.py"}) & jit._HOST_ONLY
