"""Colours that stay apart for any number of requests."""

from __future__ import annotations

import math

INK = "#1f2430"
MUTED = "#667085"
GRID = "#e4e7ec"
PAPER = "#ffffff"
IDLE = "#eef0f4"
IDLE_LINE = "#d3d8e2"
CUT = "#10131a"

_GOLDEN_ANGLE = 137.50776
_LIGHTNESS = (0.74, 0.63, 0.83, 0.55)


def request_color(rank: int) -> str:
    """The `rank`-th colour, ``#rrggbb``: hues a golden angle apart, lightness cycling.

    >>> request_color(0) != request_color(1)
    True
    """
    hue = math.radians(250.0 + rank * _GOLDEN_ANGLE)
    lightness = _LIGHTNESS[rank % len(_LIGHTNESS)]
    return _oklch_to_hex(lightness, 0.125, hue)


def _oklch_to_hex(lightness: float, chroma: float, hue: float) -> str:
    """OKLCH (perceptual lightness, chroma, hue in radians) to sRGB, clipped to its gamut."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(max(c, 0.0), 1.0))):02x}" for c in linear)


def _gamma(channel: float) -> float:
    return 12.92 * channel if channel <= 0.0031308 else 1.055 * channel ** (1 / 2.4) - 0.055


def text_on(rank: int) -> str:
    """Ink that reads on `request_color(rank)`."""
    return PAPER if _LIGHTNESS[rank % len(_LIGHTNESS)] < 0.65 else INK
