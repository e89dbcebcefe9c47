"""Compile-time facts of one kernel; a frozen value that enters as one constexpr argument."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelConfig:
    """What is fixed when an attention or merge kernel is compiled.

    TILE_Q, TILE_KV, STAGES   tile sizes (powers of two) and depth of the copy pipeline
    GROUP                     query heads per kv head
    K0, K1 / V0, V1           power-of-two pieces of the head dims; the second may be 0 or reach past the dim
    DIM_QK, DIM_VO            head dims
    PAGED, PAGE_SIZE          page table or ragged; PAGE_SIZE 0: a run-time integer
    SAME_KV                   k and v have equal strides, so that their row offsets are computed once
    SOFTMAX, FOLD             softmax or plain weights; FOLD: scale enters the exponent (no logits functor, scale > 0)
    GUARD                     a full tile may still hold -inf logits (a logits functor may return it)
    ONE_LOOP                  full and masked tiles share a loop: every key below kv_len lies in the request's own pages
    AHEAD                     rows of q are loaded while the item before is written
    HAS_Q_POS, HAS_KV_POS     positions are given as arrays
    HAS_LSE                   lse is written; pointers that a flag leaves out are dummies
    UPCAST                    operands of products go to fp32 first
    KV_FP8                    "", or the format of k and v, whose pointers are then to bytes: "e4m3", "e5m2"
    FP8_CAST                  the GPU converts that format itself
    RAW                       the state of pure softmax is asked for: no sink, no output_transform
    """

    TILE_Q: int
    TILE_KV: int
    STAGES: int
    GROUP: int
    K0: int
    K1: int
    V0: int
    V1: int
    DIM_QK: int
    DIM_VO: int
    PAGED: bool
    PAGE_SIZE: int
    SAME_KV: bool
    SOFTMAX: bool
    FOLD: bool
    GUARD: bool
    ONE_LOOP: bool
    AHEAD: bool
    HAS_Q_POS: bool
    HAS_KV_POS: bool
    HAS_LSE: bool
    UPCAST: bool
    KV_FP8: str
    FP8_CAST: bool
    RAW: bool
