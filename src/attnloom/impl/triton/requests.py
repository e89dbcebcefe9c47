"""Which kernels a launch needs: the facts of a plan and its tensors as compile-time constants and types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from attnloom.compile.emitted import module_of
from attnloom.compile.request import Request
from attnloom.compile.signature import signature_of
from attnloom.impl.base import LaunchTensors
from attnloom.impl.triton import arguments
from attnloom.impl.triton.configs import ClassConfig
from attnloom.impl.triton.footprint import pieces
from attnloom.kernels.triton.attention import attention_kernel
from attnloom.kernels.triton.config import KernelConfig
from attnloom.kernels.triton.merge import merge_kernel
from attnloom.schedule.work import Plan
from attnloom.variant import Program
from attnloom.variant.bounds import compile_bounds

MERGE_OPTIONS = {"num_warps": 4}
_MERGED_ROWS = 2  # that a CTA of the merge takes at a time: few, so that it reads many states of a long chain at once
_MERGED_ELEMENTS = 8192  # of partial states that it holds: 64 registers a thread
SMALLEST_FOLDED = 2.0**-100  # see kernels/fp8
_CONVERTING = 89  # the compute capability from which on NVIDIA's GPUs convert fp8
_AHEAD_BYTES = 32 * 128  # of q per warp that fit registers beside the state: 32 registers a thread

_FUNCTIONS = {"LOGITS": "logits_transform", "MASK": "logits_mask", "SINK": "sink", "OUTPUT": "output_transform"}


def functions_of(program: Program) -> dict[str, Any]:
    """The emitted functors under the kernels' names, None for those that the variant leaves out."""
    module = module_of(program)
    return {argument: getattr(module, name, None) for argument, name in _FUNCTIONS.items()}


def attention_constants(plan: Plan, t: LaunchTensors, config: ClassConfig, target: Any = None) -> dict[str, Any]:
    """The attention kernel's constants; target None is the interpreter."""
    cfg = kernel_config(plan, t, config)
    if t.spec.kv_fp8 and target is not None:
        cfg = dataclasses.replace(cfg, FP8_CAST=_converts(target))
    return {**functions_of(t.program), "cfg": cfg}


def _converts(target: Any) -> bool:
    """Whether the GPU (backend, architecture, warp size) converts fp8 itself."""
    return target[0] == "cuda" and bool(target[1] >= _CONVERTING)


