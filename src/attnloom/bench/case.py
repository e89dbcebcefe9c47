"""One line of a benchmark: what is run, and the tensors for it."""

from __future__ import annotations

from dataclasses import dataclass

import attnloom as al
from attnloom.bench.arguments import DTYPES
from attnloom.testing import cases
from attnloom.testing.inputs import Batch, place, random_sequences
from attnloom.testing.placement import Heads, Placement


@dataclass(frozen=True)
class Case:
    """Causal attention of a workload's step.

    mode: "decode", "prefill" or "mixed"; dtype: a key of `arguments.DTYPES`; page_size: None is ragged KV, pages are
    permuted; heads: (query, kv); implementation and num_ctas: None leaves the engine's choice; target: the ratio
    to torch that is asked for, if one is.
    """

    workload: str
    mode: str
    dtype: str
    page_size: int | None
    heads: tuple[int, int] = (32, 8)
    head_dim: int = 128
    implementation: str | None = None
    device: str = "cpu"
    num_ctas: int | None = None
    target: float | None = None

    @property
    def name(self) -> str:
        """Mode, type and storage, then the workload."""
        return f"{self.mode} {self.dtype} {self.storage}, {self.workload}"

    @property
    def storage(self) -> str:
        """Where K and V lie."""
        return "ragged" if self.page_size is None else f"page {self.page_size}"

    @property
    def lengths(self) -> cases.Lengths:
        """Query rows and keys per request."""
        return cases.workload(self.workload).lengths(self.mode)

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that the requests own."""
        return sum(self.lengths.kv) * self.heads[1] * 2 * self.head_dim * DTYPES[self.dtype].itemsize

    @property
    def qo_bytes(self) -> int:
        """Bytes of q and out."""
        return sum(self.lengths.qo) * self.heads[0] * 2 * self.head_dim * DTYPES[self.dtype].itemsize

    @property
    def flops(self) -> int:
        """Both products over the visible pairs: 4 · D · pairs · query heads."""
        lengths = self.lengths
        pairs = sum(_visible(qo, kv) for qo, kv in zip(lengths.qo, lengths.kv, strict=True))
        return 4 * self.head_dim * pairs * self.heads[0]


def _visible(qo: int, kv: int) -> int:
    """Pairs with kv_pos <= q_pos, where the last row sees every key."""
    seen = min(qo, kv)
    return seen * kv - seen * (seen - 1) // 2


def make_batch(case: Case, seed: int = 0) -> Batch:
    """Random q, k and v in a poisoned, permuted pool."""
    lengths = case.lengths
    heads = Heads.of(*case.heads, case.head_dim, DTYPES[case.dtype])
    sequences = random_sequences(lengths.qo, lengths.kv, heads, seed=seed)
    if case.page_size is None:
        return place(sequences, Placement("ragged"), case.device)
    return place(sequences, Placement("csr", case.page_size), case.device)


def make_engine(case: Case) -> al.BatchAttention:
    """The object under test, not yet planned."""
    return al.BatchAttention(
        num_qo_heads=case.heads[0],
        num_kv_heads=case.heads[1],
        head_dim=case.head_dim,
        dtype=DTYPES[case.dtype],
        page_size=case.page_size,
        variant=al.variants.causal(),
        implementation=case.implementation,
        device=case.device,
    )
