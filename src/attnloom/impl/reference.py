"""Dense attention in plain torch: the meaning of everything else, slow and short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnloom.impl import states
from attnloom.impl.base import Config, Implementation, LaunchTensors, by_kv_head
from attnloom.schedule.work import Plan, TileClass
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant import Program
from attnloom.variant.evaluate import compile_expr

Env = dict[str, Any]
State = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True)
class ReferenceConfig(Config):
    """dtype: what it computes in, torch.float32 or torch.float64."""

    dtype: torch.dtype = torch.float32

    def tile_classes(self, num_ctas: int) -> tuple[TileClass, ...]:
        """One class; the dense computation does not look at the items."""
        return (TileClass(128, 128, num_ctas),)


class ReferenceImplementation(Implementation):
    """Runs anywhere torch does, in fp32 (fp64: `ReferenceImplementation(torch.float64)`)."""

    name = "reference"

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    def unsupported_reasons(self, spec: AttentionSpec, program: Program, target: Target) -> list[str]:
        """It can compute every spec and variant."""
        return []

    def candidate_configs(self, spec: AttentionSpec, program: Program, target: Target) -> Sequence[Config]:
        """There is one."""
        return (ReferenceConfig(self.dtype),)

    def default_config(self, spec: AttentionSpec, program: Program, target: Target) -> Config:
        """The one."""
        return ReferenceConfig(self.dtype)

    def default_num_ctas(self, target: Target) -> int:
        """One: nothing runs in parallel."""
        return 1

    def launch(self, plan: Plan, tensors: LaunchTensors) -> None:
        """Write out and lse of the plan's rows, request by request."""
        for rows, env, logits, value in self._requests(plan, tensors):
            out, lse = self._reduce(logits, value, tensors.program)
            if not tensors.raw_state:
                out, lse = states.finish(out, lse, tensors.program, env)
            tensors.out[rows] = out.to(tensors.out.dtype)
            if tensors.lse is not None and lse is not None:
                tensors.lse[rows] = lse.float()

    def dump_logits(self, plan: Plan, tensors: LaunchTensors) -> list[torch.Tensor]:
        """Per request, what softmax (or, without it, the values) would see: ``[num_qo_heads, qo_len, kv_len]``."""
        return [logits for _, _, logits, _ in self._requests(plan, tensors)]

    def _requests(self, plan: Plan, t: LaunchTensors) -> Iterator[tuple[slice, Env, torch.Tensor, torch.Tensor]]:
        qo, kv, view = plan.qo_indptr.tolist(), plan.kv_indptr.tolist(), plan.levels[0]
        for request in range(plan.batch):
            rows, kv_len = slice(qo[request], qo[request + 1]), kv[request + 1] - kv[request]
            if rows.stop == rows.start:
                continue
            start, slot = view.page_start[request], torch.arange(kv_len, device=t.q.device)
            page = start + slot if view.pages is None else view.pages[start + slot // view.page_size].long()
            page = page.clamp(0, min(t.k.shape[0], t.v.shape[0]) - 1)  # nobody checks a table on the device
            caches = (
                cache[page, slot % view.page_size].to(self.dtype).transpose(0, 1) * by_kv_head(scale)
                for cache, scale in ((t.k, t.k_scale), (t.v, t.v_scale))
            )
            key, value = (cache.repeat_interleave(plan.group_size, 0) for cache in caches)
            env = self._env(plan, t, request, rows, slice(kv[request], kv[request + 1]))
            logits = t.spec.sm_scale * (t.q[rows].to(self.dtype).transpose(0, 1) @ key.transpose(1, 2))
            yield rows, {**env[1], **t.params}, self._functors(logits, t, env[0]), value

    def _functors(self, logits: torch.Tensor, t: LaunchTensors, env: Env) -> torch.Tensor:
        program, shape, empty = t.program, logits.shape, (-torch.inf if t.program.use_softmax else 0.0)
        if program.logits is not None:
            logits = compile_expr(program.logits, self.dtype)({**env, **t.params, "logits": logits})
        if program.mask is not None:
            logits = torch.where(compile_expr(program.mask, self.dtype)({**env, **t.params}), logits, empty)
        return logits.expand(shape)

    def _env(self, plan: Plan, t: LaunchTensors, request: int, rows: slice, keys: slice) -> tuple[Env, Env]:
        """What functors may ask for: broadcast over [heads, rows, keys], and over [rows, heads, dims]."""
        qo_len, kv_len, device = rows.stop - rows.start, keys.stop - keys.start, t.q.device
        q_idx, heads = torch.arange(qo_len, device=device), torch.arange(plan.num_qo_heads, device=device)
        q_pos = q_idx + (kv_len - qo_len) if t.q_pos is None else t.q_pos[rows]
        kv_pos = torch.arange(kv_len, device=device) if t.kv_pos is None else t.kv_pos[keys]
        common = {"batch": request, "qo_len": qo_len, "kv_len": kv_len}
        by_head = {"qo_head": heads, "kv_head": heads // plan.group_size, "head": heads}
        by_row = {"q_pos": q_pos, "q_idx": q_idx, "pos": q_pos}
        pairs: Env = {name: ids[:, None, None] for name, ids in by_head.items()}
        pairs |= {name: positions[:, None] for name, positions in by_row.items()}
        outs: Env = {name: ids[:, None] for name, ids in by_head.items()}
        outs |= {name: positions[:, None, None] for name, positions in by_row.items()}
        return {**pairs, **common, "kv_pos": kv_pos}, outs | common

    def _reduce(self, logits: torch.Tensor, value: torch.Tensor, program: Program) -> State:
        unseen = -torch.inf if program.use_softmax else 0.0
        value = torch.where((logits != unseen).any(1)[..., None], value, 0.0)  # what no row sees may be NaN
        if not program.use_softmax:
            return (logits @ value).transpose(0, 1), None
        lse = torch.logsumexp(logits, -1)
        # exp(logits - lse) would carry the rounding of a large lse into every weight
        weights = torch.where((lse == -torch.inf)[..., None], 0.0, torch.softmax(logits, -1))
        return (weights @ value).transpose(0, 1), lse.transpose(0, 1)
