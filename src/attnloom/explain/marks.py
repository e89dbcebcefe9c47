"""What every SVG of this project is made of."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from attnloom.explain.palette import INK, PAPER

_FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, sans-serif"


def document(size: tuple[float, float], title: str, body: Iterable[str]) -> str:
    """A self-contained document of `size` = (width, height) px on white paper; `title` is for screen readers."""
    width, height = size
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="{_FONT}" font-size="11" role="img">'
    )
    paper = f'<rect width="{width:g}" height="{height:g}" fill="{PAPER}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", paper, *body, "</svg>", ""])


def text(
    x: float, y: float, words: str, *, size: int = 11, fill: str = INK, anchor: str = "start", weight: int = 400
) -> str:
    """One line of text; (x, y) is its anchor (start, middle or end) on the base line."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )
