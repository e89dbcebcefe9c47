"""One tile: logits of a chunk of keys in one product, their state, states of chunks joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from attnloom.impl.base import LaunchTensors
from attnloom.impl.cpu.arrange import Span
from attnloom.impl.cpu.keys import CHUNK, Panel
from attnloom.impl.cpu.rows import Batch, Rows
from attnloom.impl.cpu.scratch import SCRATCH
from attnloom.variant.evaluate import compile_expr

_LOGITS = 1 << 20  # fp32 logits of a chunk: keys that fit are one chunk, and chunks are dear to join
_STEP = 128  # a chunk is a multiple of this many keys

Env = dict[str, Any]
State = tuple[torch.Tensor, torch.Tensor | None]
Bools = npt.NDArray[np.bool_]


# Masks are applied by numpy: it reduces and fills by booleans several times faster than torch does.


class Hidden(NamedTuple):
    """Where keys [begin, end) are masked: True, broadcastable over the rows' functor_shape + [keys]."""

    begin: int
    end: int
    mask: Bools


class Part(NamedTuple):
    """The state of some keys: out, and the sum of exp(logit - top) by row; no top and total where not needed.

    Chunks are joined by these and not by their lse, whose rounding is large where logits are large.
    """

    out: torch.Tensor
    top: torch.Tensor | None = None
    total: torch.Tensor | None = None

    def state(self) -> State:
        """(out, lse)."""
        if self.top is None or self.total is None:
            return self.out, None
        return self.out, self.top + torch.log(self.total)


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
        self._env: Env | None = None

    def state(self, spans: tuple[Span, ...], need_lse: bool) -> State:
        """(out [heads, rows, dim_vo], lse [heads, rows]) in fp32 of all keys; lse None where not needed."""
        heads, rows = self._rows.shape
        queries = self._rows.queries()
        chunks = [chunk for span in spans for chunk in _chunks(span, self._chunk_keys())]
        several = len(chunks) > 1
        whole: Part | None = None
        for chunk in chunks:
            part = self._chunk(queries, chunk, need_lse or several)
            if part is not None:
                whole = part if whole is None else _joined(whole, part)
        if whole is None:
            out = torch.zeros(heads, rows, self._batch.tensors.v.shape[-1], device="cpu")
            return out, torch.full((heads, rows), -torch.inf, device="cpu") if self._program.use_softmax else None
        return whole.state()

    def _chunk_keys(self) -> int:
        heads, rows = self._rows.shape
        keys = _LOGITS // (heads * rows)
        if self._panel.copies:
            tensors = self._batch.tensors
            keys = min(keys, CHUNK // (heads * max(tensors.k.shape[-1], tensors.v.shape[-1])))
        return max(keys // _STEP, 1) * _STEP

    def _chunk(self, queries: torch.Tensor, chunk: Span, need_lse: bool) -> Part | None:
        """The state of one chunk; None where nothing of it is visible."""
        begin, end, hidden, unseen, blind = self._visible(chunk)
        if begin >= end:
            return None
        heads, rows = self._rows.shape
        logits = SCRATCH.take("logits", (heads, rows, end - begin))
        keys = self._panel.keys(begin, end).transpose(1, 2)
        torch.baddbmm(logits, queries, keys, beta=0, alpha=self._scale, out=logits)
        by_functor = logits.view(*self._rows.functor_shape, end - begin)
        if self._program.logits is not None:
            env = {**self._known(), "kv_pos": self._batch.kv_pos(self._request, begin, end), "logits": by_functor}
            by_functor.copy_(compile_expr(self._program.logits)(env))
        fill = -torch.inf if self._program.use_softmax else 0.0
        for part in hidden:
            np.copyto(by_functor[..., part.begin - begin : part.end - begin].numpy(), fill, where=part.mask)
        values = self._values(begin, end, unseen)
        if not self._program.use_softmax:
            return Part(torch.bmm(logits, values))
        blind = blind or self._program.logits is not None  # a transform may return -inf
        if not need_lse and not blind:
            torch.softmax(logits, -1, out=logits)
            return Part(torch.bmm(logits, values))
        return self._softmax(logits, values, blind)

    def _softmax(self, logits: torch.Tensor, values: torch.Tensor, blind: bool) -> Part:
        """State of a chunk; blind: a row may see nothing of it."""
        top = logits.amax(-1)
        torch.softmax(logits, -1, out=logits)
        out = torch.bmm(logits, values)
        total = logits.amax(-1).reciprocal_()  # the greatest weight is exp(0) / total
        if blind:
            nothing = top == -torch.inf
            if nothing.any():
                out.masked_fill_(nothing[..., None], 0.0)
                total.masked_fill_(nothing, 0.0)
        return Part(out, top, total)

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

    def _values(self, begin: int, end: int, unseen: torch.Tensor | None) -> torch.Tensor:
        values = self._panel.values(begin, end)
        return values if unseen is None else values.masked_fill(unseen[..., None], 0.0)


def _joined(a: Part, b: Part) -> Part:
    """The state of both; a's out is overwritten."""
    if a.top is None or a.total is None or b.top is None or b.total is None:
        return Part(a.out.add_(b.out))
    top = torch.maximum(a.top, b.top)
    anchor = top.masked_fill(top == -torch.inf, 0.0)
    total_a, total_b = a.total * torch.exp(a.top - anchor), b.total * torch.exp(b.top - anchor)
    total = total_a + total_b
    nothing = total == 0
    share_a, share_b = ((one / total).masked_fill_(nothing, 0.0)[..., None] for one in (total_a, total_b))
    return Part(a.out.mul_(share_a).addcmul_(b.out, share_b), top, total)


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
