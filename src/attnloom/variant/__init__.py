"""The variant language: plain Python functions become expressions, checked once and read by everybody.

``trace`` calls the functors on symbols, ``verify`` checks and ``simplify`` shrinks the result, ``program`` holds
it and composes, ``bounds`` says where the mask is full or empty, ``identity`` fingerprints, ``evaluate`` computes in
torch. Code for devices will come from ``emit``, which reads the same `Program` (`expr`, `ops`).
"""

from attnloom.variant.flex import from_flex
from attnloom.variant.language import fast_tanh
from attnloom.variant.params import Param, param
from attnloom.variant.program import Program
from attnloom.variant.variant import Variant

__all__ = ["Param", "Program", "Variant", "fast_tanh", "from_flex", "param"]
