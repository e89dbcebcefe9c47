"""numba, set up for the scheduler: compiled at the first plan, cached in the engine's cache directory.

Importing this module imports numba, so `planner` does it at the first plan, never at ``import attnloom``.
"""

from __future__ import annotations

import hashlib
import pickle
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.core.caching

from attnloom import env

F = TypeVar("F", bound=Callable[..., Any])

# What numba lets through when a cache file cannot be written, read or unpickled.
_CACHE_FAILURES: tuple[type[Exception], ...] = (
    *(OSError, EOFError, LookupError, ValueError, TypeError, AttributeError, ImportError, RuntimeError),
    *(pickle.PickleError, MemoryError),
)

# Files without compiled code; any other file of the scheduler counts for the cache.
_HOST_ONLY = {"__init__.py", "arrays.py", "capacity.py", "cost.py", "planner.py", "result.py", "workspace.py"}

_config_lock = threading.Lock()


def inner(func: F) -> F:
    """Compile a function that other compiled functions call; it becomes part of their machine code."""
    return cast(F, numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(func))


def inlined(func: F) -> F:
    """`inner`, put where it is called: for what runs once a tile or a piece, where passing arrays would cost more."""
    return cast(
        F, numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)(func)
    )


def _writable_cache() -> Path | None:
    """A folder for this version of the scheduler's sources, or None where the cache cannot be written.

    numba only looks at the file of the function that Python calls, so a change of a function that was
    compiled into it would go unnoticed: the folder's name is a hash of all files with compiled code.
    """
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        if source.name not in _HOST_ONLY:
            digest.update(source.read_bytes())
    folder = env.cache_dir() / "numba" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return None


class Entry:
    """A compiled function that Python calls. A cache that is missing, read-only or damaged costs a compilation."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func
        self.compiled = numba.njit(error_model="numpy")(func)
        self.proven = False
        folder = _writable_cache()
        if folder is not None and not numba.config.DISABLE_JIT:
            with _config_lock:  # numba reads the folder while it decorates; other users of numba keep theirs
                before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
                try:
                    self.compiled.enable_caching()
                finally:
                    numba.config.CACHE_DIR = before

    def __call__(self, *args: Any) -> Any:
        """Call it; the first call loads or compiles the machine code."""
        if self.proven:
            return self.compiled(*args)
        try:
            result = self.compiled(*args)
        except _CACHE_FAILURES:  # where it was not the cache, the error comes again below
            self.compiled = numba.njit(error_model="numpy")(self.func)
            result = self.compiled(*args)
        self.proven = True
        return result
