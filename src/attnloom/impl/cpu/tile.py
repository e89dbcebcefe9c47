"""One tile: the logits of a chunk of keys in one product, masked, and their weights' product with the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from attnloom.impl.base import LaunchTensors
from attnloom.impl.cpu.arrange import PRODUCT_ROWS, Span
from attnloom.impl.cpu.keys import CHUNK, Panel
from attnloom.impl.cpu.rows import Batch, Rows
from attnloom.impl.cpu.scratch import SCRATCH
from attnloom.impl.cpu.sums import LOG2_E, PlainSums, SoftmaxSums, State
from attnloom.variant.evaluate import compile_expr

_LOGITS = 1 << 21  # fp32 logits of a chunk
_STEP = 128  # a chunk is a multiple of this many keys

Env = dict[str, Any]
Bools = npt.NDArray[np.bool_]


# Masks are applied by numpy: it reduces and fills by booleans several times faster than torch does.


class Hidden(NamedTuple):
    """Where keys [begin, end) are masked: True, broadcastable over the rows' functor_shape + [keys]."""

    begin: int
    end: int
    mask: Bools


class Visible(NamedTuple):
    """A chunk without the keys at its ends that no row sees.

    unseen: bool [heads or 1, keys] of the keys that no row of the head sees, None where there are none. Their
    memory may be anything (pages that left a window): values there must not meet a weight, not even 0.
    blind: some row sees nothing of the chunk.
    """

    begin: int
    end: int
    hidden: tuple[Hidden, ...]
    unseen: torch.Tensor | None
    blind: bool


class TileRun:
    """The computation of one tile against a panel of keys."""

    def __init__(self, batch: Batch, rows: Rows, request: int, panel: Panel) -> None:
        self._batch = batch
        self._rows = rows
        self._request = request
        self._panel = panel
        tensors: LaunchTensors = batch.tensors
        self._program = tensors.program
        self._scale = tensors.spec.sm_scale
        if self._program.use_softmax and self._program.logits is None:
            self._scale *= LOG2_E
        self._env: Env | None = None

    def state(self, spans: tuple[Span, ...], need_lse: bool) -> State:
        """(out [heads, rows, dim_vo], lse [heads, rows]) in fp32 of all keys; lse None where not needed."""
        heads, rows = self._rows.shape
        queries = self._rows.queries()
        sums = SoftmaxSums() if self._program.use_softmax else PlainSums()
        for span in spans:
            for chunk in _chunks(span, self._chunk_keys()):
                self._add(sums, queries, chunk)
        out, lse = sums.state((heads, rows, self._batch.tensors.v.shape[-1]), need_lse)
        if self._batch.quantised:
            out = out * self._rows.heads_of(self._batch.v_scale)
        return out, lse

    def _chunk_keys(self) -> int:
        """Keys of a chunk: by rows and head dims alone, not by how the heads were divided among threads."""
        tensors = self._batch.tensors
        rows = self._rows.shape[1]
        heads = min(tensors.k.shape[2], max(PRODUCT_ROWS // rows, 1))
        keys = min(_LOGITS // rows, CHUNK // max(tensors.k.shape[-1], tensors.v.shape[-1])) // heads
        return max(keys // _STEP, 1) * _STEP

    def _add(self, sums: SoftmaxSums | PlainSums, queries: torch.Tensor, chunk: Span) -> None:
        """Add what the rows see of one chunk."""
        begin, end, hidden, unseen, blind = self._visible(chunk)
        if begin >= end:
            return
        heads, rows = self._rows.shape
        logits = SCRATCH.take("logits", (heads, rows, end - begin))
        keys = self._panel.keys(begin, end).transpose(1, 2)
        torch.baddbmm(logits, queries, keys, beta=0, alpha=self._scale, out=logits)
        by_functor = logits.view(*self._rows.functor_shape, end - begin)
        if self._program.logits is not None:
            env = {**self._known(), "kv_pos": self._batch.kv_pos(self._request, begin, end), "logits": by_functor}
            by_functor.copy_(compile_expr(self._program.logits)(env))
            if self._program.use_softmax:
                logits.mul_(LOG2_E)
                blind = True  # a transform may return -inf
        fill = -torch.inf if self._program.use_softmax else 0.0
        for part in hidden:
            np.copyto(by_functor[..., part.begin - begin : part.end - begin].numpy(), fill, where=part.mask)
        values = self._panel.values(begin, end)
        if unseen is not None:
            values = values.masked_fill(unseen[..., None], 0.0)
        sums.add(logits, values, blind)

    def _known(self) -> Env:
        if self._env is None:
            self._env = self._rows.known()
        return self._env

    def _visible(self, chunk: Span) -> Visible:
        """What the mask leaves of a chunk."""
        begin, end = chunk.begin, chunk.end
        if not chunk.partial or self._program.mask is None:
            return Visible(begin, end, (), None, False)
        mask = compile_expr(self._program.mask)
        found = []
        seen = np.ones((1, end - begin), bool)
        for first, last in chunk.partial:
            env = {**self._known(), "kv_pos": self._batch.kv_pos(self._request, first, last)}
            visible = mask(env).numpy()
            if not visible.ndim or visible.shape[-1] != last - first:  # the same for every key
                visible = np.broadcast_to(visible, (*visible.shape[:-1], last - first))
            heads = visible.shape[0] if visible.ndim == len(self._rows.functor_shape) + 1 else 1
            if heads > seen.shape[0]:
                seen = seen.repeat(heads, 0)
            seen[:, first - begin : last - begin] = visible.reshape(heads, -1, last - first).any(1)
            found.append((first, last, visible))
        at = np.flatnonzero(seen.any(0))
        if not at.size:
            return Visible(begin, begin, (), None, True)
        low, high = begin + int(at[0]), begin + int(at[-1]) + 1
        unseen = ~seen[:, low - begin : high - begin]
        hidden = []
        for first, last, visible in found:
            a, b = max(first, low), min(last, high)
            part = visible[..., a - first : b - first]
            if a < b and not part.all():
                hidden.append(Hidden(a, b, ~part))
        masked = sum(part.end - part.begin for part in hidden)
        blind = masked == high - low and _row_sees_nothing(hidden)
        return Visible(low, high, tuple(hidden), torch.from_numpy(unseen) if unseen.any() else None, blind)


def _row_sees_nothing(hidden: Sequence[Hidden]) -> bool:
    """Whether some row is masked in every part."""
    nothing = hidden[0].mask.all(-1)
    for part in hidden[1:]:
        nothing = nothing & part.mask.all(-1)
    return bool(nothing.any())


def _chunks(span: Span, keys: int) -> list[Span]:
    """A span cut into pieces of at most ``keys`` keys."""
    if span.end - span.begin <= keys:
        return [span]
    pieces = []
    for begin in range(span.begin, span.end, keys):
        end = min(begin + keys, span.end)
        partial = tuple((max(a, begin), min(b, end)) for a, b in span.partial if a < end and b > begin)
        pieces.append(Span(begin, end, partial))
    return pieces
