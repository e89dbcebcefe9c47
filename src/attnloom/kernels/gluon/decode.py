"""The decode kernel: few rows of q, a producer and one consumer warpgroup, persistent over the Plan's items.

Both products have their operands swapped (see decode_tile), so that 8 rows of q cost 8 columns of a tensor core's
product and not 64 rows. Two or more CTAs share an SM: one copies while another computes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attnloom.kernels.gluon.decode_consumer import consume
from attnloom.kernels.gluon.decode_producer import GATHER_ARRIVALS, GATHER_WARPS, load_by_gather, load_by_tma
from attnloom.kernels.gluon.memory import barriers, ring

TMA_REGISTERS = gl.constexpr(48)
GATHER_REGISTERS = gl.constexpr(80)  # rows of 16-byte vectors; narrower ones need more addresses
NARROW_GATHER_REGISTERS = gl.constexpr(96)


@gluon.jit
def matrix(dtype: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """An operand of a product."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], dtype)
    return gl.allocate_shared_memory(dtype, [ROWS, WIDTH], layout)


@gluon.jit(do_not_specialize=["operands", "sm_scale", "page_size", "num_pages", "heads_per_item"])
def decode_kernel(
    q0_desc,  # not used: the consumer copies the few rows of q
    q1_desc,
    k0_desc,  # boxes [1, rows of a page, 1, K0]; None with GATHER
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
    counters,
    LOGITS: gl.constexpr,
    MASK: gl.constexpr,
    SINK: gl.constexpr,
    OUTPUT: gl.constexpr,
    cfg: gl.constexpr,
):
    """Run the items of CTA `program_id(0)`."""
    dtype: gl.constexpr = q_tensor[0].dtype.element_ty
    kv_dtype: gl.constexpr = k_tensor[0].dtype.element_ty
    q0 = matrix(dtype, cfg.TILE_Q, cfg.K0)
    k0 = ring(kv_dtype, cfg.STAGES, cfg.TILE_KV, cfg.K0)
    v0 = ring(kv_dtype, cfg.STAGES, cfg.TILE_KV, cfg.V0)
    q1, k1, v1 = q0, k0, v0
    if cfg.K1 > 0:
        q1 = matrix(dtype, cfg.TILE_Q, cfg.K1)
        k1 = ring(kv_dtype, cfg.STAGES, cfg.TILE_KV, cfg.K1)
    if cfg.V1 > 0:
        v1 = ring(kv_dtype, cfg.STAGES, cfg.TILE_KV, cfg.V1)
    numbers: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    tags = gl.allocate_shared_memory(gl.int32, [cfg.STAGES, 1], numbers)
    useful = gl.allocate_shared_memory(gl.int32, [cfg.TILE_KV], numbers)
    p_smem = matrix(dtype, cfg.TILE_KV, cfg.TILE_Q)
    bars = (barriers(cfg.STAGES, GATHER_ARRIVALS if cfg.GATHER else 1), barriers(cfg.STAGES, 1))
    group = gl.program_id(0) // heads_per_item
    span = (gl.load(work[3] + group), gl.load(work[3] + group + 1))
    fence_async_shared()
    tensors = (q_tensor, out_tensor, lse_tensor, parts)
    bufs = ((q0, q1), (k0, k1), (v0, v1), tags, p_smem, useful)
    inputs = (positions, operands, sm_scale)
    where = (work, sequences, span, heads_per_item)
    rings = ((k0, k1), (v0, v1), tags)
    descs = ((k0_desc, k1_desc), (v0_desc, v1_desc))
    if cfg.GATHER:
        gl.warp_specialize(
            [
                (consume, (bufs, bars, tensors, where, inputs, LOGITS, MASK, SINK, OUTPUT, cfg)),
                (load_by_gather, (rings, bars, (k_tensor, v_tensor), where, (page_size, num_pages), cfg)),
            ],
            [GATHER_WARPS],
            [GATHER_REGISTERS if cfg.ALIGN == 16 else NARROW_GATHER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (bufs, bars, tensors, where, inputs, LOGITS, MASK, SINK, OUTPUT, cfg)),
                (load_by_tma, (rings, bars, descs, where, num_pages, cfg)),
            ],
            [1],
            [TMA_REGISTERS],
        )
