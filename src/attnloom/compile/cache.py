"""From a request to its compiled kernel: this process's memory, then the disk, then Triton's compiler."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from attnloom.compile import store, toolchain
from attnloom.compile.artefact import Artefact
from attnloom.compile.kernel import CompiledKernel
from attnloom.compile.request import Request
from attnloom.errors import AttnLoomError

Describe = Callable[[Request, Exception], Exception]

_kernels: dict[tuple[Path, str], CompiledKernel] = {}
_locks: dict[str, threading.Lock] = {}
_locks_lock = threading.Lock()


def kernel_of(request: Request, describe: Describe | None = None) -> CompiledKernel:
    """The kernel of a request; threads and processes that ask for the same one compile it once.

    describe: makes the error to raise of Triton's own where compilation fails. Raises NoFingerprint, and what
    `describe` returns.
    """
    with _described(request, describe):
        where = (store.folder(), request.key)
    found = _kernels.get(where)
    if found is None:
        with _lock_of(request.key):
            found = _kernels.get(where)
            if found is None:
                found = _kernels[where] = _find_or_compile(request, describe)
    return found


def remembered() -> list[CompiledKernel]:
    """Every kernel that this process has asked for."""
    return list(_kernels.values())


def forget() -> None:
    """Drop what this process remembers, so that the next request reads the disk (for measurements and tests)."""
    _kernels.clear()


def _lock_of(key: str) -> threading.Lock:
    with _locks_lock:
        return _locks.setdefault(key, threading.Lock())


@contextlib.contextmanager
def _described(request: Request, describe: Describe | None) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if describe is None or isinstance(error, AttnLoomError):
            raise
        raise describe(request, error) from error


def _find_or_compile(request: Request, describe: Describe | None) -> CompiledKernel:
    name, key = request.name, request.key
    cached = None if toolchain.always_compile() else store.read(name, key)
    if cached is not None:
        return CompiledKernel(request, cached, None)
    with store.locked(store.path_of(name, key)):
        cached = None if toolchain.always_compile() else store.read(name, key)
        if cached is not None:  # another process was first
            return CompiledKernel(request, cached, None)
        start = time.perf_counter()
        with _described(request, describe):
            made = Artefact(*toolchain.compile_kernel(request.source, request.target, request.parsed_options))
        seconds = time.perf_counter() - start
        store.write(name, key, made, seconds)
    return CompiledKernel(request, made, seconds)
