"""`attnloom info`: what is installed, what the machine has, and what can run on it."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from attnloom.bench.machine import cpu_features, cpu_name

PACKAGES = ("triton", "numba", "transformers", "matplotlib")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""
    parser.epilog = "Bug reports are easier to answer with this output in them."


def run(args: argparse.Namespace) -> int:
    """Print facts and, per device, every implementation with the reasons against it."""
    del args
    for name, fact in facts():
        print(f"{name:<14} {fact}")
    import torch

    print()
    for line in implementation_lines(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]):
        print(line)
    return 0


def facts() -> list[tuple[str, str]]:
    """Name and value of everything that decides what can run."""
    import torch

    import attnloom

    compiler = _c_compiler()
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return [
        ("attnloom", f"{attnloom.__version__}  ({Path(attnloom.__file__).parent})"),
        ("python", f"{platform.python_version()}  ({sys.executable})"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        *((package, _version(package)) for package in PACKAGES),
        ("C compiler", compiler or "none found (CC, gcc, clang): only kernels whose launchers are cached run"),
        ("Python.h", str(header) if header.exists() else f"missing at {header}: Triton needs it with the C compiler"),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("CPU", _cpu()),
        *_gpus(),
        ("cache", _cache()),
        ("environment", ", ".join(f"{k}={v}" for k, v in _environment()) or "no ATTNLOOM_ variable is set"),
    ]


def implementation_lines(devices: Iterable[str]) -> list[str]:
    """One line for each implementation on each device, and one for each reason against it."""
    import attnloom as al

    lines = []
    for device in devices:
        lines.append(f"implementations on {device}")
        for each in al.implementations(device):
            lines.append(f"  {each.name:<12} {'can run' if each.available else 'cannot run:'}")
            lines += [f"  {'':<12} - {reason}" for reason in each.reasons]
    return lines


def _c_compiler() -> str | None:
    """What Triton will call for a new kernel's launcher: CC, else gcc, else clang."""
    if given := os.environ.get("CC"):
        return shutil.which(given)
    return shutil.which("gcc") or shutil.which("clang")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    features = " ".join(cpu_features()) or "features unknown"
    used = torch.backends.cpu.get_cpu_capability()
    return f"{cpu_name()}, {cores} cores for this process; {features}; torch uses {used}"


def _gpus() -> list[tuple[str, str]]:
    import torch

    from attnloom.target import Target

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        return [("GPU", f"none that torch can use (torch is built for {built or 'the CPU alone'})")]
    found = []
    for index in range(torch.cuda.device_count()):
        target = Target.of(torch.device("cuda", index))
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        arch = f"sm{target.arch}, " if target.arch else ""
        found.append((f"GPU {index}", f"{target.name}, {arch}{target.num_sms} SMs, {memory:.0f} GiB"))
    return found


def _cache() -> str:
    from attnloom import env

    folder = env.cache_dir()
    if not folder.exists():
        return f"{folder}  (made at first use)"
    writable = "writable" if os.access(folder, os.W_OK) else "NOT writable: compiled code is not kept"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    kernels = len([*folder.glob("kernels/*.kernel")])
    return f"{folder}  ({writable}, {size / 1e6:.1f} MB, {kernels} compiled kernels)"


def _environment() -> list[tuple[str, str]]:
    return sorted((name, value) for name, value in os.environ.items() if name.startswith("ATTNLOOM_"))
