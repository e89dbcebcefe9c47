"""Where a kernel's machine code keeps registers in local memory: what is spilled in its loops costs at every step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from attnloom.compile.kernel import CompiledKernel
from attnloom.compile.resources import dumped

_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);", re.MULTILINE)
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
_STEP = 16
_PRODUCTS = ("HGMMA", "QGMMA", "IGMMA")
_SPILLS = ("STL", "LDL")


class Instruction(NamedTuple):
    """One instruction: its address, whether a predicate guards it, its opcode, where it may jump."""

    address: int
    guarded: bool
    opcode: str
    target: int | None


@dataclass(frozen=True)
class Spills:
    """Instructions that move registers to and from local memory: in all, and in loops around products."""

    total: int
    in_loops: int


def spills_of(kernel: CompiledKernel) -> Spills | None:
    """Spills of a kernel for NVIDIA; None where cuobjdump is missing or does not know the code."""
    code = list(instructions(dumped(kernel, "-sass") or ""))
    return count_spills(code) if code else None


def count_spills(code: list[Instruction]) -> Spills:
    """Spills of a kernel's instructions, in the order of their addresses."""
    spilled = {one.address for one in code if one.opcode in _SPILLS}
    products = {one.address for one in code if one.opcode in _PRODUCTS}
    around = [loop for loop in loops(code) if loop & products]
    innermost = [loop for loop in around if not any(other < loop for other in around)]
    return Spills(len(spilled), len(spilled & set().union(*innermost)))


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of cuobjdump's listing of one kernel.

    >>> [tuple(one) for one in instructions("        /*0010*/   @!P0 BRA 0x40 ;")]
    [(16, True, 'BRA', 64)]
    """
    for address, guard, opcode, rest in _LINE.findall(text):
        name = opcode.split(".")[0]
        target = _TARGET.search(rest) if name == "BRA" else None
        yield Instruction(int(address, 16), bool(guard), name, int(target[1], 16) if target else None)


def loops(code: list[Instruction]) -> list[set[int]]:
    """The addresses of each natural loop: what lies between a jump back and the block that all ways into it pass."""
    after = _edges(code)
    before: dict[int, list[int]] = {block: [] for block in after}
    for block, following in after.items():
        for one in following:
            before[one].append(block)
    dominators = _dominators(after, before)
    ends = dict(zip(sorted(after), [*sorted(after)[1:], code[-1].address + _STEP], strict=True))
    found: dict[int, set[int]] = {}
    for block, following in after.items():
        for head in following:
            if head in dominators[block]:
                found.setdefault(head, set()).update(_body(head, block, before))
    return [{at for block in body for at in range(block, ends[block], _STEP)} for body in found.values()]


def _edges(code: list[Instruction]) -> dict[int, list[int]]:
    """Basic blocks by their first address, and where each can go; a jump to nowhere known goes nowhere."""
    addresses = {one.address for one in code}
    jumps = [one for one in code if one.opcode in ("BRA", "EXIT", "BRX", "RET")]
    starts = {code[0].address, *(one.address + _STEP for one in jumps), *(one.target for one in jumps if one.target)}
    ordered = sorted(start for start in starts if start in addresses)
    last = {one.address + _STEP: one for one in jumps}
    edges: dict[int, list[int]] = {}
    for number, start in enumerate(ordered):
        end = ordered[number + 1] if number + 1 < len(ordered) else code[-1].address + _STEP
        jump, following = last.get(end), []
        if jump is not None and jump.target in addresses:
            following.append(jump.target)
        if (jump is None or jump.guarded) and end in addresses:
            following.append(end)
        edges[start] = [one for one in following if one is not None]
    return edges


def _dominators(after: dict[int, list[int]], before: dict[int, list[int]]) -> dict[int, set[int]]:
    """Per block, the blocks that every way to it passes."""
    ordered = sorted(after)
    entries, every = _entries(ordered, after), set(ordered)
    found = {block: {block} if block in entries else every for block in ordered}
    changed = True
    while changed:
        changed = False
        for block in ordered:
            if block not in entries:
                through = set.intersection(*(found[one] for one in before[block])) | {block}
                if through != found[block]:
                    found[block], changed = through, True
    return found


def _entries(ordered: list[int], after: dict[int, list[int]]) -> set[int]:
    """The first block, and of what no jump with a known target leads to (a table's targets) the first in each part."""
    entries: set[int] = set()
    seen: set[int] = set()
    for block in ordered:
        if block not in seen:
            entries.add(block)
            open_ends = [block]
            while open_ends:
                one = open_ends.pop()
                if one not in seen:
                    seen.add(one)
                    open_ends += after[one]
    return entries


def _body(head: int, tail: int, before: dict[int, list[int]]) -> set[int]:
    """Blocks from which `tail` is reached without passing `head`, both included."""
    body, open_ends = {head, tail}, [tail]
    while open_ends:
        block = open_ends.pop()
        for one in before[block] if block != head else ():
            if one not in body:
                body.add(one)
                open_ends.append(one)
    return body
