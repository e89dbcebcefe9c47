"""One line of a benchmark: what is run, and the tensors for it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

import attnloom as al
from attnloom.bench.arguments import DTYPES, KV_DTYPES
from attnloom.testing import cases
from attnloom.testing.inputs import Batch, place, random_sequences
from attnloom.testing.placement import Heads, Placement


@dataclass(frozen=True)
class Case:
    """Attention of a workload's step, causal unless it says otherwise.

    mode: "decode", "prefill" or "mixed"; dtype: a key of `arguments.DTYPES`; page_size: None is ragged KV, pages are
    permuted; heads: (query, kv); implementation and num_ctas: None leaves the engine's choice; target: the ratio
    to torch that is asked for, if one is. On a GPU also: kv_dtype: a key of `arguments.KV_DTYPES`, None is dtype;
    qo_lens: query rows per request in place of the mode's (mode "append": a few rows for each); capacity: tokens a
    request may grow to, for which block tables are as wide and maxima are declared.
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
    causal: bool = True
    kv_dtype: str | None = None
    qo_lens: tuple[int, ...] | None = None
    capacity: int | None = None

    @property
    def name(self) -> str:
        """Mode, type and storage, then the workload."""
        mask = "" if self.causal else ", not causal"
        rows = f", {self.qo_lens[0]} rows each" if self.mode == "append" and self.qo_lens else ""
        kv_type = f" {self.kv_dtype} KV" if self.kv_dtype else ""
        return f"{self.mode} {self.dtype}{kv_type} {self.storage}, {self.workload}{rows}{mask}"

    @property
    def storage(self) -> str:
        """Where K and V lie."""
        return "ragged" if self.page_size is None else f"page {self.page_size}"

    @property
    def lengths(self) -> cases.Lengths:
        """Query rows and keys per request."""
        if self.qo_lens is not None:
            return cases.Lengths(self.qo_lens, cases.workload(self.workload).kv_lens)
        return cases.workload(self.workload).lengths(self.mode)

    @property
    def kv_torch_dtype(self) -> torch.dtype:
        """Type of K and V."""
        return DTYPES[self.dtype] if self.kv_dtype is None else KV_DTYPES[self.kv_dtype]

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that the requests own."""
        return sum(self.lengths.kv) * self.heads[1] * 2 * self.head_dim * self.kv_torch_dtype.itemsize

    @property
    def qo_bytes(self) -> int:
        """Bytes of q and out."""
        return sum(self.lengths.qo) * self.heads[0] * 2 * self.head_dim * DTYPES[self.dtype].itemsize

    @property
    def flops(self) -> int:
        """Both products over the visible pairs: 4 · D · pairs · query heads."""
        lengths = self.lengths
        count = _visible if self.causal else operator.mul
        pairs = sum(count(qo, kv) for qo, kv in zip(lengths.qo, lengths.kv, strict=True))
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
    lengths = case.lengths
    maxima: dict[str, Any] = {}
    if case.capacity is not None and case.page_size is not None:
        pages = -(-case.capacity // case.page_size) * len(lengths.kv)
        maxima = {"max_batch_size": len(lengths.kv), "max_total_q": sum(lengths.qo), "max_pages": pages}
    return al.BatchAttention(
        num_qo_heads=case.heads[0],
        num_kv_heads=case.heads[1],
        head_dim=case.head_dim,
        dtype=DTYPES[case.dtype],
        kv_dtype=case.kv_torch_dtype,
        page_size=case.page_size,
        variant=al.variants.causal() if case.causal else al.Variant(),
        implementation=case.implementation,
        device=case.device,
        **maxima,
    )
