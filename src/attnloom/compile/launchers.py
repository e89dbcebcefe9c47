"""Triton's launchers: small shared objects that it builds with a C compiler, kept in the engine's cache.

A launcher that is in the cache needs no compiler; one that is not, or is damaged, does, and where there is none one
error says what was looked for.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attnloom import env
from attnloom.compile import store, toolchain
from attnloom.errors import CompilerMissing, KernelCompileError

COMPILERS = ("gcc", "clang")
"""What Triton looks for on the PATH where the variable CC is not set, best first."""


def folder() -> Path:
    """Where launchers lie."""
    return env.cache_dir() / "launchers"


def c_compiler() -> str | None:
    """The C compiler that Triton will call, None where there is none."""
    if given := os.environ.get("CC"):
        return shutil.which(given)
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def python_header() -> Path:
    """Where Python.h must be."""
    return Path(sysconfig.get_paths()["include"]) / "Python.h"


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Launchers that Triton needs in this block come from the cache, or are built into it, one process at a time.

    Raises CompilerMissing for one that is not in the cache where it cannot be built.
    """
    place = _place()
    with store.locked(place / "build"), toolchain.cached_in(place, _checked):
        try:
            yield
        except subprocess.CalledProcessError as error:
            raise KernelCompileError(
                what="a kernel's launcher",
                place=f"C compiler {c_compiler()}",
                reason=f"it exited with status {error.returncode}; its messages are above",
            ) from error


def _checked(found: str | None) -> str | None:
    """A launcher's file as `building` left it; None where it must be built."""
    if found is not None and _is_whole(Path(found)):
        return found
    header = python_header()
    if c_compiler() is None or not header.exists():
        given = os.environ.get("CC")
        raise CompilerMissing(
            looked=f"CC={given}" if given else f"CC (not set), {', '.join(COMPILERS)} on PATH={os.environ.get('PATH')}",
            header=f"{header} ({'there' if header.exists() else 'not there'})",
            cache=folder(),
        )
    return None


def _is_whole(path: Path) -> bool:
    try:
        expected = Path(f"{path}.sha256").read_text(encoding="utf-8")
        return hashlib.sha256(path.read_bytes()).hexdigest() == expected
    except OSError:
        return False


def _place() -> Path:
    """The cache's folder; where that cannot be written and lacks something, copies of it in a private one."""
    wanted = folder()
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError as error:
        store.warn_once(env.cache_dir(), error)
        return _private(wanted)


@functools.lru_cache(maxsize=4)
def _private(wanted: Path) -> Path:
    folder = tempfile.TemporaryDirectory(prefix="attnloom-launchers-")
    atexit.register(folder.cleanup)
    made = Path(folder.name)
    if wanted.is_dir():
        shutil.copytree(wanted, made, dirs_exist_ok=True)
    return made
