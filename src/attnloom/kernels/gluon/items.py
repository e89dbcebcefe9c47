"""Work items between the producer, which reads them from the Plan, and the consumers, through shared memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnloom.kernels.gluon.walk import publish, published

# integers of an item in its slot: present or not, keys below which it sees, then its fields
FIELDS = gl.constexpr(16)
ITEMS = gl.constexpr(3)  # slots: one being finished, one begun, one listed


@gluon.jit
def publish_item(items, slot, there, limit, item, num_warps: gl.constexpr):
    """item is (row_start, row_count, kv_head, slot, q_begin, qo_len, kv_len, request)."""
    publish(items.index(slot * FIELDS), there, num_warps)
    publish(items.index(slot * FIELDS + 1), limit, num_warps)
    for i in gl.static_range(8):
        publish(items.index(slot * FIELDS + 2 + i), item[i], num_warps)


@gluon.jit
def item_is_there(items, slot, num_warps: gl.constexpr):
    """Whether the slot holds an item; if not, none follows."""
    return published(items.index(slot * FIELDS), num_warps) != 0


@gluon.jit
def item_fields(items, slot, num_warps: gl.constexpr):
    """((row_start, row_count, kv_head, slot, q_begin, qo_len, kv_len, request), limit)."""
    at = slot * FIELDS
    item = (
        published(items.index(at + 2), num_warps),
        published(items.index(at + 3), num_warps),
        published(items.index(at + 4), num_warps),
        published(items.index(at + 5), num_warps),
        published(items.index(at + 6), num_warps),
        published(items.index(at + 7), num_warps),
        published(items.index(at + 8), num_warps),
        published(items.index(at + 9), num_warps),
    )
    return item, published(items.index(at + 1), num_warps)
