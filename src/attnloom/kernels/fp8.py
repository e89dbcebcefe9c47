"""fp8 keys and values: their bits (uint8) to numbers and back, and the scales that belong to them.

Elementwise only, so that the same functions serve Triton kernels, Gluon kernels and Triton's interpreter, whose own
casts to fp8 are wrong: what is written here in integers is the same everywhere. FORMAT is "e4m3" or "e5m2".
"""

import triton
import triton.language as tl

NAN = tl.constexpr(float("nan"))
# A masked score is -inf before a folded scale multiplies it: the scale must not round to 0 in fp32.
SMALLEST_FOLDED = tl.constexpr(2.0**-100)


@triton.jit
def dequantised(x, FORMAT: tl.constexpr, CAST: tl.constexpr, dtype: tl.constexpr):
    """Bits as `dtype` (fp16, bf16 or fp32), exactly: NaN stays NaN, e5m2's infinities stay infinite.

    CAST: by the GPU's own conversion, else by integer arithmetic.
    """
    if CAST:  # by way of fp16, which has an instruction, and fp32: Triton's way to bf16 is of a sixteenth of the rate
        if FORMAT == "e4m3":
            half = x.to(tl.float8e4nv, bitcast=True).to(tl.float16)
        else:
            half = x.to(tl.float8e5, bitcast=True).to(tl.float16)
        return half.to(tl.float32).to(dtype) if dtype == tl.bfloat16 else half.to(dtype)
    bits = x.to(tl.int32)
    if FORMAT == "e5m2":  # fp16 without the lower half of its bits
        return (bits << 8).to(tl.int16).to(tl.float16, bitcast=True).to(dtype)
    half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)  # fp16's exponents are 8 greater, of subnormals too
    value = half.to(tl.int16).to(tl.float16, bitcast=True) * 256.0
    return tl.where((bits & 0x7F) == 0x7F, NAN, value).to(dtype)


@triton.jit
def quantised(x, FORMAT: tl.constexpr):
    """Bits of the fp8 number nearest to `x` (fp32), ties to even; beyond the range the largest; NaN stays NaN."""
    E4M3: tl.constexpr = FORMAT == "e4m3"
    LARGEST: tl.constexpr = 448.0 if E4M3 else 57344.0
    SMALLEST_NORMAL: tl.constexpr = 0.015625 if E4M3 else 0.00006103515625
    DROPPED: tl.constexpr = 20 if E4M3 else 21  # mantissa bits
    BIAS: tl.constexpr = ((127 - 7) << 3) if E4M3 else ((127 - 15) << 2)
    # numbers between this and its double have the distance of fp8's subnormals
    ALIGNED: tl.constexpr = 16384.0 if E4M3 else 128.0
    ALIGNED_BITS: tl.constexpr = 0x46800000 if E4M3 else 0x43000000
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    size = tl.where(tl.abs(x) < LARGEST, tl.abs(x), LARGEST)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + ((1 << (DROPPED - 1)) - 1) + ((bits >> DROPPED) & 1)) >> DROPPED) - BIAS
    subnormal = (size + ALIGNED).to(tl.int32, bitcast=True) - ALIGNED_BITS
    code = tl.where(size < SMALLEST_NORMAL, subnormal, normal)
    code = tl.where(x != x, 0x7F, code)  # noqa: PLR0124 - true for NaN alone
    return (sign | code).to(tl.uint8)


@triton.jit
def scale_of(scale, stride, head):
    """The scale of a kv head, fp32: a number, or the element of a tensor; NaN for a negative one."""
    value = scale
    if hasattr(scale, "dtype"):  # noqa: SIM102 - Triton's interpreter leaves numbers as they are
        if scale.dtype.is_ptr():
            value = tl.load(scale + head * stride)
    return tl.where(value < 0, NAN, value)


@triton.jit
def logits_scale(sm_scale, kv_scales, head, FOLD: tl.constexpr):
    """sm_scale with the scale of k folded in; FOLD: it must stay above 0, and is too small to matter where it is not.

    kv_scales is (scale of k, its stride, scale of v, its stride), see `scale_of`.
    """
    scale = sm_scale * scale_of(kv_scales[0], kv_scales[1], head)
    if FOLD:
        scale = tl.where(scale < SMALLEST_FOLDED, SMALLEST_FOLDED, scale)
    return scale
