"""All that attnloom asks of Triton's compiler and driver. What may change between its versions (3.6 to 3.8) is here."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton import knobs
from triton._C import libtriton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, LazyDict, make_backend
from triton.runtime.cache import FileCacheManager
from triton.runtime.driver import driver

# Variables that change what is compiled and name a file: its content counts, not its path.
_TOOL_VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")

_here = threading.local()
_installed = threading.RLock()
_users = 0
_previous: Any = None


def version() -> str:
    """Triton's version and the size of its compiler, which tells a development build from a release."""
    return f"{triton.__version__} {Path(libtriton.__file__).stat().st_size}"


def environment() -> dict[str, str]:
    """What of the process's environment changes compiled code, by Triton's own list."""
    found = {name: str(value) for name, value in libtriton.get_cache_invalidating_env_vars().items()}
    for name in _TOOL_VARIABLES:
        if given := os.environ.get(name):
            found[name] = hashlib.sha256(Path(given).read_bytes()).hexdigest()
    return found


def parsed_options(target: tuple[str, Any, int], options: Mapping[str, Any]) -> Any:
    """The backend's options, defaults and what Triton's own launch would add included."""
    given = {"debug": knobs.runtime.debug, "instrumentation_mode": knobs.compilation.instrumentation_mode}
    return make_backend(GPUTarget(*target)).parse_options(given | dict(options))


def compile_kernel(source: Any, target: tuple[str, Any, int], options: Any) -> tuple[str, bytes]:
    """Metadata (JSON) and binary of an `ASTSource`; Triton's own cache is neither read nor written."""
    with tempfile.TemporaryDirectory(prefix="attnloom-compile-") as folder, cached_in(Path(folder)):
        kernel = triton.compile(source, target=GPUTarget(*target), options=options.__dict__)
        metadata = next(Path(path) for name, path in kernel.metadata_group.items() if name.endswith(".json"))
        facts = json.loads(metadata.read_text(encoding="utf-8"))
    facts.pop("extern_libs", None)  # paths of this machine, of no use to a launch
    return json.dumps(facts, sort_keys=True), bytes(kernel.kernel)


def source_of(function: Any, signature: Mapping[str, Any], constants: Mapping[Any, Any], attrs: Any) -> Any:
    """What `compile_kernel` takes, and what a launcher is built for; function: `triton.jit` or `gluon.jit`."""
    kind = ASTSource
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        kind = GluonASTSource
    return kind(function, dict(signature), dict(constants), dict(attrs))


def load(source: Any, facts: Mapping[str, Any], binary: bytes, device: int) -> tuple[Any, Any, Any, int]:
    """(launcher, function, packed metadata, registers) of a kernel on the current device `device`."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    fields["tensordesc_meta"] = facts.get("tensordesc_meta")
    target = facts["target"]
    fields["target"] = GPUTarget(target["backend"], target["arch"], target["warp_size"])
    metadata = SimpleNamespace(**fields)
    launcher = _launcher(source, metadata)
    group: dict[str, str] = {}
    if (hook := knobs.runtime.kernel_load_start_hook) is not None:
        hook(None, None, facts["name"], group, facts["hash"])
    module, function, registers, *_ = driver.active.utils.load_binary(facts["name"], binary, facts["shared"], device)
    if (hook := knobs.runtime.kernel_load_end_hook) is not None:
        hook(module, function, facts["name"], group, facts["hash"])
    return launcher, function, make_backend(metadata.target).pack_metadata(metadata), registers


def _launcher(source: Any, metadata: Any) -> Any:
    """Triton's launcher; descriptors of tensors are given to it in parts, as `descriptor_arguments` makes them.

    Triton's own wrapper encodes every descriptor at every launch; a signature without descriptors has no wrapper.
    """
    signature = parts_signature(source.signature)
    if len(signature) != len(source.signature):
        metadata = SimpleNamespace(**{**vars(metadata), "tensordesc_meta": None})
        source = SimpleNamespace(fn=source.fn, constants={}, signature=signature)
    return driver.active.launcher_cls(source, metadata)


def parts_signature(signature: Mapping[Any, Any]) -> dict[int, Any]:
    """A signature with the parts of each descriptor in its place: the map, the shape, the strides."""
    flat: list[Any] = []
    for kind in signature.values():
        if isinstance(kind, str) and kind.startswith("tensordesc<"):
            rank = kind[kind.index("[") : kind.index("]")].count(",") + 1
            flat += ["nvTmaDesc", *["i32"] * rank, *["i64"] * rank]
        else:
            flat.append(kind)
    return dict(enumerate(flat))


@functools.lru_cache(maxsize=1024)
def descriptor_type(dtype: str, box: tuple[int, ...]) -> str:
    """The type of a descriptor of boxes, dtype by Triton's name ("bf16"), in Gluon's default layout for them."""
    from triton.experimental.gluon import language as gl

    numbers = {"fp16": gl.float16, "bf16": gl.bfloat16, "u8": gl.uint8}
    layout = gl.NVMMASharedLayout.get_default_for(list(box), numbers[dtype])
    return f"tensordesc<{dtype}[{', '.join(map(str, box))}],{layout!r}>"


def descriptor_arguments(
    meta: Mapping[str, Any], address: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[Any, ...]:
    """What a launch takes for one descriptor; meta: the kernel's entry in "tensordesc_meta".

    address: bytes; shape and strides: elements, the last stride 1. A driver must be active.
    """
    from triton.backends.nvidia import driver as nvidia

    utils = driver.active.utils
    fill = getattr(utils, "fill_tma_descriptor_tiled", None) or utils.fill_tma_descriptor  # Triton 3.7's name, 3.6's
    kind = nvidia.TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]]
    made = fill(address, meta["swizzle"], meta["elem_size"], kind, meta["block_size"], shape, strides, 0)
    return (made, *shape, *strides)


def max_shared_memory(device: int) -> int:
    """Bytes of shared memory that a CTA may have."""
    return int(driver.active.utils.get_device_properties(device)["max_shared_mem"])


def launch_hooks() -> tuple[Any, Any]:
    """Triton's hooks around a launch (profilers set them), each None where nobody listens."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return (enter if getattr(enter, "calls", enter) else None, leave if getattr(leave, "calls", leave) else None)


