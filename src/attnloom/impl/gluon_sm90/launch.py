"""From a Plan and its tensors to launches of the Hopper kernels and of Triton's merge kernel."""

from __future__ import annotations

import functools
from typing import Any

from attnloom.compile.cache import kernel_of
from attnloom.compile.failures import explained
from attnloom.compile.kernel import CompiledKernel
from attnloom.impl.base import LaunchTensors
from attnloom.impl.gluon_sm90 import requests
from attnloom.impl.gluon_sm90.configs import ClassConfig, GluonSm90Config
from attnloom.impl.gluon_sm90.descriptors import Descriptors
from attnloom.impl.triton import arguments
from attnloom.impl.triton.launch import Compiled, launch_classes, target_of
from attnloom.schedule.work import Plan

_REMEMBERED = 4096
_ALIGNMENT = 15

_kernels: dict[tuple[Any, ...], tuple[CompiledKernel, Descriptors]] = {}


def launch(plan: Plan, tensors: LaunchTensors, config: GluonSm90Config) -> None:
    """One attention launch per class that has items, then one merge where something was split.

    Under declared maxima every plan is launched alike, as the whole buffers: a captured launch serves later plans.
    """
    plan = plan.whole or plan
    launch_classes(plan, Launches(plan, tensors, config))


class Launches(Compiled):
    """The launches of one plan and its tensors; merges are Triton's."""

    def __init__(self, plan: Plan, t: LaunchTensors, config: GluonSm90Config) -> None:
        super().__init__(plan, t, config.merging)
        self._classes = config.classes

    def attend(self, index: int) -> None:
        """The attention kernel of class `index`."""
        plan, t = self._plan, self._tensors
        kernel, descriptors = self._attention(self._classes[index], index)
        described = descriptors.arguments(self._call, t, self._ours.unused & ~_ALIGNMENT)
        given = arguments.attention(plan, t, self._of(index), index)
        counters = arguments.counters(t, self._ours, index, arguments.ADDRESSES)
        kernel.launch(self._device, (plan.classes[index].tile.num_ctas, 1, 1), (*described, *given.values(), counters))

    def _attention(self, config: ClassConfig, index: int) -> tuple[CompiledKernel, Descriptors]:
        key = config, self._facts
        found = _kernels.get(key)
        if found is None:
            if len(_kernels) >= _REMEMBERED:
                _kernels.clear()
            t = self._tensors
            request = requests.attention_request(self._plan, t, index, (config, target_of(t.q.device)))
            kernel = kernel_of(request, functools.partial(explained, program=t.program))
            made = Descriptors(kernel, request.constants["cfg"], self._device)
            found = _kernels[key] = kernel, made
        return found
