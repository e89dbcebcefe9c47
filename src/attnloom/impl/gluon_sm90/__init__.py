"""The `gluon_sm90` implementation: FlashAttention-3's structure on Hopper, in Gluon."""

from attnloom.impl.gluon_sm90.implementation import GluonSm90Implementation

__all__ = ["GluonSm90Implementation"]
