"""Which implementation runs: the first that can, or exactly the one that was asked for."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from attnloom.errors import InvalidArgument, UnsupportedSpec
from attnloom.impl.base import Implementation
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant import Program


@dataclass(frozen=True)
class Availability:
    """Whether an implementation can run on a device, and why not."""

    name: str
    available: bool
    reasons: tuple[str, ...]


@functools.cache
def registry() -> dict[str, Implementation]:
    """Every implementation by name, in the order in which dispatch prefers them."""
    from attnloom.impl.cpu import CpuImplementation
    from attnloom.impl.gluon_sm90 import GluonSm90Implementation
    from attnloom.impl.reference import ReferenceImplementation
    from attnloom.impl.triton import TritonImplementation

    found: tuple[Implementation, ...] = (
        TritonImplementation(),
        GluonSm90Implementation(),
        CpuImplementation(),
        ReferenceImplementation(),
    )
    return {one.name: one for one in found}


def implementations(target: Target) -> list[Availability]:
    """What can run on `target`, in order of preference."""
    rows = []
    for name, implementation in registry().items():
        reasons = tuple(implementation.unavailable_reasons(target))
        rows.append(Availability(name, not reasons, reasons))
    return rows


def choose(spec: AttentionSpec, program: Program, target: Target, implementation: str | None) -> Implementation:
    """The implementation for a case; `implementation` names one and never falls back.

    Raises InvalidArgument for an unknown name, UnsupportedSpec with every reason where none can.
    """
    known = registry()
    if implementation is not None and implementation not in list(known):
        raise InvalidArgument(
            name="implementation",
            given=implementation,
            supported=", ".join(map(repr, known)),
            fix="Leave it out to let attnloom choose.",
        )
    asked = known if implementation is None else {implementation: known[implementation]}
    refused: list[str] = []
    for name, candidate in asked.items():
        reasons = candidate.unavailable_reasons(target) or candidate.unsupported_reasons(spec, program, target)
        if not reasons:
            return candidate
        refused += [f"  {name}: {reason}" for reason in reasons]
    raise UnsupportedSpec(
        given=f"{spec}, variant {program.identity[:12]}, on {target.name} ({target.kind})",
        reasons="\n".join(refused),
        fix="Change what the reasons name, or leave implementation= out."
        if implementation
        else "Change what the reasons name.",
    )
