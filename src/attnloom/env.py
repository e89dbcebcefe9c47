"""Every environment variable that attnloom reads, typed and strict."""

from __future__ import annotations

import os
from pathlib import Path

from attnloom.errors import InvalidArgument

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


def _flag(name: str) -> bool:
    given = os.environ.get(name)
    if given is None:
        return False
    value = given.strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise InvalidArgument(
        name=f"environment variable {name}", given=value, supported="0 or 1", fix="Set it to 1 or unset it."
    )


def cache_dir() -> Path:
    """Directory of the engine's caches.

    ``ATTNLOOM_CACHE_DIR``, else ``$XDG_CACHE_HOME/attnloom``, else ``~/.cache/attnloom``.
    """
    given = os.environ.get("ATTNLOOM_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path("~/.cache").expanduser()
    return root / "attnloom"


def check_enabled() -> bool:
    """``ATTNLOOM_CHECK=1``: every plan validates device metadata too, at the price of one synchronisation."""
    return _flag("ATTNLOOM_CHECK")
