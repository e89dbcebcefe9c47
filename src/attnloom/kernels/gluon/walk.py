"""The kv tiles of a work item, last to first, as the producer walks them and tells the consumers."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnloom.schedule.work import SEGMENT_FIELDS

BOUNDS = gl.constexpr(len(SEGMENT_FIELDS))

# a tile as one integer: its first key, a multiple of 32, and flags
MASKED = gl.constexpr(1)
LAST = gl.constexpr(2)  # of its item
FIRST = gl.constexpr(4)
NONE = gl.constexpr(8)  # no tile: no item follows
FLAGS = gl.constexpr(31)


@gluon.jit
def read_piece(segments_ptr, segment, first, span):
    """(begin, end, full) of a segment within span (kv_begin, kv_end); begin >= end: nothing of it, or no segment."""
    kv_begin, kv_end = span
    some = segment >= first
    at = segments_ptr + segment * BOUNDS
    begin = gl.maximum(gl.load(at, mask=some, other=0), kv_begin)
    end = gl.minimum(gl.load(at + 1, mask=some, other=0), kv_end)
    return begin, end, gl.load(at + 2, mask=some, other=0)


@gluon.jit
def last_piece(segments_ptr, first, last, span):
    """(segment, begin, end, full) of the last segment that reaches into span."""
    segment = last - 1
    begin, end, full = read_piece(segments_ptr, segment, first, span)
    while (begin >= end) & (segment > first):
        segment -= 1
        begin, end, full = read_piece(segments_ptr, segment, first, span)
    return segment, begin, end, full


@gluon.jit
def last_tile(begin, end, TILE_KV: gl.constexpr):
    """First key of the last tile of a piece; -1 for an empty one (begin is a multiple of TILE_KV)."""
    return gl.where(begin < end, (end - 1) // TILE_KV * TILE_KV, -1)


@gluon.jit
def before(at, piece, segments_ptr, first, span, TILE_KV: gl.constexpr):
    """What comes after tile `at` going down: (its first key or -1, its piece (segment, begin, end, full))."""
    segment, begin, end, full = piece
    following = at - TILE_KV
    if following < begin:
        segment -= 1
        begin, end, full = read_piece(segments_ptr, segment, first, span)
        following = last_tile(begin, end, TILE_KV)
    return following, (segment, begin, end, full)


@gluon.jit
def tag_of(at, limit, full, last, TILE_KV: gl.constexpr):
    """The integer that stands for a tile; a full tile with keys past `limit` is masked too."""
    is_masked = (full == 0) | (at + TILE_KV > limit)
    return gl.maximum(at, 0) | gl.where(is_masked, MASKED, 0) | gl.where(last, LAST, 0)


@gluon.jit
def publish(slot, value, num_warps: gl.constexpr):
    """Store one integer for other partitions; an arrival on a barrier must follow."""
    slot.store(gl.full([1], value, gl.int32, gl.BlockedLayout([1], [32], [num_warps], [0])))


@gluon.jit
def published(slot, num_warps: gl.constexpr):
    """An integer that another partition stored; the shuffle shows ptxas that it is the same in all of a warp."""
    x = slot.load(gl.BlockedLayout([1], [32], [num_warps], [0]))
    x = gl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "=r,r", [x], dtype=gl.int32, is_pure=True, pack=1
    )
    return gl.max(x, axis=0)
