"""The `triton` implementation: any GPU that Triton serves, and Triton's interpreter on the host."""

from attnloom.impl.triton.implementation import TritonImplementation

__all__ = ["TritonImplementation"]
