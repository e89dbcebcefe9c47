"""The prefill kernel: two consumer warpgroups of 64 packed rows, a producer and a walker, persistent over a Plan.

FlashAttention-3's structure. K, V and q come by TMA into rings in shared memory; see prefill_producer and
prefill_consumer.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attnloom.kernels.gluon.items import FIELDS, ITEMS
from attnloom.kernels.gluon.memory import barriers, ring
from attnloom.kernels.gluon.prefill_consumer import consume
from attnloom.kernels.gluon.prefill_gather import ARRIVALS, WARPS, gather
from attnloom.kernels.gluon.prefill_producer import produce
from attnloom.kernels.gluon.prefill_walker import TILES, walk

ROWS = gl.constexpr(64)
# of a thread; those of all warps together are the SM's 65536
CONSUMER_REGISTERS = gl.constexpr(240)
CONSUMER_BESIDE_GATHER = gl.constexpr(208)
GATHER_REGISTERS = gl.constexpr(96)


@gluon.jit
def consume_second(
    bufs,
    bars,
    q_tensor,
    tensors,
    inputs,
    LOGITS: gl.constexpr,
    MASK: gl.constexpr,
    SINK: gl.constexpr,
    OUTPUT: gl.constexpr,
    cfg: gl.constexpr,
):
    """The second warpgroup of consumers."""
    consume(bufs, bars, q_tensor, tensors, inputs, LOGITS, MASK, SINK, OUTPUT, cfg, 1)


@gluon.jit
def query_ring(dtype: gl.constexpr, NUM: gl.constexpr, GROUP: gl.constexpr, WIDTH: gl.constexpr):
    """Shared memory for the rows of q of NUM items, 64 of each warpgroup."""
    TOKENS: gl.constexpr = ROWS // GROUP if ROWS % GROUP == 0 else ROWS
    HEADS: gl.constexpr = ROWS // TOKENS
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TOKENS, HEADS, WIDTH], dtype)
    return gl.allocate_shared_memory(dtype, [2 * NUM, TOKENS, HEADS, WIDTH], layout)


@gluon.jit(do_not_specialize=["operands", "sm_scale", "page_size", "num_pages", "heads_per_item"])
def prefill_kernel(
    q0_desc,  # boxes [64 / GROUP tokens, GROUP heads, K0]; None: consumers copy q
    q1_desc,
    k0_desc,  # boxes [1, rows of a page, 1, K0]
    k1_desc,
    v0_desc,
    v1_desc,
    q_tensor,  # (pointer, row stride, head stride)
    k_tensor,  # (pointer, page stride, token stride, head stride)
    v_tensor,
    out_tensor,  # (pointer, row stride, head stride)
    lse_tensor,  # (pointer, row stride)
    parts,  # (out, lse) of this class in the workspace
    work,  # (items, item_segments, segments, work_indptr)
    sequences,  # (qo_indptr, kv_indptr, kv_len, pages, page_start)
    positions,  # (q_pos, kv_pos)
    operands,  # the variant's, flat
    sm_scale,
    page_size,
    num_pages,  # of the pool
    heads_per_item,
    kv_scales,
    counters,  # of this class's CTAs, int32 [num_ctas]
    LOGITS: gl.constexpr,
    MASK: gl.constexpr,
    SINK: gl.constexpr,
    OUTPUT: gl.constexpr,
    cfg: gl.constexpr,
):
    """Run the items of CTA `program_id(0)`."""
    dtype: gl.constexpr = q_tensor[0].dtype.element_ty
    q0 = query_ring(dtype, cfg.Q_STAGES, cfg.GROUP, cfg.K0)
    k0 = ring(dtype, cfg.K_STAGES, cfg.TILE_KV, cfg.K0)
    v0 = ring(dtype, cfg.STAGES, cfg.TILE_KV, cfg.V0)
    q1, k1, v1 = q0, k0, v0
    if cfg.K1 > 0:
        q1 = query_ring(dtype, cfg.Q_STAGES, cfg.GROUP, cfg.K1)
        k1 = ring(dtype, cfg.K_STAGES, cfg.TILE_KV, cfg.K1)
    if cfg.V1 > 0:
        v1 = ring(dtype, cfg.STAGES, cfg.TILE_KV, cfg.V1)
    numbers: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    items = gl.allocate_shared_memory(gl.int32, [ITEMS * FIELDS, 1], numbers)
    tags = gl.allocate_shared_memory(gl.int32, [cfg.K_STAGES, 1], numbers)
    bufs = ((q0, q1), (k0, k1), (v0, v1), items, tags)
    if not cfg.OWNS:
        bufs = (
            (q0, q1),
            (k0, k1),
            (v0, v1),
            items,
            tags,
            gl.allocate_shared_memory(gl.int32, [2, cfg.TILE_KV], numbers),
        )
    bars = (
        barriers(cfg.Q_STAGES, 1),  # q_full
        barriers(cfg.Q_STAGES, 2),  # q_empty
        barriers(cfg.K_STAGES, ARRIVALS if cfg.GATHER else 1),  # k_full
        barriers(cfg.K_STAGES, 2),  # k_empty
        barriers(cfg.STAGES, ARRIVALS if cfg.GATHER else 1),  # v_full
        barriers(cfg.STAGES, 2),  # v_empty
        barriers(1, 2),  # cleaning
        barriers(ITEMS, 3),  # item_empty
    )
    listed = (
        gl.allocate_shared_memory(gl.int32, [TILES, 1], numbers),  # tags
        gl.allocate_shared_memory(gl.int32, [TILES, 1], numbers),  # kv heads
        gl.allocate_shared_memory(gl.int32, [TILES, 32], numbers),  # pages
        barriers(TILES, 1),  # full
        barriers(TILES, 1),  # empty
    )
    fence_async_shared()
    tensors = (out_tensor, lse_tensor, parts)
    inputs = (positions, sequences[1], operands, sm_scale)
    q_descs = (q0_desc, q1_desc)
    if cfg.GATHER:
        caches = (k_tensor, v_tensor)
        pool = (page_size, num_pages)
        gl.warp_specialize(
            [
                (consume, (bufs, bars, q_tensor, tensors, inputs, LOGITS, MASK, SINK, OUTPUT, cfg, 0)),
                (consume_second, (bufs, bars, q_tensor, tensors, inputs, LOGITS, MASK, SINK, OUTPUT, cfg)),
                (gather, (bufs, bars, q_descs, caches, work, sequences, pool, heads_per_item, counters, cfg)),
            ],
            [4, WARPS],
            [CONSUMER_BESIDE_GATHER, GATHER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (bufs, bars, q_tensor, tensors, inputs, LOGITS, MASK, SINK, OUTPUT, cfg, 0)),
                (consume_second, (bufs, bars, q_tensor, tensors, inputs, LOGITS, MASK, SINK, OUTPUT, cfg)),
                (produce, (bufs, bars, q_descs, (k0_desc, k1_desc), (v0_desc, v1_desc), listed, cfg)),
                (walk, (items, bars[7], listed, work, sequences, num_pages, heads_per_item, counters, cfg)),
            ],
            [4, 1, 1],
            [CONSUMER_REGISTERS, 32, 32],
        )
