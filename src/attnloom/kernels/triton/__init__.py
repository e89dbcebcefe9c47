"""Triton device code: a small vocabulary (paging, softmax, rows, output), then the kernels."""
