"""The process where Triton's interpreter takes the place of its compiler: what runs there, and how small.

The tests of `cases` run there with `triton` on the CPU. A kv tile takes about 10 ms, so every size that a test
has for the compiled implementations stands beside a smaller one in `sized`, which still crosses the interpreter's
tiles (16 and 32 rows by 32 keys, see attnloom.impl.triton.configs) and splits them. What cannot run there is
marked `not_interpreted` with the reason.
"""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

T = TypeVar("T")


def sized(usual: T, interpreted: T) -> T:
    """The usual lengths, counts or choices, or the interpreter's."""
    return interpreted if INTERPRETED else usual


def left_out(item: pytest.Item) -> str:
    """Why a test does not run under the interpreter; empty: it does."""
    if "triton_interpreter" in item.path.parts or item.path.name == "test_suite_coverage.py":
        return ""
    if "runner" not in getattr(item, "fixturenames", ()):
        return "no implementation enters: runs in the main process"
    mark = item.get_closest_marker("not_interpreted")
    return "" if mark is None else str(mark.args[0])


def patch_language_once(patch: pytest.MonkeyPatch) -> None:
    """Calls of device functions leave triton.language as the launch and the first such call have made it.

    Triton 3.6 looks all of it over at every call, for nothing, which is 40 % of the interpreter's time.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    seen: set[tuple[bool, ...]] = set()

    def call(self, *args, **kwargs):
        modules = [id(value) for value in self.fn.__globals__.values()]
        knows = tuple(id(module) in modules for module in (tl, tl.core))
        if knows not in seen:
            seen.add(knows)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    patch.setattr(interpreter.InterpretedFunction, "__call__", call)


def split_short_requests(patch: pytest.MonkeyPatch) -> None:
    """Plans that cut requests of a hundred keys, as the constants of a GPU cut those of thousands."""
    from attnloom.api import batch
    from attnloom.schedule.cost import CostModel

    patch.setattr(batch, "cost_model", lambda *_: CostModel(fixed=0.1, alpha=0.0, beta=0.01, min_chunk=32))
