"""Who runs an item: the CTA that the Plan gives it to, or one that has run out of its own.

SMs differ in speed by several percent, and a Plan cannot know. Every CTA's list has a counter, the index of the next
item to run; whoever takes one counts it up. What a counter held before the launch does not matter: its CTA sets it
when it starts, and an item that was taken by a count from before is run twice, with the same result.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SCANNED = gl.constexpr(256)  # lists looked at in one step
_MOST = gl.constexpr((1 << 14) - 1)  # items left that count: what is left and whose it is share 31 bits
_OWNERS = gl.constexpr(1 << 16)


@gluon.jit
def open_list(counters, work_indptr_ptr, heads_per_item):
    """Set the counter of this CTA's list."""
    cta = gl.program_id(0)
    gl.atomic_xchg(counters + cta, gl.load(work_indptr_ptr + cta // heads_per_item), sem="relaxed")


@gluon.jit
def longest_list(counters, work_indptr_ptr, heads_per_item, num_warps: gl.constexpr):
    """The CTA with most items that nobody has taken, -1 where there are none."""
    lanes: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    best = 0
    for base in range(0, gl.num_programs(0), SCANNED):
        cta = base + gl.arange(0, SCANNED, layout=lanes)
        some = cta < gl.num_programs(0)
        group = work_indptr_ptr + cta // heads_per_item
        begin = gl.load(group, mask=some, other=0)
        end = gl.load(group + 1, mask=some, other=0)
        # the counts change while this runs: nothing older than the last level of caches will do
        count = gl.load(counters + cta, mask=some, other=0, volatile=True)
        left = gl.where((count >= begin) & (count < end), gl.minimum(end - count, _MOST), 0)
        best = gl.maximum(best, gl.max(gl.where(left > 0, left * _OWNERS + cta, 0), axis=0))
    return gl.where(best > 0, best % _OWNERS, -1)


@gluon.jit
def take(counters, work_indptr_ptr, owner, heads_per_item, num_warps: gl.constexpr):
    """(whose item, its index), from the list of `owner` or else from the longest; (-1, .) where all are taken."""
    index = 0
    found = False
    while (owner >= 0) & (not found):
        group = work_indptr_ptr + owner // heads_per_item
        begin = gl.load(group)
        end = gl.load(group + 1)
        index = gl.atomic_add(counters + owner, 1, sem="relaxed")
        found = (index >= begin) & (index < end)
        if not found:
            owner = longest_list(counters, work_indptr_ptr, heads_per_item, num_warps)
    return owner, index
