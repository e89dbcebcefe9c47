"""What a tuner may try: the table's classes, one of them exchanged for another tile, pipeline or number of CTAs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from attnloom.impl.gluon_sm90.configs import TILES_KV, ClassConfig, GluonSm90Config
from attnloom.impl.gluon_sm90.footprint import fits
from attnloom.spec import AttentionSpec

_STAGES = (2, 3, 4, 5, 6)
_PREFILL_STAGES = (2, 3, 4)
_DECODE_REGISTERS = {1: None, 2: 128, 3: 80}  # caps with which an SM holds so many CTAs of eight warps
_PREFILL_REGISTERS = 168


def candidates(spec: AttentionSpec, default: GluonSm90Config) -> Iterator[GluonSm90Config]:
    """The default with one class exchanged, each of its classes in turn."""
    for index, one in enumerate(default.classes):
        for other in alternatives(one, spec):
            classes = list(default.classes)
            classes[index] = other
            yield GluonSm90Config(tuple(classes))


def alternatives(one: ClassConfig, spec: AttentionSpec) -> Iterator[ClassConfig]:
    """Other ways to run a class's tile_q that fit."""
    for made in _prefill(one.tile_q) if one.kind == "prefill" else _decode(one.tile_q):
        if made != one and fits(made, spec.head_dim_qk, spec.head_dim_vo):
            yield made


def _decode(tile_q: int) -> Iterator[ClassConfig]:
    for tile_kv, stages, (ctas, cap) in itertools.product(TILES_KV["decode"], _STAGES, _DECODE_REGISTERS.items()):
        yield ClassConfig("decode", tile_q, tile_kv, stages, ctas, cap)


def _prefill(tile_q: int) -> Iterator[ClassConfig]:
    stages_of = (_PREFILL_STAGES, _PREFILL_STAGES, (1, 2))
    for tile_kv, stages, k_stages, q_stages in itertools.product(TILES_KV["prefill"], *stages_of):
        own = None if k_stages == stages else k_stages
        yield ClassConfig("prefill", tile_q, tile_kv, stages, 1, _PREFILL_REGISTERS, q_stages, own)