def launch_metadata(name: str, function: Any, stream: int) -> Any:
    """What the hooks are told."""
    return LazyDict({"name": name, "function": function, "stream": stream})


def always_compile() -> bool:
    """``TRITON_ALWAYS_COMPILE``: what the cache holds is not used."""
    return bool(knobs.compilation.always_compile)


def current_target() -> tuple[str, Any, int]:
    """(backend, architecture, threads a warp) of the current device."""
    target = driver.active.get_current_target()
    return target.backend, target.arch, target.warp_size


@functools.lru_cache(maxsize=16)
def cuobjdump() -> str | None:
    """Triton's copy of cuobjdump, None where its package has none."""
    try:
        return str(knobs.nvidia.cuobjdump.path)
    except RuntimeError:
        return None


@contextlib.contextmanager
def cached_in(folder: Path, check: Any = None) -> Iterator[None]:
    """This thread's builds use `folder` for Triton's cache; other threads keep Triton's own.

    check(path | None) -> path | None judges a shared object that is there, or (None) missing, before it is used.
    """
    before = getattr(_here, "folder", None), getattr(_here, "check", None)
    _here.folder, _here.check = folder, check
    _install()
    try:
        yield
    finally:
        _uninstall()
        _here.folder, _here.check = before


def _install() -> None:
    global _users, _previous  # noqa: PLW0603 - Triton has one knob for the whole process
    with _installed:
        if not _users:
            _previous = knobs.cache.manager_class
            knobs.cache.manager_class = _Routed
        _users += 1


def _uninstall() -> None:
    global _users  # noqa: PLW0603
    with _installed:
        _users -= 1
        if not _users:
            if _previous is None:
                del knobs.cache.manager_class
            else:
                knobs.cache.manager_class = _previous


class _Routed:
    """Stands in for Triton's cache manager: a folder of ours for our builds, Triton's own for anyone else's."""

    def __new__(cls, key: str, override: bool = False, dump: bool = False) -> Any:
        folder = getattr(_here, "folder", None)
        if folder is None or override or dump:
            return (_previous or FileCacheManager)(key, override=override, dump=dump)
        return _Folder(key, folder)


class _Folder(FileCacheManager):  # type: ignore[misc]  # Triton is untyped
    """Triton's file cache in a folder that we name."""

    def __init__(self, key: str, folder: Path) -> None:
        self.key = key
        self.cache_dir = str(folder / key)
        self.lock_path = str(folder / key / "lock")
        with contextlib.suppress(OSError):  # what is there can be read where nothing can be made
            Path(self.cache_dir).mkdir(parents=True, exist_ok=True)

    def get_file(self, filename: str) -> str | None:
        found: str | None = super().get_file(filename)
        return _here.check(found) if _here.check is not None and filename.endswith(".so") else found

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        path: str = super().put(data, filename, binary)
        if _here.check is not None and isinstance(data, bytes):
            Path(path + ".sha256").write_text(hashlib.sha256(data).hexdigest(), encoding="utf-8")
        return path
