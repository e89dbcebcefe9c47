"""Lines for people: plain in a file or a pipe; on a terminal with a little colour and a status line."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "green": "32", "red": "31", "cyan": "36"}


class Console:
    """Writes to `stream` (standard output by default), a line at a time and at once."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stdout
        self.live = self.stream.isatty()
        self._colour = self.live and "NO_COLOR" not in os.environ
        self._status = False

    def style(self, text: str, how: str) -> str:
        """`text` in one of bold, dim, green, red, cyan, where the stream can show it."""
        return f"\x1b[{_CODES[how]}m{text}\x1b[0m" if self._colour else text

    def line(self, text: str = "") -> None:
        """One line, in place of a status line if there is one."""
        self.clear()
        print(text, file=self.stream, flush=True)

    def title(self, text: str) -> None:
        """An empty line and a heading."""
        self.line()
        self.line(self.style(text, "bold"))

    def status(self, text: str) -> None:
        """What is going on now, on a terminal only; the next line or status takes its place."""
        if not self.live:
            return
        self.clear()
        width = shutil.get_terminal_size().columns - 1
        print(text[:width], end="", file=self.stream, flush=True)
        self._status = True

    def clear(self) -> None:
        """Take the status line away."""
        if self._status:
            print("\r\x1b[2K", end="", file=self.stream)
            self._status = False
