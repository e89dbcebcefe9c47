"""Masks with their bands written by hand, and batches drawn from them: the input of the scheduler's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from attnloom.schedule.cost import CostModel
from attnloom.schedule.planner import Problem
from attnloom.schedule.work import TileClass

INF = 2**40
ALL = (-INF, INF, -INF, INF, -INF, INF)


def band(kv=(-INF, INF), q=(-INF, INF), d=(-INF, INF)):
    """(kv_lo, kv_hi, q_lo, q_hi, d_lo, d_hi), d = kv_pos - q_pos."""
    return (*kv, *q, *d)


@dataclass(frozen=True)
class Bands:
    may: np.ndarray
    not_must: np.ndarray


@dataclass(frozen=True)
class Mask:
    """`visible(q, kv, request)` on position arrays. exact: the bands say all there is to know."""

    name: str
    visible: Callable[..., np.ndarray]
    may: Callable[[int], Sequence[tuple[int, ...]]]
    not_must: Callable[[int], Sequence[tuple[int, ...]]]
    exact: bool = True
    per_request: bool = False

    def bands(self, batch: int) -> Bands:
        rows = range(batch) if self.per_request else range(1)
        return Bands(_table([self.may(i) for i in rows]), _table([self.not_must(i) for i in rows]))


def _table(rows) -> np.ndarray:
    width = max((len(r) for r in rows), default=0)
    table = np.empty((len(rows), width, 6), np.int64)
    table[:] = (1, 0, 1, 0, 1, 0)  # empty
    for i, r in enumerate(rows):
        for j, b in enumerate(r):
            table[i, j] = b
    return table


def _prefix(i: int) -> int:
    return 7 * i + 3


MASKS = [
    Mask("full", lambda q, k, i: (k >= 0) | (q < 0), lambda i: [ALL], lambda i: []),
    Mask("nothing", lambda q, k, i: (k < 0) & (k > 0) & (q > 0), lambda i: [], lambda i: [ALL]),
    Mask("causal", lambda q, k, i: k <= q, lambda i: [band(d=(-INF, 0))], lambda i: [band(d=(1, INF))]),
    Mask("window", lambda q, k, i: k >= q - 5, lambda i: [band(d=(-5, INF))], lambda i: [band(d=(-INF, -6))]),
    Mask(
        "causal window",
        lambda q, k, i: (k >= q - 20) & (k <= q),
        lambda i: [band(d=(-20, 0))],
        lambda i: [band(d=(1, INF)), band(d=(-INF, -21))],
    ),
    Mask(
        "prefix or causal, by request",
        lambda q, k, i: (k < _prefix(i)) | (k <= q),
        lambda i: [band(kv=(-INF, _prefix(i) - 1)), band(d=(-INF, 0))],
        lambda i: [band(kv=(_prefix(i), INF), d=(1, INF))],
        per_request=True,
    ),
    Mask(
        "first keys and a causal window (holes)",
        lambda q, k, i: ((k < 5) | (k >= q - 9)) & (k <= q),
        lambda i: [band(kv=(-INF, 4), d=(-INF, 0)), band(d=(-9, 0))],
        lambda i: [band(d=(1, INF)), band(kv=(5, INF), d=(-INF, -10))],
    ),
    Mask(
        "window or far past, not for early rows",
        lambda q, k, i: ((abs(k - q) <= 3) | (k <= q - 40)) & (q >= 10),
        lambda i: [band(q=(10, INF), d=(-3, 3)), band(q=(10, INF), d=(-INF, -40))],
        lambda i: [band(q=(-INF, 9)), band(d=(4, INF)), band(d=(-39, -4))],
    ),
    Mask("documents (unknown)", lambda q, k, i: q // 13 == k // 13, lambda i: [ALL], lambda i: [ALL], exact=False),
]


@dataclass(frozen=True)
class Case:
    """A problem with the dense truth beside it."""

    problem: Problem
    mask: Mask

    def positions(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """q_pos [qo_len], kv_pos [kv_len] of a request."""
        p = self.problem
        q_len, kv_len = int(p.qo_indptr[i + 1] - p.qo_indptr[i]), int(p.kv_len[i])
        q, kv = np.arange(q_len) + kv_len - q_len, np.arange(kv_len)
        if p.q_pos is not None:
            q = p.q_pos[p.qo_indptr[i] : p.qo_indptr[i + 1]]
        if p.kv_pos is not None:
            kv = p.kv_pos[p.kv_len[:i].sum() :][:kv_len]
        return q, kv

    def visible(self, i: int) -> np.ndarray:
        """bool [qo_len * group_size, kv_len]: the packed rows' visible keys."""
        q, kv = self.positions(i)
        seen = np.broadcast_to(self.mask.visible(q[:, None], kv[None, :], i), (len(q), len(kv)))
        return np.repeat(seen, self.problem.group_size, axis=0)


