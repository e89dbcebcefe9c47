"""Numbers with units and tables, for people."""

from __future__ import annotations

from collections.abc import Sequence

_SI = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))


def si(value: float, unit: str) -> str:
    """Three significant digits with a decimal prefix.

    >>> si(1_234_567, "B"), si(0, "B"), si(999.9, "B")
    ('1.23 MB', '0 B', '1.00 kB')
    """
    if value == 0:
        return f"0 {unit}"
    prefix, scale = next(((p, s) for p, s in _SI if float(f"{value / s:.3g}") < 1000), _SI[-1])
    return f"{_digits(value / scale)} {prefix}{unit}"


def duration(seconds: float) -> str:
    """A time in the unit that reads best.

    >>> duration(12.34e-6), duration(0.0123), duration(3.0)
    ('12.3 µs', '12.3 ms', '3.00 s')
    """
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if float(f"{seconds * scale:.3g}") < 1000:
            return f"{_digits(seconds * scale)} {unit}"
    return f"{_digits(seconds)} s"


def count(value: int) -> str:
    """An integer with thousands separators."""
    return f"{value:,}"


def percent(fraction: float) -> str:
    """One decimal.

    >>> percent(0.0312)
    '3.1 %'
    """
    return f"{100 * fraction:.1f} %"


def columns(rows: Sequence[Sequence[str]], header: bool = True) -> str:
    """Rows aligned in columns, the first to the left and the others to the right, a rule under the header.

    >>> print(columns([["", "a"], ["items", "12"]]))
           |  a
    -------+---
    items  | 12
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    widths[0] += 1
    lines = [_line(row, widths) for row in rows]
    if header:
        lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first = row[0].ljust(widths[0])
    return " | ".join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
