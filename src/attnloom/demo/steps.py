"""What each step of continuous batching computed, recorded as it happens.

This is the one file of the demo that reads transformers' own objects: the batch and the block tables that
`ContinuousBatchProcessor` holds while the model's forward runs. It changes none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One request in one step.

    Attributes:
        request: its id.
        new: query tokens of this step.
        past: tokens whose keys were in its pages before.
        prompt: tokens of its prompt.
        pages: ids of the pages in its block table.
    """

    request: str
    new: int
    past: int
    prompt: int
    pages: tuple[int, ...]

    @property
    def prefill(self) -> bool:
        """Whether prompt tokens are computed; otherwise one token is decoded."""
        return self.past < self.prompt

    @property
    def unfinished(self) -> bool:
        """Whether prompt tokens remain for later steps."""
        return self.past + self.new < self.prompt


@dataclass
class Step:
    """One forward pass. `left` and `seconds` are known when it has ended.

    Attributes:
        number: 1 for the first.
        joined: requests whose first step this is.
        left: (request, tokens of its answer) that ended with this step.
        seconds: wall time of the forward pass.
    """

    number: int
    rows: tuple[Row, ...]
    joined: tuple[str, ...]
    left: list[tuple[str, int]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Query tokens of all requests."""
        return sum(row.new for row in self.rows)

    @property
    def prefills(self) -> tuple[Row, ...]:
        """The requests that compute prompt tokens."""
        return tuple(row for row in self.rows if row.prefill)

    @property
    def mixed(self) -> bool:
        """Whether some request prefills while another decodes."""
        return 0 < len(self.prefills) < len(self.rows)

    def shared_pages(self) -> dict[int, tuple[str, ...]]:
        """Pages that lie in the block tables of two or more requests of this step, with those requests."""
        owners: dict[int, list[str]] = {}
        for row in self.rows:
            for page in row.pages:
                owners.setdefault(page, []).append(row.request)
        return {page: tuple(who) for page, who in owners.items() if len(who) > 1}


class StepRecorder:
    """Records the steps of one `ContinuousBatchingManager` through forward hooks of its model.

    `on_step` gets each finished step, `after_forward` the number of steps done so far as soon as a forward ends
    (requests added there are in the next step's batch). Both run in the thread that generates.
    """

    def __init__(self, on_step: Callable[[Step], None], after_forward: Callable[[int], None]) -> None:
        self.steps: list[Step] = []
        self.current: Step | None = None
        self._on_step = on_step
        self._after_forward = after_forward
        self._running: dict[str, Any] = {}
        self._pending: Step | None = None
        self._begin = 0.0

    @contextmanager
    def attached(self, model: Any, manager: Any) -> Iterator[None]:
        """Hook `model` while `manager` generates with it; the last step is reported on leaving."""
        import torch

        def before(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            self._before(manager.batch_processor.inputs_and_outputs.requests_in_batch, kwargs["cache"])

        def after(module: Any, args: Any, output: Any) -> None:
            if output.logits.is_cuda:
                torch.cuda.current_stream(output.logits.device).synchronize()  # a step lasts until it is computed
            self._after()

        hooks = (model.register_forward_pre_hook(before, with_kwargs=True), model.register_forward_hook(after))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._report()

    def _before(self, batch: list[Any], cache: Any) -> None:
        self._report()
        tables = _block_tables(cache)
        rows = []
        for future in batch:
            state, new = future.state, future.query_length
            # position_offset already counts the tokens of this step
            past = state.position_offset - new
            pages = tuple(tables.get(state.request_id, ()))
            rows.append(Row(state.request_id, new, past, len(state.initial_tokens), pages))
        joined = tuple(row.request for row in rows if row.request not in self._running)
        self._running |= {future.state.request_id: future.state for future in batch}
        self.current = Step(len(self.steps) + 1, tuple(rows), joined)
        self._begin = time.perf_counter()

    def _after(self) -> None:
        step = self.current
        if step is None:
            return
        step.seconds = time.perf_counter() - self._begin
        self.current = None
        self.steps.append(step)
        self._pending = step
        self._after_forward(step.number)

    def _report(self) -> None:
        """Tokens are chosen after the forward, so who left is known only when the next step begins."""
        step, self._pending = self._pending, None
        if step is None:
            return
        for name, state in list(self._running.items()):
            if state.status.name in ("FINISHED", "FAILED"):
                step.left.append((name, len(state.generated_tokens)))
        for name, _ in step.left:
            del self._running[name]
        self._on_step(step)


def _block_tables(cache: Any) -> dict[str, list[int]]:
    """Page ids by request of the full-attention layers; empty for a model that has none."""
    if hasattr(cache, "group_cache_managers"):  # 5.17
        allocators = cache.group_cache_managers
    else:
        allocators = list(cache.layer_to_allocator.values())
    full = [allocator for allocator in allocators if not hasattr(allocator, "sliding_window")]
    return full[0].block_table if full else {}
