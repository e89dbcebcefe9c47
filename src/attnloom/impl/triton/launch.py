"""From a Plan and its tensors to kernel launches.

On a GPU a launch is a look-up, a tuple of addresses and numbers, and a call of the compiled kernel's own launcher:
nothing is inferred again, and nothing is encoded on the host. Triton's interpreter takes the same arguments.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch

from attnloom.compile import toolchain
from attnloom.compile.cache import kernel_of
from attnloom.compile.failures import explained
from attnloom.compile.kernel import CompiledKernel
from attnloom.compile.request import Request
from attnloom.impl.base import LaunchTensors
from attnloom.impl.triton import arguments, requests
from attnloom.impl.triton.configs import ClassConfig
from attnloom.kernels.triton.attention import attention_kernel
from attnloom.kernels.triton.merge import merge_kernel
from attnloom.schedule.work import Plan
from attnloom.target import Target

_REMEMBERED = 4096
_ALIGNMENT = 15
_MOST_BLOCKS = 16

_kernels: dict[tuple[Any, ...], CompiledKernel] = {}


def launch(plan: Plan, tensors: LaunchTensors, configs: tuple[ClassConfig, ...]) -> None:
    """One attention launch per class that has items, then one merge where something was split.

    Under declared maxima every plan is launched alike, as the whole buffers: a captured launch serves later plans.
    """
    plan = plan.whole or plan
    launch_classes(plan, (_Interpreted if tensors.q.device.type == "cpu" else Compiled)(plan, tensors, configs))


def launch_classes(plan: Plan, one: Launching) -> None:
    """The attention of each class that has items, then one merge for all where something was split."""
    for index, work in enumerate(plan.classes):
        if work.num_items:
            one.attend(index)
    if plan.merges.num_entries:
        one.merge()


class Launching(Protocol):
    """The launches of one plan and its tensors."""

    def attend(self, index: int) -> None:
        """The attention kernel of class `index`."""

    def merge(self) -> None:
        """The merge kernel."""


def merge_grid(plan: Plan, rows: int) -> tuple[int, int, int]:
    """CTAs of a merge that takes `rows` at a time: per entry, kv head where one stands for every head, and rows.

    A large tile's rows are shared by no more than 16 CTAs, since most tiles that are split have few.
    """
    present = [work for work in plan.classes if work.num_items]
    blocks = -(-max([work.tile.tile_q for work in present]) // rows)
    return plan.merges.num_entries, max([work.heads_per_item for work in present]), min(blocks, _MOST_BLOCKS)


class Compiled:
    """Launches on a GPU."""

    def __init__(self, plan: Plan, t: LaunchTensors, configs: tuple[ClassConfig, ...]) -> None:
        self._plan, self._tensors, self._configs = plan, t, configs
        self._ours = arguments.addresses_of_plan(plan, t.spec.head_dim_vo)
        self._call = arguments.of_call(t, self._ours.unused, arguments.ADDRESSES)
        self._facts = facts_of(plan, t, self._call)
        self._device = t.q.device.index

    def attend(self, index: int) -> None:
        """The attention kernel of class `index`."""
        plan = self._plan
        given = arguments.attention(plan, self._tensors, self._of(index), index)
        kernel = self._kernel(index)
        kernel.launch(self._device, (plan.classes[index].tile.num_ctas, 1, 1), tuple(given.values()))

    def merge(self) -> None:
        """The merge kernel."""
        plan, t, ours = self._plan, self._tensors, self._ours
        given = arguments.merge(plan, t, (ours, self._call), arguments.ADDRESSES)
        key = (requests.merge_request, tuple([number & _ALIGNMENT for number in ours.merged]), self._facts)
        kernel = _kernels.get(key) or self._made(key, requests.merge_request(plan, t, target_of(t.q.device)))
        grid = merge_grid(plan, requests.merge_tile(t.spec.head_dim_vo).tile_q)
        kernel.launch(self._device, grid, tuple(given.values()))

    def _of(self, index: int) -> tuple[arguments.PlanArguments, arguments.CallArguments, Any]:
        return self._ours, self._call, arguments.parts(self._tensors, self._ours, index, arguments.ADDRESSES)

    def _kernel(self, index: int) -> CompiledKernel:
        key = (requests.attention_request, self._configs[index], self._facts)
        found = _kernels.get(key)
        if found is None:
            t = self._tensors
            how = self._configs[index], target_of(t.q.device)
            found = self._made(key, requests.attention_request(self._plan, t, index, how))
        return found

    def _made(self, key: tuple[Any, ...], request: Request) -> CompiledKernel:
        if len(_kernels) >= _REMEMBERED:
            _kernels.clear()
        made = _kernels[key] = kernel_of(request, functools.partial(explained, program=self._tensors.program))
        return made


class _Interpreted:
    """Launches under Triton's interpreter."""

    def __init__(self, plan: Plan, t: LaunchTensors, configs: tuple[ClassConfig, ...]) -> None:
        self._plan, self._tensors, self._configs = plan, t, configs
        self._ours = arguments.of_plan(plan, t.spec.head_dim_vo, arguments.TENSORS)
        self._call = arguments.of_call(t, self._ours.unused, arguments.TENSORS)

    def attend(self, index: int) -> None:
        """The attention kernel of class `index`."""
        plan, t, config = self._plan, self._tensors, self._configs[index]
        given = arguments.attention(plan, t, self._of(index), index)
        constants = requests.attention_constants(plan, t, config)
        attention_kernel[plan.classes[index].tile.num_ctas, 1, 1](*given.values(), **constants, **config.options())

    def merge(self) -> None:
        """The merge kernel."""
        plan, t = self._plan, self._tensors
        given = arguments.merge(plan, t, (self._ours, self._call), arguments.TENSORS)
        constants = requests.merge_constants(plan, t)
        grid = merge_grid(plan, constants["cfg"].TILE_Q)
        merge_kernel[grid](*given.values(), **constants, **requests.MERGE_OPTIONS)

    def _of(self, index: int) -> tuple[arguments.PlanArguments, arguments.CallArguments, Any]:
        return self._ours, self._call, arguments.parts(self._tensors, self._ours, index, arguments.TENSORS)


def facts_of(plan: Plan, t: LaunchTensors, call: arguments.CallArguments) -> tuple[Any, ...]:
    """All that a launch's kernels depend on besides the class: equal facts, equal kernels. Lengths are not among it."""
    workspace = 0 if t.workspace is None else t.workspace.data_ptr()
    view = plan.levels[0]
    return (
        t.program,
        t.spec,
        t.q.device,
        t.out.dtype,
        t.raw_state,
        call.q[1:],
        call.k[1:],
        call.v[1:],
        call.out[1:],
        (call.q[0] | call.k[0] | call.v[0] | call.out[0] | workspace) & _ALIGNMENT
        and tuple(pointer & _ALIGNMENT for pointer in (call.q[0], call.k[0], call.v[0], call.out[0], workspace)),
        None if t.lse is None else t.lse.stride(0),
        t.workspace is None,
        t.q_pos is None,
        t.kv_pos is None,
        view.pages is None,
        view.page_size,
        plan.group_size,
        tuple([isinstance(t.params[name], torch.Tensor) for name in sorted(t.program.params)]),
        isinstance(t.k_scale, torch.Tensor),
        isinstance(t.v_scale, torch.Tensor),
    )


def target_of(device: torch.device) -> tuple[str, Any, int]:
    """(backend, architecture, threads a warp) of a GPU, as the compiler wants it."""
    arch = Target.of(device).arch
    if arch is not None:
        return "cuda", arch, 32
    with torch.cuda.device(device):
        return toolchain.current_target()
