"""The Plan, interpreted with torch matrix products: bundle by bundle, heads batched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnloom.impl import states
from attnloom.impl.base import Config, Implementation, LaunchTensors
from attnloom.schedule.work import Plan, TileClass
from attnloom.schedule.workspace import layout
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant import Program
from attnloom.variant.evaluate import compile_expr


@dataclass(frozen=True)
class CpuConfig(Config):
    """Decode-like and prefill-like tiles."""

    def tile_classes(self, num_ctas: int) -> tuple[TileClass, ...]:
        """(16, 64) and (128, 128)."""
        return (TileClass(16, 64, num_ctas), TileClass(128, 128, num_ctas))


class CpuImplementation(Implementation):
    """Runs on the host."""

    name = "cpu"

    def unavailable_reasons(self, target: Target) -> list[str]:
        """Host tensors only."""
        return [] if target.kind == "cpu" else [f"it runs on the host, and the device is {target.kind}"]

    def unsupported_reasons(self, spec: AttentionSpec, program: Program, target: Target) -> list[str]:
        """It can compute every spec and variant."""
        return []

    def candidate_configs(self, spec: AttentionSpec, program: Program, target: Target) -> Sequence[Config]:
        """There is one."""
        return (CpuConfig(),)

    def default_config(self, spec: AttentionSpec, program: Program, target: Target) -> Config:
        """The one."""
        return CpuConfig()

    def default_num_ctas(self, target: Target) -> int:
        """As many as torch may use threads."""
        return torch.get_num_threads()

    def launch(self, plan: Plan, t: LaunchTensors) -> None:
        run = _Run(plan, t)
        for index, work in enumerate(plan.classes):
            indptr = work.work_indptr.tolist()
            items, isegs, segs = work.items.tolist(), work.item_segments.tolist(), work.segments.tolist()
            for cta in range(work.tile.num_ctas):
                if cta % work.heads_per_item:
                    continue
                group = cta // work.heads_per_item
                for i in range(indptr[group], indptr[group + 1]):
                    s, c = isegs[i]
                    run.item(index, items[i], segs[s : s + c])
        run.merge()


class _Run:
    def __init__(self, plan: Plan, t: LaunchTensors) -> None:
        self.plan, self.t = plan, t
        self.qo = plan.qo_indptr.tolist()
        self.kvp = plan.kv_indptr.tolist()
        self.view = plan.levels[0]
        self.start = self.view.page_start.tolist()
        self.lay = layout([c.tile for c in plan.classes], t.spec.head_dim_vo)
        self.parts = []
        if t.workspace is not None:
            for r in self.lay.regions:
                n = r.num_slots * r.tile_q
                o = t.workspace[r.out_offset : r.out_offset + n * r.head_dim_vo * 4].view(torch.float32)
                l = t.workspace[r.lse_offset : r.lse_offset + n * 4].view(torch.float32)
                self.parts.append((o.view(r.num_slots, r.tile_q, r.head_dim_vo), l.view(r.num_slots, r.tile_q)))

    def item(self, index: int, item: list[int], segs: list[list[int]]) -> None:
        plan, t = self.plan, self.t
        request, row0, rows, _, head, kv0, kv1, slot = item
        heads = range(plan.num_kv_heads) if head < 0 else range(head, head + 1)
        env = self.rows(request, row0, rows, heads)
        q = t.q[env["_q_row"][:, 0], :].float()
        g = plan.group_size
        q = torch.stack([q[torch.arange(rows), h * g + env["_sub"]] for h in heads]) * t.spec.sm_scale
        nh = len(heads)
        out = torch.zeros(nh, rows, t.spec.head_dim_vo)
        m = torch.full((nh, rows, 1), -torch.inf)
        l = torch.zeros(nh, rows, 1)
        for b, e, full in segs:
            b, e = max(b, kv0), min(e, kv1)
            for a in range(b, e, 512):
                z = min(a + 512, e)
                k, v = self.gather(request, a, z, heads)
                s = torch.bmm(q, k.transpose(1, 2))
                pos = torch.arange(a, z) if t.kv_pos is None else t.kv_pos[self.kvp[request] + a : self.kvp[request] + z]
                en = {**env, "kv_pos": pos, **t.params}
                prog = t.program
                if prog.logits is not None:
                    s = compile_expr(prog.logits)({**en, "logits": s}).expand(s.shape)
                if prog.mask is not None and not full:
                    s = torch.where(compile_expr(prog.mask)(en), s, -torch.inf if prog.use_softmax else 0.0)
                if not prog.use_softmax:
                    out += torch.bmm(s, v)
                    continue
                mn = torch.maximum(m, s.amax(-1, keepdim=True))
                safe = torch.where(mn == -torch.inf, 0.0, mn)
                p = torch.exp(s - safe)
                al = torch.exp(m - safe)
                l = l * al + p.sum(-1, keepdim=True)
                out = out * al + torch.bmm(p, v)
                m = mn
        lse = None
        if t.program.use_softmax:
            out = torch.where(l > 0, out / l, 0.0)
            lse = torch.where(l > 0, m + torch.log(l), -torch.inf)[..., 0]
        if slot >= 0:
            o, ls = self.parts[index]
            for i, h in enumerate(heads):
                at = slot * plan.num_kv_heads + h if head < 0 else slot
                o[at, :rows] = out[i]
                if lse is not None:
                    ls[at, :rows] = lse[i]
        else:
            self.final(out, lse, env, heads)

    def rows(self, request: int, row0: int, rows: int, heads: range) -> dict[str, Any]:
        plan, t, g = self.plan, self.t, self.plan.group_size
        qo_len = self.qo[request + 1] - self.qo[request]
        kv_len = self.kvp[request + 1] - self.kvp[request]
        p = torch.arange(row0, row0 + rows)
        q_idx, sub = p // g, p % g
        q_row = self.qo[request] + q_idx
        q_pos = q_idx + kv_len - qo_len if t.q_pos is None else t.q_pos[q_row]
        hs = torch.tensor(list(heads))[:, None, None]
        qo_head = hs * g + sub[:, None]
        return {
            "batch": request, "qo_len": qo_len, "kv_len": kv_len, "q_idx": q_idx[:, None], "q_pos": q_pos[:, None], "pos": q_pos[:, None],
            "qo_head": qo_head, "head": qo_head, "kv_head": hs, "_q_row": q_row[:, None], "_sub": sub,
        }

    def gather(self, request: int, a: int, z: int, heads: range) -> tuple[torch.Tensor, torch.Tensor]:
        view, start = self.view, self.start[request]
        pos = torch.arange(a, z)
        page = start + pos if view.pages is None else view.pages[start + pos // view.page_size].long()
        hs = slice(heads.start, heads.stop)
        k, v = (c[page, pos % view.page_size, hs].transpose(0, 1).float() for c in (self.t.k, self.t.v))
        return k, v

    def final(self, out: torch.Tensor, lse: torch.Tensor | None, env: dict[str, Any], heads: range) -> None:
        t = self.t
        if not t.raw_state:
            out, lse = states.finish(out, lse, t.program, {**env, **t.params})
        row = env["_q_row"][:, 0]
        for i in range(len(heads)):
            t.out[row, env["qo_head"][i, :, 0]] = out[i].to(t.out.dtype)
            if t.lse is not None and lse is not None:
                t.lse[row, env["qo_head"][i, :, 0]] = lse[i]

    def merge(self) -> None:
        plan = self.plan
        ptr, slots = plan.merges.indptr.tolist(), plan.merges.slots.tolist()
        for e, (request, row0, rows, _, head) in enumerate(plan.merges.entries.tolist()):
            for h in range(plan.num_kv_heads) if head < 0 else (head,):
                outs, lses = [], []
                for region, slot in slots[ptr[e] : ptr[e + 1]]:
                    at = slot * plan.num_kv_heads + h if head < 0 else slot
                    outs.append(self.parts[region][0][at, :rows])
                    lses.append(self.parts[region][1][at, :rows])
                if self.t.program.use_softmax:
                    out, lse = states.merge_states(outs, lses)
                else:
                    out, lse = torch.stack(outs).sum(0), None
                heads = range(h, h + 1)
                self.final(out[None], None if lse is None else lse[None], self.rows(request, row0, rows, heads), heads)
