"""Errors of the language that point at the user's own line."""

from __future__ import annotations

import linecache
import os
import sys
from types import TracebackType

import torch

from attnloom.errors import VariantError

_OURS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)

LONGEST_TEXT = 100
"""Characters of source text shown in a message."""


def language_error(reason: str, fix: str) -> VariantError:
    """A VariantError whose place is the innermost line outside this package and torch."""
    return VariantError(where=user_line(), reason=reason, fix=fix)


def user_line() -> str:
    """``file:line: text`` of the innermost caller outside this package and torch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return describe_line(frame.f_code.co_filename, frame.f_lineno)


def raising_line(trace: TracebackType | None) -> str | None:
    """The innermost line of a traceback outside this package and torch."""
    found = None
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith(_OURS):
            found = describe_line(filename, trace.tb_lineno)
        trace = trace.tb_next
    return found


def describe_line(filename: str, line: int) -> str:
    """``file:line: text``, without the text where the source is not to be had."""
    text = linecache.getline(filename, line).strip()
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT - 3]}..."
    return f"{filename}:{line}: {text}" if text else f"{filename}:{line}"
