"""Python in fresh processes with a cache directory of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PRELUDE = f"import sys; sys.path.insert(0, {str(HERE)!r}); import tiny_kernels as tiny\n"


def environment(cache, **changes):
    """The environment without what would change the compiler; None removes a variable."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"ATTNLOOM_CACHE_DIR": str(cache)}
    env.update({k: str(v) for k, v in changes.items() if v is not None})
    return {k: v for k, v in env.items() if changes.get(k, "") is not None}


def start(code, cache, **changes):
    command = [sys.executable, "-c", PRELUDE + code]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment(cache, **changes), stdout=pipe, stderr=pipe, text=True)


def python(code, cache, **changes):
    """(stdout, stderr) of a process that must end well."""
    process = start(code, cache, **changes)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, err


def compiled(cache):
    """Kernel names in the cache's own log, one per compilation."""
    log = Path(cache) / "kernels" / "log.txt"
    return [line.split()[1] for line in log.read_text().splitlines()] if log.exists() else []
