"""Longest first into a min-heap (compiled). Costs are in kv tiles: ``overhead + kv tiles``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attnloom.schedule.jit import inlined, inner

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_RADIX_BITS = 11
_BUCKETS = 1 << _RADIX_BITS


@inner
def counting(count: int) -> Ints:
    """0, 1, ..., count - 1."""
    numbers = np.empty(count, np.int64)
    for i in range(count):
        numbers[i] = i
    return numbers


@inner
def zeros(count: int) -> Ints:
    """0, 0, ..., 0."""
    numbers = np.empty(count, np.int64)
    for i in range(count):
        numbers[i] = 0
    return numbers


@inner
def longest_first_order(sizes: Ints) -> Ints:
    """Indices by falling size, equal sizes in their order (a radix sort: one pass where sizes are small)."""
    order = counting(sizes.shape[0])
    largest = 0
    for i in range(sizes.shape[0]):
        largest = max(largest, sizes[i])
    other = np.empty(sizes.shape[0], np.int64)
    ends = np.empty(_BUCKETS, np.int64)
    shift = 0
    while (largest >> shift) > 0:
        for b in range(_BUCKETS):
            ends[b] = 0
        for i in range(order.shape[0]):
            ends[(sizes[i] >> shift) & (_BUCKETS - 1)] += 1
        total = 0
        for b in range(_BUCKETS - 1, -1, -1):
            total += ends[b]
            ends[b] = total
        for i in range(order.shape[0] - 1, -1, -1):
            digit = (sizes[order[i]] >> shift) & (_BUCKETS - 1)
            ends[digit] -= 1
            other[ends[digit]] = order[i]
        order, other = other, order
        shift += _RADIX_BITS
    return order


@inner
def by_section(order: Ints, sections: Ints) -> Ints:
    """The order, section after section: sections numbers each item's, from 0, and the items' never fall."""
    ends = zeros(sections[sections.shape[0] - 1] + 2)
    for i in range(sections.shape[0]):
        ends[sections[i] + 1] += 1
    for s in range(1, ends.shape[0]):
        ends[s] += ends[s - 1]
    sorted_order = np.empty(order.shape[0], np.int64)
    for i in range(order.shape[0]):
        section = sections[order[i]]
        sorted_order[ends[section]] = order[i]
        ends[section] += 1
    return sorted_order


@inlined
def sink_top(loads: Floats, ctas: Ints) -> None:
    """Restore the heap (least load first, equal loads by CTA number) after its top grew."""
    load = loads[0]
    cta = ctas[0]
    at = 0
    size = loads.shape[0]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            loads[right] < loads[child] or (loads[right] == loads[child] and ctas[right] < ctas[child])
        ):
            child = right
        if loads[child] > load or (loads[child] == load and ctas[child] > cta):
            break
        loads[at] = loads[child]
        ctas[at] = ctas[child]
        at = child
    loads[at] = load
    ctas[at] = cta


@inner
def assign_longest_first(sizes: Ints, order: Ints, overhead: float, num_ctas: int) -> Any:
    """Give the items, in this order, each to the CTA with the least load: (cta per item, greatest load)."""
    loads = np.empty(num_ctas, np.float64)
    for c in range(num_ctas):
        loads[c] = 0.0
    ctas = counting(num_ctas)
    chosen = np.empty(sizes.shape[0], np.int64)
    span = 0.0
    for i in range(order.shape[0]):
        item = order[i]
        chosen[item] = ctas[0]
        loads[0] += overhead + sizes[item]
        span = max(span, loads[0])
        sink_top(loads, ctas)
    return chosen, span
