"""What a failed compilation means to a user: which functor of theirs, where they wrote it, what the compiler said."""

from __future__ import annotations

import re

from attnloom.compile.request import Request
from attnloom.errors import KernelCompileError
from attnloom.variant.emit import FUNCTIONS
from attnloom.variant.program import Program

_SLOTS = {name: slot for slot, name in FUNCTIONS.items()}
_HEAD = re.compile(r"\s*def (\w+)\(")


def explained(request: Request, error: Exception, program: Program) -> Exception:
    """The error to raise for one of Triton's: it names the functor and its file and line where the fault is in one."""
    chain = list(_causes(error))
    words = f"{type(chain[-1]).__name__}: {chain[-1]}"
    for one in reversed(chain):
        head = _HEAD.match(getattr(one, "src", None) or "")
        if head is not None and head[1] in _SLOTS:
            places = program.places.get(_SLOTS[head[1]], ())
            return KernelCompileError(
                what=f"the variant's {head[1]}",
                place="; ".join(places) or "a built-in",
                reason=f"{one}\n(innermost: {words})" if one is not chain[-1] else str(one),
            )
    return KernelCompileError(what=f"kernel {request.name}", place=f"for {_target(request)}", reason=words)


def _causes(error: BaseException) -> list[BaseException]:
    found = [error]
    while (cause := found[-1].__cause__) is not None:
        found.append(cause)
    return found


def _target(request: Request) -> str:
    backend, arch, _ = request.target
    return f"{backend} {arch}, {', '.join(f'{name}={value}' for name, value in request.options.items())}"
