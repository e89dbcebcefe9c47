"""What emitted device functions call: Python's meaning of operations that Triton means otherwise.

Elementwise only, so that the same functions serve Triton kernels, Gluon kernels and Triton's interpreter.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def cast(x, dtype: tl.constexpr):
    """`x` as `dtype`; to bool it compares with 0."""
    if dtype == tl.int1:
        return x != 0
    return tl.cast(x, dtype)


@triton.jit
def clamp_index(i, extent):
    """`i` inside 0..extent-1, as int64: no element outside the tensor is ever read."""
    return tl.minimum(tl.maximum(i.to(tl.int64), 0), (extent - 1).to(tl.int64))


@triton.jit
def element(pointer, dtype: tl.constexpr):
    """One element per index, in the type that expressions compute in; bools are stored as bytes."""
    return cast(tl.load(pointer), dtype)


@triton.jit
def scalar(x, dtype: tl.constexpr):
    """A scalar operand's value: the number itself, or the one element that a pointer stands for."""
    value = x
    if hasattr(x, "dtype"):  # noqa: SIM102 - Triton's interpreter leaves numbers as they are
        if x.dtype.is_ptr():
            value = element(x, dtype)
    return value


@triton.jit
def floordiv_int(a, b):
    """Python's ``//``: rounds towards minus infinity."""
    quotient = a // b
    remainder = a - quotient * b
    return tl.where((remainder != 0) & ((remainder < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def mod_int(a, b):
    """Python's ``%``: has the sign of `b`."""
    return a - floordiv_int(a, b) * b


@triton.jit
def floordiv_float(a, b):
    """The quotient of two floats, rounded towards minus infinity; exact where they divide."""
    return tl.floor(tl.div_rn(tl.cast(a, tl.float32), tl.cast(b, tl.float32)))


@triton.jit
def mod_float(a, b):
    """What `floordiv_float` leaves; has the sign of `b`."""
    return a - floordiv_float(a, b) * b


@triton.jit
def divide(a, b):
    """Division in fp32, on a GPU within 2 ulp."""
    return tl.cast(a, tl.float32) / tl.cast(b, tl.float32)


@triton.jit
def tanh(x):
    """Hyperbolic tangent by exp2, within 1.2e-7 (one rounding of a number near 1); odd, ±1 at the infinities."""
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -t, t)


@triton.jit
def tanh_approx(x):
    """A faster tanh where the device has one; elsewhere `tanh`."""
    return tanh(x)


@triton.jit
def sigmoid(x):
    """``1 / (1 + exp(-x))``; 0 and 1 at the infinities."""
    return 1.0 / (1.0 + tl.exp2(x * -LOG2E))


@triton.jit
def expm1(x):
    """``exp(x) - 1``, by its series near 0 where the difference would cancel."""
    series = x * (1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666668 + x * (0.008333334 + x * 0.0013888889)))))
    return tl.where(tl.abs(x) < 0.35, series, tl.exp(x) - 1.0)


@triton.jit
def log1p(x):
    """``log(1 + x)``, corrected for what ``1 + x`` rounds away (Kahan)."""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit
def rsqrt(x):
    """``1 / sqrt(x)``."""
    return 1.0 / tl.sqrt(x)


@triton.jit
def erf(x):
    """The error function."""
    return tl.erf(x)


@triton.jit
def trunc(x):
    """Towards zero."""
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@triton.jit
def round(x):
    """To the nearest integer, ties to even."""
    low = tl.floor(x)
    rest = x - low
    odd = low - 2.0 * tl.floor(low * 0.5) != 0.0
    return tl.where((rest > 0.5) | ((rest == 0.5) & odd), low + 1.0, low)


@triton.jit
def sign(x):
    """-1, 0 or 1; NaN stays NaN."""
    one = tl.where(x > 0, 1, tl.where(x < 0, -1, 0)).to(x.dtype)
    return tl.where(x != x, x, one)  # noqa: PLR0124 - true for NaN alone


@triton.jit
def isnan(x):
    """Whether `x` is NaN."""
    return x != x  # noqa: PLR0124 - true for NaN alone


@triton.jit
def minimum(a, b):
    """The smaller; NaN if either is."""
    return tl.where((a != a) | (a < b), a, b)  # noqa: PLR0124 - true for NaN alone


@triton.jit
def maximum(a, b):
    """The larger; NaN if either is."""
    return tl.where((a != a) | (a > b), a, b)  # noqa: PLR0124 - true for NaN alone


@triton.jit
def power(a, b):
    """``a ** b`` in fp32; a negative base takes whole exponents."""
    x = tl.cast(a, tl.float32)
    y = tl.cast(b, tl.float32)
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    whole = tl.floor(y) == y
    odd = y - 2.0 * tl.floor(y * 0.5) != 0.0
    signed = tl.where(x < 0, tl.where(whole, tl.where(odd, -size, size), float("nan")), size)
    return tl.where(y == 0.0, 1.0, signed)
