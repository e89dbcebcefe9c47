"""Emitted device functions as importable modules, one file per content in the cache directory."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType

from attnloom import env
from attnloom.compile import store
from attnloom.variant.emit import emit
from attnloom.variant.program import Program

_modules: dict[str, ModuleType] = {}
_lock = threading.Lock()


def module_of(program: Program) -> ModuleType:
    """The module that holds a program's emitted functions; the same object for the same text."""
    text = emit(program)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    with _lock:
        found = _modules.get(digest)
        if found is None:
            found = _modules[digest] = _load(digest, text)
        return found


def _load(digest: str, text: str) -> ModuleType:
    name = f"attnloom_emitted_{digest}"
    spec = importlib.util.spec_from_file_location(name, _file(digest, text))
    if spec is None or spec.loader is None:  # pragma: no cover - a .py file always has a loader
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _file(digest: str, text: str) -> Path:
    """A file with exactly this text: in the cache, or, where that cannot be written, in a folder of this process."""
    folder = env.cache_dir() / "emitted"
    path = folder / f"{digest}.py"
    with contextlib.suppress(OSError, UnicodeError):
        if path.read_text(encoding="utf-8") == text:
            return path
    try:
        store.write_whole(path, text.encode())
    except OSError as error:
        store.warn_once(env.cache_dir(), error)
        path = _private() / path.name
        store.write_whole(path, text.encode())
    return path


@functools.cache
def _private() -> Path:
    """A folder that goes with this process."""
    made = tempfile.TemporaryDirectory(prefix="attnloom-emitted-")
    atexit.register(made.cleanup)
    return Path(made.name)
