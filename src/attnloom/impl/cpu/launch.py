"""One launch: units on workers, partial states in the workspace, merges at the end."""

from __future__ import annotations

import torch

from attnloom.impl import states
from attnloom.impl.base import LaunchTensors
from attnloom.impl.cpu.arrange import Arrangement, Place, Tile, Unit, heads_of, tile_places
from attnloom.impl.cpu.keys import Cache, Pages, Panel, Range
from attnloom.impl.cpu.rows import Batch, Rows
from attnloom.impl.cpu.sums import State
from attnloom.impl.cpu.tile import TileRun
from attnloom.impl.cpu.workers import run_units
from attnloom.schedule.work import ALL_HEADS, Plan
from attnloom.schedule.workspace import layout


class Launch:
    """The run of one Plan on one set of tensors."""

    def __init__(self, plan: Plan, tensors: LaunchTensors, arrangement: Arrangement) -> None:
        self._plan = plan
        self._arrangement = arrangement
        self._batch = Batch(plan, tensors)
        pages = Pages(plan.levels[0])
        self._k = Cache("k", tensors.k, pages)
        self._v = Cache("v", tensors.v, pages)
        self._softmax = tensors.program.use_softmax
        self._need_lse = tensors.lse is not None or self._batch.finishes
        self._partials = _partials(plan, tensors)
        self._shared: dict[Place, list[tuple[Tile, State]]] = {place: [] for place in sorted(arrangement.shared)}

    def run(self) -> None:
        """Compute every unit, then merge what was split."""
        run_units(self._arrangement.units, self._compute, self._arrangement.workers)
        self._join_shared()
        self._merge()

    def _compute(self, unit: Unit) -> None:
        begin, end = unit.hull
        hull = Range(unit.request, begin, end, unit.first_head, unit.last_head)
        panel = Panel(self._k, self._v, hull, len(unit.tiles) > 1)
        for tile in unit.tiles:
            rows = Rows(self._batch, unit.request, tile)
            need_lse = self._softmax and (self._need_lse or tile.slots is not None or bool(self._shared))
            state = TileRun(self._batch, rows, unit.request, panel).state(tile.spans, need_lse)
            if self._shared:
                self._store_or_collect(unit, tile, state)
            else:
                self._store(unit.region, unit.request, tile, state)

    def _store(self, region: int, request: int, tile: Tile, state: State) -> None:
        """A tile's state to where its items name: the final result, or the workspace."""
        out, lse = state
        if tile.slots is None:
            Rows(self._batch, request, tile).write(out, lse)
            return
        outs, lses = self._partials[region]
        for head, slot in enumerate(tile.slots):
            outs[slot, : tile.row_count] = out[head]
            if lse is not None:
                lses[slot, : tile.row_count] = lse[head]

    def _store_or_collect(self, unit: Unit, tile: Tile, state: State) -> None:
        """Head by head, because a place may be shared for one head alone."""
        out, lse = state
        for at, place in enumerate(tile_places(unit.region, unit.request, tile)):
            one = heads_of(tile, tile.first_head + at, tile.first_head + at + 1)
            part = out[at : at + 1], None if lse is None else lse[at : at + 1]
            if place in self._shared:
                self._shared[place].append((one, part))
            else:
                self._store(unit.region, unit.request, one, part)

    def _join_shared(self) -> None:
        """Places that several items name get the union of their states, in kv order."""
        for (region, request, _, _), parts in self._shared.items():
            parts.sort(key=lambda part: part[0].spans)
            outs, lses = [out for _, (out, _) in parts], [lse for _, (_, lse) in parts if lse is not None]
            joined = states.merge_states(outs, lses) if lses else (torch.stack(outs).sum(0), None)
            self._store(region, request, parts[0][0], joined)

    def _merge(self) -> None:
        """Each split tile: its partial states, in kv order, to the final result."""
        merges, heads = self._plan.merges, self._plan.num_kv_heads
        ends, slots = merges.indptr.tolist(), merges.slots.tolist()
        for entry, (request, row_start, row_count, _, kv_head) in enumerate(merges.entries.tolist()):
            outs, lses = [], []
            for region, slot in slots[ends[entry] : ends[entry + 1]]:
                place = slice(slot * heads, (slot + 1) * heads) if kv_head == ALL_HEADS else slice(slot, slot + 1)
                outs.append(self._partials[region][0][place, :row_count])
                lses.append(self._partials[region][1][place, :row_count])
            first = 0 if kv_head == ALL_HEADS else kv_head
            tile = Tile(row_start, row_count, first, first + outs[0].shape[0], (), None)
            rows = Rows(self._batch, request, tile)
            if self._softmax:
                rows.write(*states.merge_states(outs, lses))
            else:
                rows.write(torch.stack(outs).sum(0), None)


def _partials(plan: Plan, tensors: LaunchTensors) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of each tile class: out [slots, tile_q, dim_vo] and lse [slots, tile_q] in the workspace."""
    workspace = tensors.workspace
    if workspace is None:
        return []
    found = []
    for region in layout([work.tile for work in plan.classes], tensors.spec.head_dim_vo).regions:
        shape = (region.num_slots, region.tile_q)
        out = workspace[region.out_offset : region.lse_offset].view(torch.float32)
        lse = workspace[region.lse_offset : region.end].view(torch.float32)
        found.append((out.view(*shape, region.head_dim_vo), lse.view(shape)))
    return found
