"""What the benchmark asks of a peer."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.inputs import DeviceBatch


@dataclass(frozen=True)
class Prepared:
    """A setting ready to run.

    call: one run on tensors made beforehand, nothing else in it; rows: its result as ``[total_q, H_qo, D]``;
    plan: what has to be done once a step before it, if anything; label: what it turned out to be; check: what is
    wrong with the result, or None, where it is another one than AttnLoom's in this case; work: then its case.
    """

    call: Callable[[], Any]
    rows: Callable[[Any], torch.Tensor]
    plan: Callable[[], object] | None = None
    label: str = ""
    check: Callable[[torch.Tensor], str | None] | None = None
    work: GpuCase | None = None


@dataclass(frozen=True)
class Setting:
    """One way to ask a peer for the same work."""

    name: str
    prepare: Callable[[], Prepared]


@dataclass(frozen=True)
class Build:
    """Modules to compile, and what compiles a list of them side by side."""

    modules: Sequence[Any]
    compile: Callable[[Sequence[Any]], None]


class Peer(ABC):
    """An engine, or one back end of it. id: its name on the command line and in files; engine: in charts."""

    id: str
    engine: str

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """Why it cannot run on this machine, or None."""

    @abstractmethod
    def unfit_reason(self, gpu_case: GpuCase) -> str | None:
        """Why the case is not for it, or None. Looks at the case only."""

    @abstractmethod
    def settings(self, batch: DeviceBatch) -> Sequence[Setting]:
        """Every setting worth trying; the quickest is measured."""

    def build(self, cases: Sequence[GpuCase]) -> Build | None:
        """What has to be compiled for the cases beforehand; None where nothing is."""
        del cases
        return None


def import_reason(module: str) -> str | None:
    """Why `module` cannot be imported, or None."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  # a peer's import may fail in any way; the reason is shown
        return f"import {module}: {type(error).__name__}: {error}"
    return None


def no_cuda_reason() -> str | None:
    """Why torch cannot use a GPU here, or None."""
    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def older_than_hopper_reason() -> str | None:
    """Why kernels for sm_90 cannot run here, or None."""
    if (reason := no_cuda_reason()) is not None:
        return reason
    major, minor = torch.cuda.get_device_capability()
    return None if (major, minor) == (9, 0) else f"made for sm_90, this device is sm_{major}{minor}"


def same(rows: torch.Tensor) -> torch.Tensor:
    """A result that already is ``[total_q, H_qo, D]``."""
    return rows
