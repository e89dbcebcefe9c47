"""Where a tile's kv is cut (compiled): the paper's chunks, and cuts at any kv tile (stream-K).

A unit is one q tile, of one kv head or of all of them. Its size is its number of non-empty kv tiles, and
costs are in kv tiles: a piece of n tiles costs ``overhead + n``. Pieces are rows (unit, first, last, cta)
of an int64 table, [first, last) counting non-empty kv tiles, a unit's pieces next to each other in kv order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attnloom.schedule.balance import assign_longest_first, by_section, counting, longest_first_order, sink_top, zeros
from attnloom.schedule.jit import inner

Ints = npt.NDArray[np.int64]

UNIT, FIRST, LAST, CTA = range(4)

_SEARCH_STEPS = 12
_RESOLUTION = 0.002  # of the limit; a quarter of a kv tile where that is more


class Costs(NamedTuple):
    """Costs in kv tiles. workers: CTAs, or groups of CTAs that run one kv head each; heads: kv heads of a unit."""

    overhead: float
    merge_fixed: float
    merge_slot: float
    workers: int
    heads: int


@inner
def whole_units(sizes: Ints, ctas: Ints) -> Ints:
    """One piece per unit."""
    pieces = np.empty((sizes.shape[0], 4), np.int64)
    for unit in range(sizes.shape[0]):
        pieces[unit, UNIT] = unit
        pieces[unit, FIRST] = 0
        pieces[unit, LAST] = sizes[unit]
        pieces[unit, CTA] = ctas[unit]
    return pieces


@inner
def chunks(sizes: Ints, length: int) -> Ints:
    """Pieces of at most ``length`` kv tiles, not assigned yet."""
    count = 0
    for unit in range(sizes.shape[0]):
        count += max(1, (sizes[unit] + length - 1) // length)
    pieces = np.empty((count, 4), np.int64)
    at = 0
    for unit in range(sizes.shape[0]):
        first = 0
        while first < sizes[unit] or first == 0:
            last = min(first + length, sizes[unit])
            pieces[at, UNIT] = unit
            pieces[at, FIRST] = first
            pieces[at, LAST] = last
            pieces[at, CTA] = 0
            at += 1
            first = last
            if first == 0:
                break
    return pieces


@inner
def algorithm1(sizes: Ints, length: int, costs: Costs) -> Any:
    """The paper's Algorithm 1 once its chunk length (in kv tiles) is known: (pieces, order of running)."""
    pieces = chunks(sizes, length)
    lengths = np.empty(pieces.shape[0], np.int64)
    for p in range(pieces.shape[0]):
        lengths[p] = pieces[p, LAST] - pieces[p, FIRST]
    order = longest_first_order(lengths)
    ctas, _ = assign_longest_first(lengths, order, costs.overhead, costs.workers)
    for p in range(pieces.shape[0]):
        pieces[p, CTA] = ctas[p]
    return pieces, order


@inner
def fill(sizes: Ints, costs: Costs, least: int, limit: float, pieces: Ints) -> int:
    """Fill one CTA after the other up to ``limit``, cutting the unit that does not fit; no piece under ``least`` tiles.

    Returns the number of pieces, or -1 if the CTAs do not suffice. The table may be empty: only count.
    """
    write = pieces.shape[0] > 0
    count = 0
    cta = 0
    load = 0.0
    for unit in range(sizes.shape[0]):
        first = 0
        while True:
            left = sizes[unit] - first
            room = limit - load - costs.overhead
            take = left
            if left > room:
                take = min(np.int64(max(room, 0.0)), left - least)
            if left <= room or take >= least:
                if write:
                    pieces[count, UNIT] = unit
                    pieces[count, FIRST] = first
                    pieces[count, LAST] = first + take
                    pieces[count, CTA] = cta
                count += 1
                if take == left:
                    load += costs.overhead + take
                    break
                first += take
            elif load == 0.0:
                return -1
            cta += 1
            load = 0.0
            if cta == costs.workers:
                return -1
    return count


@inner
def least_limit(sizes: Ints, costs: Costs, least: int, total: float) -> float:
    """The smallest limit (nearly) with which `fill` succeeds.

    Each CTA that `fill` leaves behind carries more than limit - overhead - 2 * least of the unsplit work, so
    total / workers + overhead + 2 * least always suffices.
    """
    none = np.empty((0, 4), np.int64)
    low = total / costs.workers
    high = low + costs.overhead + 2 * least
    for _ in range(_SEARCH_STEPS):
        if high - low <= max(0.25, _RESOLUTION * high):
            break
        middle = 0.5 * (low + high)
        if fill(sizes, costs, least, middle, none) >= 0:
            high = middle
        else:
            low = middle
    return high


@inner
def finish_time(pieces: Ints, sizes: Ints, costs: Costs) -> float:
    """Greatest load of the pieces in CTA order, plus what merging the partial ones costs."""
    span = 0.0
    load = 0.0
    partial = 0
    chain = 0
    longest = 0
    for p in range(pieces.shape[0]):
        if p > 0 and pieces[p, CTA] != pieces[p - 1, CTA]:
            load = 0.0
        load += costs.overhead + pieces[p, LAST] - pieces[p, FIRST]
        span = max(span, load)
        chain = chain + 1 if pieces[p, FIRST] > 0 else 1
        if pieces[p, LAST] - pieces[p, FIRST] < sizes[pieces[p, UNIT]]:
            partial += 1
            longest = max(longest, chain)
    if partial > 0:
        span += costs.merge_fixed + costs.merge_slot * max(longest, partial / costs.workers)
    return span


