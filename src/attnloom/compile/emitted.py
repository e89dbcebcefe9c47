"""Emitted device functions as importable modules, one file per content in the cache directory."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType

from attnloom import env
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
    """A file with exactly this text: in the cache, or, where that cannot be written, in a temporary folder."""
    for folder in (env.cache_dir() / "emitted", Path(tempfile.gettempdir()) / f"attnloom-{os.getuid()}" / "emitted"):
        path = folder / f"{digest}.py"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                _write(path, text)
        except OSError:
            continue
        return path
    folder = Path(tempfile.mkdtemp(prefix="attnloom-"))
    _write(folder / f"{digest}.py", text)
    return folder / f"{digest}.py"


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a private file, synced, then renamed over the name that others read."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
