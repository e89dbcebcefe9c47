"""The cache on disk: one file per kernel, whole or not there; one compilation among any number of processes.

A file is written under a private name, synced and renamed, and carries a checksum; so a writer that was killed
leaves nothing that anyone takes for whole. Compilation is serialised per kernel by `flock`, which the system
releases when its holder dies. A folder that cannot be written costs the cache, never the result.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from attnloom import env
from attnloom.compile.artefact import Artefact

try:
    import fcntl
except ImportError:  # pragma: no cover - no POSIX
    fcntl = None  # type: ignore[assignment]

LONGEST_WAIT = 300.0
"""Seconds to wait for another process's compilation before compiling beside it."""

_POLL = 0.01
_warned: set[str] = set()


def folder() -> Path:
    """Where compiled kernels lie."""
    return env.cache_dir() / "kernels"


def path_of(name: str, key: str) -> Path:
    """The file of one kernel."""
    return folder() / f"{name}-{key[:40]}.kernel"


def read(name: str, key: str) -> Artefact | None:
    """The kernel's artefact; None where there is none or it is damaged."""
    try:
        data = path_of(name, key).read_bytes()
    except OSError:
        return None
    return Artefact.unpack(key, data)


def write(name: str, key: str, artefact: Artefact, seconds: float) -> bool:
    """Keep an artefact and log its compilation; False (and one warning) where the folder cannot be written."""
    path = path_of(name, key)
    try:
        write_whole(path, artefact.pack(key))
        _log(f"compiled {name} {key[:40]} pid {os.getpid()} {seconds:.3f} s\n")
    except OSError as error:
        warn_once(env.cache_dir(), error)
        return False
    return True


def write_whole(path: Path, data: bytes) -> None:
    """Whole or not at all: a private file, synced, then renamed over the name that others read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone among processes and threads for the file `path`; without that where no lock can be had."""
    handle = _open_lock(path)
    try:
        if handle is not None and _wait(handle):
            _sweep(path)
        yield
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # a child forked meanwhile holds the same open file
            os.close(handle)


def warn_once(place: Path, error: OSError) -> None:
    """Say once per folder that compiled code is not kept."""
    if str(place) not in _warned:
        _warned.add(str(place))
        warnings.warn(
            f"attnloom cannot write its cache {place} ({error.strerror or error}): compiled code is not kept. "
            "Set ATTNLOOM_CACHE_DIR to a directory that can be written.",
            RuntimeWarning,
            stacklevel=2,
        )


def _open_lock(path: Path) -> int | None:
    if fcntl is None:  # pragma: no cover - no POSIX
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        warn_once(env.cache_dir(), error)
        return None


def _wait(handle: int) -> bool:
    """Take the lock; False where the file system has none, or after `LONGEST_WAIT` (a holder that hangs)."""
    end = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < end:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL)
        except OSError:
            return False
        else:
            return True
    return False


def _sweep(path: Path) -> None:
    """Remove what killed writers of this file left; whoever holds the lock is its only writer."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(OSError):
            left.unlink()


def _log(line: str) -> None:
    handle = os.open(folder() / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)