def make_case(qo_lens, kv_lens, mask: Mask | str = "causal", **options) -> Case:
    """options: group_size, num_kv_heads, q_pos, kv_pos."""
    if isinstance(mask, str):
        mask = next(m for m in MASKS if m.name == mask)
    fields = {"group_size": 4, "num_kv_heads": 2, **options}
    indptr = np.concatenate([[0], np.cumsum(np.asarray(qo_lens, np.int64))]).astype(np.int64)
    return Case(Problem(indptr, np.asarray(kv_lens, np.int64), bands=mask.bands(len(kv_lens)), **fields), mask)


def shuffled_positions(lens, limit: int, rng) -> np.ndarray:
    """Explicit positions, in no order."""
    return rng.integers(0, max(1, limit), int(sum(lens))).astype(np.int64)


@st.composite
def cases(draw, masks=tuple(MASKS), explicit=True, max_len=150):
    """Small batches of every kind: empty requests, any group size, default or explicit positions."""
    batch = draw(st.integers(0, 5))
    long_rows = draw(st.booleans())
    qo_lens = draw(st.lists(st.integers(0, 40 if long_rows else 3), min_size=batch, max_size=batch))
    kv_lens = draw(st.lists(st.integers(0, max_len), min_size=batch, max_size=batch))
    options = {"group_size": draw(st.integers(1, 5)), "num_kv_heads": draw(st.integers(1, 4))}
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    if explicit and draw(st.booleans()):
        options["q_pos"] = shuffled_positions(qo_lens, max_len, rng)
    if explicit and draw(st.booleans()):
        options["kv_pos"] = shuffled_positions(kv_lens, max_len, rng)
    return make_case(qo_lens, kv_lens, draw(st.sampled_from(masks)), **options)


@st.composite
def tile_classes(draw):
    """One to three classes with CTA counts of their own, in any order."""
    tile_qs = draw(st.lists(st.sampled_from([1, 4, 16, 24]), min_size=1, max_size=3, unique=True))
    return tuple(
        TileClass(
            t,
            draw(st.sampled_from([4, 8, 12, 16])),
            draw(st.integers(1, 40)),
            draw(st.booleans()),
            draw(st.sampled_from([0, 0, 20, 100])),
            draw(st.booleans()),
        )
        for t in draw(st.permutations(tile_qs))
    )


_numbers = {
    "fixed": st.sampled_from([0.0, 0.5, 30.0, 1000.0]),
    "alpha": st.sampled_from([0.0, 0.1]),
    "beta": st.sampled_from([0.01, 1.0]),
    "merge_fixed": st.sampled_from([0.0, 5.0, 1e6]),
    "merge_slot": st.sampled_from([0.0, 0.5]),
    "min_chunk": st.sampled_from([0, 1, 32]),
}
costs = st.builds(
    CostModel, **_numbers, wider=st.none() | st.tuples(st.sampled_from([4, 16]), st.builds(CostModel, **_numbers))
)