@inner
def assign_while_fitting(sizes: Ints, order: Ints, costs: Costs, limit: float, chosen: Ints) -> Any:
    """Give units, in this order, each whole to the CTA with the least load where it stays within ``limit``.

    Writes the CTA of each unit, -1 for one that is too large for any; returns the load of each CTA.
    """
    heap = np.empty(costs.workers, np.float64)
    for c in range(costs.workers):
        heap[c] = 0.0
    ctas = counting(costs.workers)
    for i in range(order.shape[0]):
        unit = order[i]
        cost = costs.overhead + sizes[unit]
        if heap[0] + cost <= limit:
            chosen[unit] = ctas[0]
            heap[0] += cost
            sink_top(heap, ctas)
        else:
            chosen[unit] = -1
    loads = np.empty(costs.workers, np.float64)
    for c in range(costs.workers):
        loads[ctas[c]] = heap[c]
    return loads


@inner
def whole_then_cut(sizes: Ints, order: Ints, costs: Costs, least: int, limit: float) -> Any:
    """Units in this order, whole as long as they fit; the others are cut to fill what the CTAs have left.

    Returns (pieces, order of running), no pieces where the CTAs do not suffice. A CTA has parts of two units at most.
    """
    units = sizes.shape[0]
    chosen = np.empty(units, np.int64)
    loads = assign_while_fitting(sizes, order, costs, limit, chosen)
    pieces = np.empty((units + costs.workers, 4), np.int64)
    place = np.empty(units, np.int64)
    count = 0
    cta = 0
    for unit in range(units):
        place[unit] = count
        first = 0
        while True:
            if chosen[unit] >= 0:
                take = sizes[unit]
                on = chosen[unit]
            else:
                left = sizes[unit] - first
                room = limit - loads[cta] - costs.overhead
                take = left if left <= room else min(np.int64(max(room, 0.0)), left - least)
                if left > room and take < least:
                    cta += 1
                    if cta == costs.workers:
                        return pieces[:0], order
                    continue
                on = cta
                loads[cta] += costs.overhead + take
            pieces[count, UNIT] = unit
            pieces[count, FIRST] = first
            pieces[count, LAST] = first + take
            pieces[count, CTA] = on
            count += 1
            first += take
            if first == sizes[unit]:
                break
    running = np.empty(count, np.int64)
    at = 0
    for whole in range(2):  # whole units, then parts: the keys of a cut unit are read at one time
        for i in range(units):
            if (chosen[order[i]] >= 0) == (whole == 0):
                stop = place[order[i] + 1] if order[i] + 1 < units else count
                for p in range(place[order[i]], stop):
                    running[at] = p
                    at += 1
    return pieces[:count], running


@inner
def stream(sizes: Ints, costs: Costs, sections: Ints) -> Any:
    """The shipped planner: (pieces, order of running).

    Whole units, longest first, where cutting cannot be better by more than its merge costs; otherwise the
    cheapest of a few cuttings. Every result's makespan is at most total / workers + 2 * (overhead + 1).
    sections: of each unit, from 0, never falling; whole units run section after section where that is as good.
    """
    units = sizes.shape[0]
    total = costs.overhead * units
    largest = 0
    for unit in range(units):
        total += sizes[unit]
        largest = max(largest, sizes[unit])
    if costs.workers == 1:
        return whole_units(sizes, zeros(units)), counting(units)
    bound = total / costs.workers + 2 * (costs.overhead + 1)
    whole_time = np.inf
    order = counting(units)
    ctas = order
    if costs.overhead + largest <= bound:
        by_length = longest_first_order(sizes)
        if units > 0 and sections[units - 1] > 0:
            sectioned = by_section(by_length, sections)
            ctas, span = assign_longest_first(sizes, sectioned, costs.overhead, costs.workers)
            if span <= min(bound, total / costs.workers + costs.merge_fixed + 2 * costs.merge_slot):
                return whole_units(sizes, ctas), sectioned
            least = 1 + int(costs.overhead / 2)
            pieces, order = whole_then_cut(sizes, sectioned, costs, least, total / costs.workers + costs.overhead + 2)
            if pieces.shape[0]:
                return pieces, order
            order = counting(units)
        ctas, span = assign_longest_first(sizes, by_length, costs.overhead, costs.workers)
        if span <= bound:
            whole_time = span
            if span <= total / costs.workers + costs.merge_fixed + 2 * costs.merge_slot:
                return whole_units(sizes, ctas), by_length
            order = by_length
    fair = 1 + int(costs.overhead / 2)  # a piece below half of its overhead is not worth cutting
    best = whole_units(sizes, ctas)
    best_time = whole_time
    for attempt in range(3 if fair > 1 else 2):
        least = 1 if attempt == 2 else fair
        table = np.empty((units + costs.workers, 4), np.int64)
        limit = bound if attempt == 1 else least_limit(sizes, costs, least, total)
        pieces = table[: fill(sizes, costs, least, limit, table)]
        time = finish_time(pieces, sizes, costs)
        if time < best_time:
            best_time = time
            best = pieces
            order = counting(pieces.shape[0])
    return best, order
