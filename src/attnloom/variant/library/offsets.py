"""Where each request's part of a concatenated operand starts; computed at every plan."""

from __future__ import annotations

from typing import Any

import numpy as np


def starts(counts: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Exclusive cumulative sum, int64 ``[batch]``."""
    counts = np.asarray(counts, dtype=np.int64)
    return np.cumsum(counts) - counts


def total(counts: Any) -> tuple[int]:
    """Shape of the concatenation of `counts` elements a request."""
    return (int(np.asarray(counts, dtype=np.int64).sum()),)
