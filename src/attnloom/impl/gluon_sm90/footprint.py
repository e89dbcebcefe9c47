"""Shared memory of the Hopper kernels, computed from the structures that they allocate.

Never less than what Triton takes and at most `MARGIN` more (tests/gluon_compile): its own scratch, for arguments of the
partitions and for reductions across warps, depends on the variant.
"""

from __future__ import annotations

from attnloom.impl.gluon_sm90.configs import ClassConfig

MARGIN = 1280
CTA_LIMIT = 232_448  # of compute capability 9.0: bytes that a CTA may have,
SM_LIMIT = 233_472  # and that an SM has for all its CTAs,
CTA_OVERHEAD = 1024  # each of which costs so much more

_ELEMENT = 2
_BARRIER = 8
_INT = 4
_ITEMS, _FIELDS = 3, 16  # slots of published items, integers of each
_TILES = 8  # that the prefill kernel's walker lists ahead, with a page a lane


def pieces(dim: int) -> tuple[int, int]:
    """Power-of-two widths that cover a head dim; TMA fills the last past the dim with zeros.

    >>> [pieces(dim) for dim in (64, 80, 128, 192, 256)]
    [(64, 0), (128, 0), (128, 0), (128, 64), (256, 0)]
    """
    return (128, 64) if dim == 192 else (1 << (dim - 1).bit_length(), 0)


def shared_memory(
    one: ClassConfig, head_dim_qk: int, head_dim_vo: int, *, owns: bool = False, gather: bool = False
) -> int:
    """Bytes of shared memory of a CTA; owns, gather: as of `GluonConfig`, by default what takes most."""
    k, v = sum(pieces(head_dim_qk)), sum(pieces(head_dim_vo))
    ring = _ELEMENT * one.tile_kv * (one.key_stages * k + one.value_stages(owns=owns) * v)
    q = _ELEMENT * one.q_stages * one.tile_q * k
    return ring + q + (_prefill(one, owns, gather) if one.kind == "prefill" else _decode(one))


def fits(one: ClassConfig, head_dim_qk: int, head_dim_vo: int) -> bool:
    """Whether a CTA, and as many as the class wants on an SM, have the shared memory."""
    needed = max(shared_memory(one, head_dim_qk, head_dim_vo, owns=owns) for owns in (True, False))
    return needed <= CTA_LIMIT and one.ctas_per_sm * (needed + CTA_OVERHEAD) <= SM_LIMIT


def _prefill(one: ClassConfig, owns: bool, gather: bool) -> int:
    """What is published, which keys are seen, barriers; arguments of the partitions, or reductions over warps."""
    tiles = 0 if gather else _TILES
    published = _INT * (_ITEMS * _FIELDS + one.key_stages + tiles * (32 + 2))
    seen = 0 if owns else _INT * 2 * one.tile_kv
    scratch = 0 if owns else 2 * 4 * _INT * one.tile_kv  # of two warpgroups' warps
    barriers = _BARRIER * (2 * (one.q_stages + one.key_stages + one.stages) + 1 + _ITEMS + 2 * tiles)
    return published + seen + barriers + max(scratch, 640) + 256


def _decode(one: ClassConfig) -> int:
    """Weights on their way to the second product, which keys are seen, a reduction's scratch, barriers, arguments."""
    weights = _ELEMENT * one.tile_kv * one.tile_q
    published = _INT * (one.stages + one.tile_kv)
    barriers = _BARRIER * 2 * one.stages
    scratch = max(_INT * 4 * one.tile_q, 512)
    return weights + published + barriers + scratch + 64
