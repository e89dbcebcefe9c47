"""Shared memory that the kernels have in common: barriers, and rings of tiles of keys or values."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def barriers(NUM: gl.constexpr, COUNT: gl.constexpr):
    """NUM barriers that COUNT arrivals complete."""
    made = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM):
        mbarrier.init(made.index(i), count=COUNT)
    return made


@gluon.jit
def ring(dtype: gl.constexpr, NUM: gl.constexpr, KEYS: gl.constexpr, WIDTH: gl.constexpr):
    """NUM tiles of one piece of keys or values, [NUM, 1, KEYS, 1, WIDTH]."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, KEYS, 1, WIDTH], dtype)
    return gl.allocate_shared_memory(dtype, [NUM, 1, KEYS, 1, WIDTH], layout)
