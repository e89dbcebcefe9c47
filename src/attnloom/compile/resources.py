"""What a kernel's machine code takes of a device, read by Triton's copy of cuobjdump; no GPU is needed."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass

from attnloom.compile import toolchain
from attnloom.compile.kernel import CompiledKernel


@dataclass(frozen=True)
class Resources:
    """registers: 32-bit ones per thread; stack: bytes per thread in local memory, which is where spills go."""

    registers: int
    stack: int


def dumped(kernel: CompiledKernel, option: str) -> str | None:
    """What cuobjdump prints of a kernel for NVIDIA under an option; None where it is missing."""
    program = toolchain.cuobjdump()
    if program is None or kernel.request.target[0] != "cuda":
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.binary)
        file.flush()
        command = [program, option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout


def resources_of(kernel: CompiledKernel) -> Resources | None:
    """Registers and stack of a kernel for NVIDIA; None where cuobjdump is missing or does not know the code."""
    text = dumped(kernel, "--dump-resource-usage") or ""
    found = re.search(rf"Function {re.escape(kernel.name)}:\s*REG:(\d+) STACK:(\d+)", text)
    return Resources(int(found[1]), int(found[2])) if found else None
