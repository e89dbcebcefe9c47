"""Work items between the producer, which reads them from the Plan, and the consumers, through shared memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnloom.kernels.gluon.walk import publish, published

# integers of an item in its slot: present or not, keys below which it sees, then its fields
FIELDS = gl.constexpr(16)


@gluon.jit
def publish_item(items, slot, there, limit, item, num_warps: gl.constexpr):
    """item is (row_start, row_count, kv_head, slot, q_begin, qo_len, kv_len, request)."""
    publish(items.index(slot * FIELDS), there, num_warps)
    publish(items.index(slot * FIELDS + 1), limit, num_warps)
    for i in gl.static_range(8):
        publish(items.index(slot * FIELDS + 2 + i), item[i], num_warps)


@gluon.jit
def item_is_there(items, slot):
    """Whether the slot holds an item; if not, none follows."""
    return published(items.index(slot * FIELDS), 4) != 0


@gluon.jit
def item_fields(items, slot):
    """((row_start, row_count, kv_head, slot, q_begin, qo_len, kv_len, request), limit)."""
    at = slot * FIELDS
    item = (
        published(items.index(at + 2), 4),
        published(items.index(at + 3), 4),
        published(items.index(at + 4), 4),
        published(items.index(at + 5), 4),
        published(items.index(at + 6), 4),
        published(items.index(at + 7), 4),
        published(items.index(at + 8), 4),
        published(items.index(at + 9), 4),
    )
    return item, published(items.index(at + 1), 4)
