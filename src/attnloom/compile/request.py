"""What a compiled kernel is: function, argument types, facts, constants, options and target; and its fingerprint."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnloom.compile import toolchain
from attnloom.errors import NoFingerprint

FORMAT = "attnloom-kernel-1"


class UnreadableFunction(Exception):
    """A `triton.jit` function in which Triton does not find what it calls; src: its text."""

    def __init__(self, src: str) -> None:
        super().__init__(src)
        self.src = src


@dataclass(frozen=True, eq=False)
class Request:
    """One kernel to have.

    function    a `triton.jit` or `gluon.jit` function
    signature   type per parameter, in order: "*bf16", "i32", "constexpr", a tuple of types, or for `gluon.jit`
                "tensordesc<bf16[16, 128],LAYOUT>", a descriptor by its box and the repr of its layout
    divisible   paths (parameter, place in its tuple) of integers and pointers that 16 divides
    constants   value per constexpr parameter; functions among them are `triton.jit` ones
    options     num_warps, maxnreg and the like
    target      (backend, architecture, threads a warp), such as ("cuda", 90, 32)
    """

    function: Any
    signature: Mapping[str, Any]
    divisible: frozenset[tuple[int, ...]]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    target: tuple[str, Any, int]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.function.__name__)

    @functools.cached_property
    def parsed_options(self) -> Any:
        """The backend's options object."""
        return toolchain.parsed_options(self.target, self.options)

    @functools.cached_property
    def source(self) -> Any:
        """The request as Triton takes it."""
        attributes = {path: [["tt.divisibility", 16]] for path in sorted(self.divisible)}
        return toolchain.source_of(self.function, self.signature, self.constants, attributes)

    @functools.cached_property
    def key(self) -> str:
        """sha256 (hex) of all that decides the machine code: contents, never paths, times or names of files.

        Raises NoFingerprint for a constant that has no canonical text.
        """
        lines = [
            FORMAT,
            f"triton {toolchain.version()}",
            f"environment {sorted(toolchain.environment().items())}",
            f"target {self.target}",
            f"function {self.name} {self.function.cache_key}",  # Triton's hash of it and of all that it calls
            f"signature {list(self.signature.items())}",
            f"divisible {sorted(self.divisible)}",
            f"constants {[(name, canonical(value)) for name, value in sorted(self.constants.items())]}",
            f"options {self.parsed_options.hash()}",
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def canonical(value: Any) -> str:
    """A text that two constants share exactly when kernels compiled for them are the same.

    >>> canonical((1, True, None, 2.5))
    '(int 1, bool True, None, float 0x1.4000000000000p+1)'

    Raises NoFingerprint for anything else than numbers, strings, None, tuples, frozen dataclasses of them (Gluon's
    layouts, which hold lists, among them) and `triton.jit` functions.
    """
    if value is None:
        return "None"
    if type(value) in (bool, int, str):
        return f"{type(value).__name__} {value!r}"
    if type(value) is float:
        return f"float {value.hex()}"
    if type(value) is tuple:
        return f"({', '.join(map(canonical, value))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        fields = ((field.name, canonical(_frozen(getattr(value, field.name)))) for field in dataclasses.fields(value))
        return f"{type(value).__qualname__}{list(fields)}"
    if hasattr(type(value), "cache_key"):
        try:
            return f"function {value.__name__} {value.cache_key}"
        except Exception as error:
            raise UnreadableFunction(value.src) from error
    raise NoFingerprint(name=f"{type(value).__name__} {value!r}")


def _frozen(value: Any) -> Any:
    """A frozen dataclass's lists as tuples."""
    return tuple(map(_frozen, value)) if type(value) is list else value
