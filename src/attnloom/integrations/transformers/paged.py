"""From continuous batching's slot indices to plan inputs, without touching K or V."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import attnloom as al
from attnloom.errors import InvalidMetadata
from attnloom.integrations.transformers.session import PlanInputs


@dataclass(frozen=True)
class CacheRead:
    """What one layer of one step of continuous batching reads.

    Attributes:
        group: cache group (layers of a group share their block tables).
        cu_seq_lens_q, cu_seq_lens_k: int32 [batch + 1], tokens; the first is a new tensor in every step.
        pages: K and V of the layer, views [num_pages, page_size, H_kv, D] of the pool; None if K and V were gathered.
        slots: int64 [>= cu_seq_lens_k[-1]], page · page_size + offset of every key, requests in order.
    """

    group: int | str
    cu_seq_lens_q: torch.Tensor
    cu_seq_lens_k: torch.Tensor
    pages: tuple[torch.Tensor, torch.Tensor] | None = None
    slots: torch.Tensor | None = None


def ragged_inputs(read: CacheRead) -> PlanInputs:
    """Plan inputs for K and V [total_kv, H_kv, D], requests one after the other."""
    qo_indptr, kv_indptr = _host_indptrs(read)
    return PlanInputs(qo_indptr, al.RaggedKV(kv_indptr))


def paged_inputs(read: CacheRead) -> PlanInputs:
    """Plan inputs that name the pages of each request, recovered from one slot a page.

    Slots of a page are neighbours and begin at its offset 0, so the first slot of every page is enough.
    """
    if read.pages is None or read.slots is None:
        raise InvalidMetadata(
            name="cache", given="a layer without pages", expected="pages and slots", fix="Use ragged_inputs."
        )
    page_size = read.pages[0].shape[1]
    qo_indptr, cu_k = _host_indptrs(read)
    kv_len = cu_k.diff()
    num_pages = (kv_len + page_size - 1) // page_size
    kv_indptr = torch.zeros_like(cu_k)
    kv_indptr[1:] = num_pages.cumsum(0)
    within = torch.arange(int(kv_indptr[-1]), device="cpu") - kv_indptr[:-1].repeat_interleave(num_pages)
    first_slot = cu_k[:-1].repeat_interleave(num_pages) + within * page_size
    kv_indices = read.slots[first_slot.to(read.slots.device)] // page_size
    last_page_len = kv_len - (num_pages - 1).clamp(min=0) * page_size
    return PlanInputs(qo_indptr, al.PagedKV(kv_indptr, kv_indices, last_page_len, page_size=page_size))


def _host_indptrs(read: CacheRead) -> tuple[torch.Tensor, torch.Tensor]:
    """Both pointers as int64 on the host, where the planner reads lengths: on a GPU one copy, one synchronisation."""
    q, k = read.cu_seq_lens_q, read.cu_seq_lens_k
    both = torch.cat([q, k.to(q.device)]).to(device="cpu", dtype=torch.int64)
    return both[: q.shape[0]], both[q.shape[0] :]
