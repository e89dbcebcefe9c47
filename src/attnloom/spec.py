"""What to compute, apart from the variant: heads, head dims, dtypes, cache layout."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import torch

from attnloom.errors import InvalidArgument

HEAD_DIMS = (16, 32, 64, 80, 96, 112, 128, 192, 256, 512)
HEAD_DIM_PAIRS = ((192, 128), (576, 512))
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FP8_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
FP8_DTYPES = tuple(FP8_FORMATS)
KV_LAYOUTS = ("NHD", "HND")
_INT32_MAX = 2**31 - 1
_FLOAT32_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class AttentionSpec:
    """Heads, dims, dtypes and layout of one attention; validated at construction.

    head_dim_qk is the last dimension of q and k, head_dim_vo of v and out; page_size None makes it a
    run-time integer of the plan; sm_scale multiplies q·k. kv_dtype is that of k and v: dtype, or an fp8 format
    beside fp16 and bf16.

    Raises InvalidArgument for a value outside what is supported.

    >>> import torch
    >>> AttentionSpec.create(num_qo_heads=8, num_kv_heads=2, head_dim=64, dtype=torch.float32).group_size
    4
    """

    num_qo_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    page_size: int | None
    kv_layout: str
    sm_scale: float

    @property
    def group_size(self) -> int:
        """Query heads per kv head."""
        return self.num_qo_heads // self.num_kv_heads

    @property
    def kv_fp8(self) -> str:
        """The format of an fp8 cache, "e4m3" or "e5m2"; empty where k and v have the dtype of q."""
        return FP8_FORMATS.get(self.kv_dtype, "")

    @staticmethod
    def create(
        *,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        head_dim_vo: int | None = None,
        kv_dtype: torch.dtype | None = None,
        page_size: int | None = None,
        kv_layout: str = "NHD",
        sm_scale: float | None = None,
    ) -> AttentionSpec:
        """Fill in defaults and validate."""
        qo, kv = positive_int("num_qo_heads", num_qo_heads), positive_int("num_kv_heads", num_kv_heads)
        _check_heads(qo, kv)
        qk = positive_int("head_dim", head_dim)
        vo = qk if head_dim_vo is None else positive_int("head_dim_vo", head_dim_vo)
        _check_head_dims(qk, vo)
        _check_dtypes(dtype, kv_dtype)
        page = None if page_size is None else positive_int("page_size", page_size)
        if kv_layout not in KV_LAYOUTS:
            raise InvalidArgument(
                name="kv_layout",
                given=kv_layout,
                supported="'NHD' or 'HND'",
                fix="N is tokens, H kv heads, D head_dim.",
            )
        scale = qk**-0.5 if sm_scale is None else finite("sm_scale", sm_scale)
        return AttentionSpec(qo, kv, qk, vo, dtype, kv_dtype or dtype, page, kv_layout, scale)


def positive_int(name: str, value: Any) -> int:
    """`value` as an int of at least 1 that int32 holds (numpy's integers too), or InvalidArgument."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not 1 <= int(value) <= _INT32_MAX:
        raise InvalidArgument(
            name=name,
            given=value,
            supported=f"an integer >= 1 (and <= {_INT32_MAX})",
            fix="Check where it comes from.",
        )
    return int(value)


def finite(name: str, value: Any) -> float:
    """`value` as a float that fp32 holds, or InvalidArgument."""
    number: Any = value if isinstance(value, numbers.Real) and not isinstance(value, bool) else None
    if number is None or not -_FLOAT32_MAX <= number <= _FLOAT32_MAX:
        raise InvalidArgument(
            name=name, given=value, supported="a finite number (in fp32)", fix="Leave it out for the default."
        )
    return float(value)


def _check_heads(num_qo_heads: int, num_kv_heads: int) -> None:
    if num_qo_heads % num_kv_heads:
        raise InvalidArgument(
            name="num_qo_heads",
            given=num_qo_heads,
            supported=f"a multiple of num_kv_heads = {num_kv_heads}",
            fix="Each kv head serves a whole number of query heads.",
        )


def _check_head_dims(qk: int, vo: int) -> None:
    if (qk, vo) in HEAD_DIM_PAIRS or (qk in HEAD_DIMS and vo in HEAD_DIMS):
        return
    dims = ", ".join(map(str, HEAD_DIMS))
    pairs = ", ".join(map(str, HEAD_DIM_PAIRS))
    raise InvalidArgument(
        name="head_dim" if qk == vo else "(head_dim, head_dim_vo)",
        given=qk if qk == vo else (qk, vo),
        supported=f"one of {dims}, or a pair of these or of {pairs}",
        fix="Pad the head dimension to the next supported size with zeros.",
    )


def _check_dtypes(dtype: object, kv_dtype: object) -> None:
    if dtype not in DTYPES:
        raise InvalidArgument(
            name="dtype",
            given=dtype,
            supported="torch.float16, torch.bfloat16 or torch.float32",
            fix="Name the type that q, k and v have, or convert them.",
        )
    quantised = kv_dtype in FP8_DTYPES and dtype != torch.float32
    if kv_dtype is not None and kv_dtype != dtype and not quantised:
        supported = "" if dtype == torch.float32 else "".join(f" or {one}" for one in FP8_DTYPES)
        raise InvalidArgument(
            name="kv_dtype",
            given=kv_dtype,
            supported=f"{dtype} (that of q){supported}",
            fix="Leave it out for q's dtype; fp8 caches go with fp16 and bf16.",
        )
