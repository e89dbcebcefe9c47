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
from attnloom.impl.base import LaunchTensors
from attnloom.impl.triton import arguments, requests
from attnloom.impl.triton.configs import ClassConfig
from attnloom.kernels.triton.attention import attention_kernel
from attnloom.kernels.triton.merge import merge_kernel
from attnloom.schedule.work import Plan
from attnloom.target import Target

_REMEMBERED = 4096
_ALIGNMENT = 15

_kernels: dict[tuple[Any, ...], CompiledKernel] = {}


def launch(plan: Plan, tensors: LaunchTensors, configs: tuple[ClassConfig, ...]) -> None:
    """One attention launch per class that has items, then one merge per class where something was split.

    Under declared maxima every plan is launched alike, as the whole buffers: a captured launch serves later plans.
    """
    plan = plan.whole or plan
    launch_classes(plan, (_Interpreted if tensors.q.device.type == "cpu" else Compiled)(plan, tensors, configs))


def launch_classes(plan: Plan, one: Launching) -> None:
    """The attention of each class that has items, then the merges of these where there are any."""
    present = [index for index, work in enumerate(plan.classes) if work.num_items]
    for index in present:
        one.attend(index)
    if plan.merges.entries.shape[0]:
        for index in present:
            one.merge(index)


class Launching(Protocol):
    """The launches of one plan and its tensors."""

    def attend(self, index: int) -> None:
        """The attention kernel of class `index`."""

    def merge(self, index: int) -> None:
        """The merge kernel of class `index`."""


def merge_grid(plan: Plan) -> tuple[int, int, int]:
    """CTAs of a merge: one per entry, and per kv head where an entry stands for every head."""
    return plan.merges.entries.shape[0], max([work.heads_per_item for work in plan.classes]), 1


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
        kernel = self._kernel(requests.attention_request, index)
        kernel.launch(self._device, (plan.classes[index].tile.num_ctas, 1, 1), tuple(given.values()))

    def merge(self, index: int) -> None:
        """The merge kernel of class `index`."""
        given = arguments.merge(self._plan, self._of(index), index)
        kernel = self._kernel(requests.merge_request, index)
        kernel.launch(self._device, merge_grid(self._plan), tuple(given.values()))

    def _of(self, index: int) -> tuple[arguments.PlanArguments, arguments.CallArguments, Any]:
        return self._ours, self._call, arguments.parts(self._tensors, self._ours, index, arguments.ADDRESSES)

    def _kernel(self, request: Any, index: int) -> CompiledKernel:
        key = (request, self._configs[index], self._facts)
        found = _kernels.get(key)
        if found is None:
            if len(_kernels) >= _REMEMBERED:
                _kernels.clear()
            t = self._tensors
            made = request(self._plan, t, index, (self._configs[index], target_of(t.q.device)))
            found = _kernels[key] = kernel_of(made, functools.partial(explained, program=t.program))
        return found


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

    def merge(self, index: int) -> None:
        """The merge kernel of class `index`."""
        given = arguments.merge(self._plan, self._of(index), index)
        constants = requests.merge_constants(self._plan, self._tensors, self._configs[index])
        merge_kernel[merge_grid(self._plan)](*given.values(), **constants, **requests.MERGE_OPTIONS)

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
