"""Compile-time facts of one Gluon kernel; a frozen value that enters as one constexpr argument."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GluonConfig:
    """What is fixed when a Hopper kernel is compiled.

    TILE_Q, TILE_KV, STAGES   packed rows of a CTA, keys of a step, depth of the copy pipeline
    K_STAGES                  depth of the pipeline of keys where it is one of its own (prefill)
    Q_STAGES                  items whose rows of q are held at once; with 2 the next item begins under this one's end
    GROUP                     query heads per kv head
    K0, K1 / V0, V1           power-of-two pieces of the head dims; the second may be 0, either may reach past the dim
    DIM_QK, DIM_VO            head dims
    PAGED, PAGE_SIZE          page table or ragged; PAGE_SIZE 0: a run-time integer
    SAME_KV                   k and v have equal strides, so that their row offsets are computed once
    SOFTMAX, FOLD             softmax or plain weights; FOLD: scale enters the exponent (no logits functor, scale > 0)
    OWNS                      every key below kv_len lies in the request's own pages, masked or not
    HAS_Q_POS, HAS_KV_POS     positions are given as arrays
    HAS_LSE                   lse is written; pointers that a flag leaves out are dummies
    RAW                       the state of pure softmax is asked for: no sink, no output_transform
    GATHER, ALIGN             rows of k and v come by copies of ALIGN bytes, not by TMA
    Q_TMA                     q comes by TMA: the group divides a warpgroup's rows, strides allow it
    KV_FP8                    "" or the format of k and v: "e4m3", "e5m2"
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
    OWNS: bool
    HAS_Q_POS: bool
    HAS_KV_POS: bool
    HAS_LSE: bool
    RAW: bool
    GATHER: bool
    ALIGN: int
    Q_TMA: bool
    KV_FP8: str
    Q_STAGES: int = 1
    K_STAGES: int = 1
