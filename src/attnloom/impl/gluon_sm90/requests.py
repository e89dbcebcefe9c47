"""Which Hopper kernels a launch needs: the facts of a plan and its tensors as compile-time constants and types."""

from __future__ import annotations

from typing import Any

from attnloom.compile.request import Request
from attnloom.compile.signature import signature_of, type_of
from attnloom.impl.base import LaunchTensors
from attnloom.impl.gluon_sm90 import descriptors, movement
from attnloom.impl.gluon_sm90.configs import ClassConfig
from attnloom.impl.gluon_sm90.footprint import pieces
from attnloom.impl.triton import arguments
from attnloom.impl.triton.requests import SMALLEST_FOLDED, example, functions_of, owns_every_key
from attnloom.kernels.gluon.config import GluonConfig
from attnloom.schedule.work import Plan


def attention_request(plan: Plan, t: LaunchTensors, index: int, how: tuple[ClassConfig, Any]) -> Request:
    """The kernel of class `index`; how: its config, and the target (backend, architecture, warp size)."""
    config, target = how
    function, cfg = kernel_function(config), kernel_config(plan, t, config)
    described = descriptors.types(cfg, *(type_of(arguments.TENSORS.tensor(one))[1:] for one in (t.q, t.k)))
    ours, call, parts = example(plan, t, index)
    given = described | arguments.attention(plan, t, (ours, call, parts), index)
    given["counters"] = arguments.counters(t, ours, index, arguments.TENSORS)
    missing = {name: None for name in descriptors.NAMES if name not in described}
    constants = {**missing, **functions_of(t.program), "cfg": cfg}
    expected = [
        *descriptors.NAMES,
        *(name for name in given if name not in described),
        *list(constants)[len(missing) :],
    ]
    if expected != function.arg_names:  # a launch passes arguments by place
        raise RuntimeError(f"{function.__name__} takes {function.arg_names}, built were {expected}")
    types = {**described, "operands": arguments.operand_types(t)}
    signature, divisible = signature_of(function.arg_names, given, facts=arguments.LOOKED_AT, types=types)
    return Request(function, signature, divisible, constants, config.options(), target)


def kernel_function(config: ClassConfig) -> Any:
    """The kernel of a class."""
    if config.kind == "prefill":
        from attnloom.kernels.gluon.prefill import prefill_kernel

        return prefill_kernel
    from attnloom.kernels.gluon.decode import decode_kernel

    return decode_kernel


def kernel_config(plan: Plan, t: LaunchTensors, config: ClassConfig) -> GluonConfig:
    """The compile-time facts of one class's kernel; what a way of moving rows does not read is the same for all."""
    spec, program, view = t.spec, t.program, plan.levels[0]
    k0, k1 = pieces(spec.head_dim_qk)
    v0, v1 = pieces(spec.head_dim_vo)
    paged, gather = view.pages is not None, not movement.kv_by_tma(plan, t, config.tile_kv)
    power = view.page_size & (view.page_size - 1) == 0
    return GluonConfig(
        TILE_Q=config.tile_q,
        TILE_KV=config.tile_kv,
        STAGES=config.value_stages(owns=owns_every_key(t)),
        Q_STAGES=config.q_stages,
        K_STAGES=config.key_stages,
        GROUP=plan.group_size,
        K0=k0,
        K1=k1,
        V0=v0,
        V1=v1,
        DIM_QK=spec.head_dim_qk,
        DIM_VO=spec.head_dim_vo,
        PAGED=paged,
        PAGE_SIZE=view.page_size if paged and (power or not gather) else 0,
        SAME_KV=gather and t.k.stride()[:2] == t.v.stride()[:2],
        SOFTMAX=program.use_softmax,
        FOLD=program.use_softmax and program.logits is None and spec.sm_scale > SMALLEST_FOLDED,
        OWNS=owns_every_key(t),
        HAS_Q_POS=t.q_pos is not None,
        HAS_KV_POS=t.kv_pos is not None,
        HAS_LSE=t.lse is not None,
        RAW=t.raw_state,
        GATHER=gather,
        ALIGN=movement.kv_alignment(plan, t) if gather else movement.BYTES,
        Q_TMA=config.kind == "prefill" and movement.q_by_tma(plan, t),
        KV_FP8=spec.kv_fp8,
    )
