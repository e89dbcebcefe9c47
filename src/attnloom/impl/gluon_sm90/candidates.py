"""What a tuner may try: the table's classes, one of them exchanged for another tile, pipeline or number of CTAs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from attnloom.impl.gluon_sm90.configs import TILES_KV, ClassConfig, GluonSm90Config
from attnloom.impl.gluon_sm90.footprint import fits
from attnloom.spec import AttentionSpec

_STAGES = (2, 3, 4, 5, 6)
_REGISTERS = {1: None, 2: 128, 3: 80}  # caps with which an SM's registers hold so many CTAs of eight warps


def candidates(spec: AttentionSpec, default: GluonSm90Config) -> Iterator[GluonSm90Config]:
    """The default with one class exchanged, each of its classes in turn."""
    for index, one in enumerate(default.classes):
        for other in alternatives(one, spec):
            classes = list(default.classes)
            classes[index] = other
            yield GluonSm90Config(tuple(classes))


def alternatives(one: ClassConfig, spec: AttentionSpec) -> Iterator[ClassConfig]:
    """Other ways to run a class's tile_q that fit."""
    prefill = [(1, None, 1), (2, None, 1)]
    decode = [(1, registers, ctas) for ctas, registers in _REGISTERS.items()]
    shapes = prefill if one.kind == "prefill" else decode
    for tile_kv, stages, (q_stages, registers, ctas) in itertools.product(TILES_KV, _STAGES, shapes):
        made = ClassConfig(one.kind, one.tile_q, tile_kv, stages, ctas, registers, q_stages)
        if made != one and fits(made, spec.head_dim_qk, spec.head_dim_vo):
            yield made
