from __future__ import annotations

import os

import pytest

from attnloom.compile import cache

# The interpreter compiles nothing, and takes the compiler's place for a whole process.
collect_ignore_glob = ["test_*.py"] if os.environ.get("TRITON_INTERPRET") == "1" else []


@pytest.fixture
def private_cache(tmp_path, monkeypatch):
    """An empty cache directory, and a process that remembers no kernel."""
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    cache.forget()
    yield tmp_path / "cache"
    cache.forget()
