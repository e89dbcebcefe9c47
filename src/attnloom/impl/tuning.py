"""Configs that `attnloom tune` found, one JSON file per device and implementation, and the one that it is trying.

`<folder>/<device>/<implementation>.json` holds entries: what they are for (`Key`), the classes of the config as fields
of the implementation's own dataclass, and the measurement. A file in the cache directory comes before a shipped one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnloom import env
from attnloom.errors import InvalidArgument
from attnloom.impl.base import Config
from attnloom.spec import AttentionSpec

SHIPPED = Path(__file__).with_name("tuned")
Classes = tuple[Mapping[str, Any], ...]

_tried: dict[str, Config] = {}


@dataclass(frozen=True)
class Key:
    """What one entry serves: head dims, types by torch's names, query heads per kv head."""

    head_dim_qk: int
    head_dim_vo: int
    dtype: str
    kv_dtype: str
    group_size: int

    @staticmethod
    def of(spec: AttentionSpec) -> Key:
        """The key of a spec."""
        dtype, kv_dtype = (str(one).removeprefix("torch.") for one in (spec.dtype, spec.kv_dtype))
        return Key(spec.head_dim_qk, spec.head_dim_vo, dtype, kv_dtype, spec.group_size)


def written() -> Path:
    """Where `attnloom tune` writes unless it is told otherwise."""
    return env.cache_dir() / "tuned"


def tried(implementation: str) -> Config | None:
    """The config that a tuner is trying in place of every other."""
    return _tried.get(implementation)


@contextlib.contextmanager
def trying(implementation: str, config: Config) -> Iterator[None]:
    """Engines made and run in this block compute with `config`; no other may run meanwhile."""
    _tried[implementation] = config
    try:
        yield
    finally:
        del _tried[implementation]


def classes_of(implementation: str, spec: AttentionSpec, device: str) -> Classes | None:
    """The tuned classes for a spec on the device of that name; None where nothing is tuned."""
    key = Key.of(spec)
    for folder in (written(), SHIPPED):
        found = _entries(file_of(folder, device, implementation)).get(key)
        if found is not None:
            return found
    return None


def file_of(folder: Path, device: str, implementation: str) -> Path:
    """The file of an implementation on a device.

    >>> file_of(Path("tuned"), "NVIDIA H200", "triton").as_posix()
    'tuned/nvidia_h200/triton.json'
    """
    return folder / re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_") / f"{implementation}.json"


def write(path: Path, key: Key, classes: Classes, measured: str) -> None:
    """Add an entry to a file, in place of one with the same key."""
    entries = [one for one in _read(path) if _key_of(one, path) != key]
    entries.append({**asdict(key), "classes": [dict(one) for one in classes], "measured": measured})
    entries.sort(key=lambda one: json.dumps({name: one[name] for name in asdict(key)}))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"entries": entries}, indent=1) + "\n", encoding="utf-8")
    forget()


def forget() -> None:
    """Read the files again at the next question."""
    _entries.cache_clear()


@functools.lru_cache(maxsize=64)
def _entries(path: Path) -> Mapping[Key, Classes]:
    return {_key_of(one, path): tuple(one["classes"]) for one in _read(path)}


def _read(path: Path) -> list[dict[str, Any]]:
    """The entries of a file, none where there is no file. Raises InvalidArgument for a file that is none of ours."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    try:
        entries: list[dict[str, Any]] = json.loads(text)["entries"]
        if all(isinstance(one["classes"], list) for one in entries):
            return entries
    except (ValueError, KeyError, TypeError):
        pass
    raise _damaged(path)


def _key_of(entry: Mapping[str, Any], path: Path) -> Key:
    try:
        return Key(**{name: entry[name] for name in Key.__dataclass_fields__})
    except KeyError as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> InvalidArgument:
    return InvalidArgument(
        name="tuned configs",
        given=path,
        supported="a file that `attnloom tune` wrote",
        fix="Remove it, or tune again.",
    )
