"""Kernels under Triton's interpreter, in a process of their own: it is chosen before triton is loaded."""

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("set TRITON_INTERPRET=1 and run what `make test-triton-interpreter` runs")
