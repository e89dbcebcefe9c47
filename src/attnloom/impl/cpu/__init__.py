"""The Plan run on the host with torch matrix products: query heads of a group in one, kv heads batched."""

from attnloom.impl.cpu.implementation import CpuConfig, CpuImplementation

__all__ = ["CpuConfig", "CpuImplementation"]