def merge_tile(head_dim_vo: int) -> ClassConfig:
    """tile_q: rows that a CTA of the merge takes at a time; tile_kv: states of each row that it reads at once."""
    width, _ = pieces(head_dim_vo)
    states = min(max(2, _MERGED_ELEMENTS // (_MERGED_ROWS * width)), 32)
    return ClassConfig(_MERGED_ROWS, states, MERGE_OPTIONS["num_warps"], 1)


def merge_constants(plan: Plan, t: LaunchTensors) -> dict[str, Any]:
    """The merge kernel's constants."""
    functions = functions_of(t.program)
    cfg = dataclasses.replace(  # what a merge does not read is the same for all, so that fewer are compiled
        kernel_config(plan, t, merge_tile(t.spec.head_dim_vo)),
        STAGES=1,
        PAGED=False,
        PAGE_SIZE=0,
        SAME_KV=False,
        FOLD=False,
        GUARD=False,
        ONE_LOOP=False,
        AHEAD=False,
        HAS_KV_POS=False,
        KV_FP8="",
    )
    classes = len(plan.classes)
    return {"SINK": functions["SINK"], "OUTPUT": functions["OUTPUT"], "CLASSES": classes, "cfg": cfg}


def attention_request(plan: Plan, t: LaunchTensors, index: int, how: tuple[ClassConfig, Any]) -> Request:
    """The attention kernel of class `index`; how: its config, and the target (backend, architecture, warp size)."""
    config, target = how
    given = arguments.attention(plan, t, example(plan, t, index), index)
    constants = attention_constants(plan, t, config, target)
    return _request(attention_kernel, t, given, (constants, config.options(), target))


def merge_request(plan: Plan, t: LaunchTensors, target: Any) -> Request:
    """The merge kernel for the target (backend, architecture, warp size)."""
    ours, call, _ = example(plan, t, 0)
    given = arguments.merge(plan, t, (ours, call), arguments.TENSORS)
    return _request(merge_kernel, t, given, (merge_constants(plan, t), MERGE_OPTIONS, target))


def requests(plan: Plan, t: LaunchTensors, configs: tuple[ClassConfig, ...], target: Any) -> Iterator[Request]:
    """Every kernel that launches of plans like this one may need: the attention of each class, and the merge."""
    for index, config in enumerate(configs):
        yield attention_request(plan, t, index, (config, target))
    yield merge_request(plan, t, target)


def example(plan: Plan, t: LaunchTensors, index: int) -> tuple[Any, Any, Any]:
    """The arguments as tensors, to read types off."""
    ours = arguments.of_plan(plan, t.spec.head_dim_vo, arguments.TENSORS)
    call = arguments.of_call(t, ours.unused, arguments.TENSORS)
    return ours, call, arguments.parts(t, ours, index, arguments.TENSORS)


def _request(function: Any, t: LaunchTensors, given: dict[str, Any], how: tuple[Any, Any, Any]) -> Request:
    constants, options, target = how
    if [*given, *constants] != function.arg_names:  # a launch passes arguments by place
        raise RuntimeError(f"{function.__name__} takes {function.arg_names}, built were {[*given, *constants]}")
    types = {"operands": arguments.operand_types(t)}
    if "regions" in given:  # elements are counted in int64
        types["regions"] = ("i64", "i64", "i32") * (len(given["regions"]) // 3)
    signature, divisible = signature_of(function.arg_names, given, facts=arguments.LOOKED_AT, types=types)
    return Request(function, signature, divisible, constants, options, target)


def kernel_config(plan: Plan, t: LaunchTensors, config: ClassConfig) -> KernelConfig:
    """The compile-time facts of one class's kernel."""
    spec, program, view = t.spec, t.program, plan.levels[0]
    k0, k1 = pieces(spec.head_dim_qk)
    v0, v1 = pieces(spec.head_dim_vo)
    page_size = view.page_size
    return KernelConfig(
        TILE_Q=config.tile_q,
        TILE_KV=config.tile_kv,
        STAGES=config.stages,
        GROUP=plan.group_size,
        K0=k0,
        K1=k1,
        V0=v0,
        V1=v1,
        DIM_QK=spec.head_dim_qk,
        DIM_VO=spec.head_dim_vo,
        PAGED=view.pages is not None,
        PAGE_SIZE=page_size if page_size & (page_size - 1) == 0 and view.pages is not None else 0,
        SAME_KV=t.k.stride()[:2] == t.v.stride()[:2],
        SOFTMAX=program.use_softmax,
        FOLD=program.use_softmax and program.logits is None and spec.sm_scale > SMALLEST_FOLDED,
        GUARD=program.logits is not None,
        ONE_LOOP=config.one_loop and owns_every_key(t),
        AHEAD=config.tile_q * (k0 + k1) * t.q.element_size() <= _AHEAD_BYTES * config.num_warps,
        HAS_Q_POS=t.q_pos is not None,
        HAS_KV_POS=t.kv_pos is not None,
        HAS_LSE=t.lse is not None,
        KV_FP8=spec.kv_fp8,
        FP8_CAST=False,
        UPCAST=t.q.device.type == "cpu" or spec.dtype == torch.float32,
        RAW=t.raw_state,
    )


def owns_every_key(t: LaunchTensors) -> bool:
    """Whether every key below kv_len is seen by some row of its request: else a page may have left its window."""
    return t.q_pos is None and t.kv_pos is None and compile_bounds(t.program).last_row_sees_all
