"""BatchAttention: options at construction, lengths at `plan` (once a step), tensors at `run` (once a layer)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from attnloom import env, explain
from attnloom.api import buffers, operator, planning, tensors
from attnloom.api.buffers import Workspace
from attnloom.api.declared import Declared
from attnloom.api.maxima import Maxima, check_captured_params
from attnloom.api.operands import Operands, OperandTable, copies, same_values
from attnloom.api.options import check_variant, resolve_device
from attnloom.api.placing import place
from attnloom.api.planned import Planned
from attnloom.api.scales import check_scale
from attnloom.errors import CaptureRefused, InvalidArgument, NotYetSupported, PlanRequired, StateError
from attnloom.impl import dispatch
from attnloom.impl.base import LaunchTensors
from attnloom.schedule.cost import cost_model
from attnloom.schedule.planner import Planner
from attnloom.schedule.work import Plan, TileClass
from attnloom.schedule.workspace import workspace_bytes
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant import Variant
from attnloom.variant.bounds import compile_bounds

PLANNERS: tuple[Planner, ...] = ("stream", "algorithm1")


class BatchAttention:
    """Attention over a batch of requests with ragged or paged KV.

    Options (what is computed): num_qo_heads, num_kv_heads, head_dim (of q and k; of v too unless
    head_dim_vo is given), dtype of q, k, v and out; kv_dtype (None: dtype) of k and v, torch.float8_e4m3fn or
    torch.float8_e5m2 beside fp16 and bf16; page_size (None: chosen at each plan), kv_layout
    "NHD" or "HND", variant (None: full attention), sm_scale (default ``head_dim ** -0.5``), device
    (None: torch's default), implementation (a name of `implementations()`; None: the first that can),
    workspace (1-D uint8 of `workspace_size()` bytes; None: the engine owns one; what it holds does not matter, but
    one `run` at a time uses it: order runs that share one), planner ("stream", or "algorithm1", the baseline of the
    FlashInfer paper).

    Declared maxima, all three or none, for CUDA graphs: max_batch_size requests, max_total_q query rows and
    max_pages page-table entries (CSR: kv_indptr[-1]; a block table: batch times the pages of its longest request;
    ragged KV: rows). The first plan then allocates every planned buffer and the workspace for good, page tables are
    copied, and a graph that captured `run` does, at each replay, the work of the plan made last. Rule: what decides
    a launch is that of the first plan (PlanFormChanged else): ragged or paged KV, page_size, num_ctas, whether q_pos
    and kv_pos are given, and which operands are known at plan. Their values, scalars too, may change, and their
    shapes within the first plan's (max_batch_size where requests index them). Beyond the maxima plan raises
    MaximumExceeded, with nothing written. While a graph is being captured, q has max_total_q rows (ragged k and v
    max_pages), and operands given to `run` lie on the device. Run once before the capture, on the same tensors: it
    compiles. Plan and replay on one stream, or order them. Without maxima a graph keeps the plan it captured.

    Raises from attnloom.errors, before anything is compiled, for what cannot be computed.
    """

    def __init__(
        self,
        *,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        head_dim_vo: int | None = None,
        kv_dtype: torch.dtype | None = None,
        page_size: int | None = None,
        kv_layout: str = "NHD",
        variant: Variant | None = None,
        sm_scale: float | None = None,
        device: torch.device | str | int | None = None,
        implementation: str | None = None,
        workspace: torch.Tensor | None = None,
        deterministic: bool = False,
        max_batch_size: int | None = None,
        max_total_q: int | None = None,
        max_pages: int | None = None,
        planner: Planner = "stream",
    ) -> None:
        if deterministic:
            raise NotYetSupported(
                feature="deterministic=True", fix="Results of one plan are already bitwise repeatable; leave it out."
            )
        maxima = Maxima.declared(max_batch_size, max_total_q, max_pages)
        if planner not in PLANNERS:
            raise InvalidArgument(name="planner", given=planner, supported=" or ".join(map(repr, PLANNERS)), fix="")
        self.spec = AttentionSpec.create(
            num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            head_dim_vo=head_dim_vo,
            dtype=dtype,
            kv_dtype=kv_dtype,
            page_size=page_size,
            kv_layout=kv_layout,
            sm_scale=sm_scale,
        )
        self.variant = check_variant(variant)
        self.device = resolve_device(device)
        self.target = Target.of(self.device)
        self._program = self.variant.program
        self._implementation = dispatch.choose(self.spec, self._program, self.target, implementation)
        self._config = self._implementation.default_config(self.spec, self._program, self.target)
        self._bounds = compile_bounds(self._program)
        self._operands = OperandTable(self._program, self.device, (num_qo_heads, num_kv_heads))
        self._workspace = Workspace(workspace, self.device)
        self._declared = None if maxima is None else Declared(maxima, self.spec, self._program, self.device)
        self._captured: list[Planned] = []
        self._classes: dict[int | None, tuple[TileClass, ...]] = {}  # of each num_ctas that was asked for
        self._planner = planner
        self._cost = cost_model(self.target.arch_name, self._implementation.name)
        self._state: Planned | None = None
        self._why_unplanned = "plan() has not been called"
        self._handle = operator.register(self)

    @property
    def implementation(self) -> str:
        """Name of the implementation that runs."""
        return self._implementation.name

    def workspace_size(self, num_ctas: int | None = None) -> int:
        """Bytes of workspace that a plan with `num_ctas` workers needs (None: the default of the device).

        num_ctas is that of `plan`: 2 tiles of fp32 partial states for each CTA of each tile class.
        """
        num_ctas = planning.check_num_ctas(num_ctas)
        return workspace_bytes(self._tile_classes(num_ctas), self.spec.head_dim_vo)

    def plan(
        self,
        qo_indptr: Any,
        kv: Any,
        *,
        params: Mapping[str, Any] | None = None,
        q_pos: Any = None,
        kv_pos: Any = None,
        num_ctas: int | None = None,
        share_prefixes: bool | None = None,
        validate: bool | None = None,
    ) -> None:
        """Schedule one step; every layer may then `run` on it.

        qo_indptr: int32/int64 ``[batch + 1]``, rows of q per request; kv: RaggedKV, PagedKV or
        PagedKV.from_block_table; params: operands of the variant for this step (copied); q_pos
        ``[total_q]`` and kv_pos ``[total_kv]``: positions that masks and transforms see in place of the
        default ones; num_ctas: workers to balance over (None: SMs of the device, threads on a host; triton launches
        for each tile class as many CTAs per worker as an SM holds of it); validate: check page ids for being
        negative here, and device metadata too (None: ``ATTNLOOM_CHECK``).

        With lengths on the host nothing waits for the device, except for operands on it that shape the tiles.

        Host arrays may be overwritten when this returns. After a plan that raised, `run` refuses.
        """
        self._state, self._why_unplanned = None, "the last plan() failed"
        if share_prefixes is not None:
            raise NotYetSupported(feature="share_prefixes", fix="Leave it out.")
        if buffers.capturing(self.device):
            raise CaptureRefused(
                what="plan was called",
                reason="a replay would copy from memory that is no longer its own",
                fix="Plan before the capture, and before each replay that is to do other work.",
            )
        num_ctas = planning.check_num_ctas(num_ctas)
        inputs = planning.gather_inputs(qo_indptr, kv, spec=self.spec, device=self.device, q_pos=q_pos, kv_pos=kv_pos)
        if env.check_enabled() if validate is None else validate:
            planning.check_page_ids(inputs.kv)
        classes = self._tile_classes(num_ctas)
        if self._declared is not None:
            self._declared.maxima.check(inputs)
        self._workspace.ensure(workspace_bytes(classes, self.spec.head_dim_vo))
        operands = self._operands.at_plan(params, inputs.lengths)
        if operands and self._declared is None:  # what shaped the tiles must also mask them
            operands |= copies(operands, self._bounds.structural_params | set(params or ()), self.device)
        self._state = self._schedule(inputs, operands, classes)

    def run(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        k_scale: Any = None,
        v_scale: Any = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        return_state: bool = False,
    ) -> Any:
        """Attention of the planned batch.

        q ``[rows, num_qo_heads, head_dim]`` with rows >= total_q (more are padding); k_cache and v_cache: a
        pool ``[num_pages, page_size, num_kv_heads, D]`` (NHD) or ``[num_pages, num_kv_heads, page_size, D]``
        (HND), one packed pool ``[num_pages, 2, ...]`` as k_cache alone, or ragged ``[total_kv, num_kv_heads, D]``
        (HND ``[num_kv_heads, total_kv, D]``); strides free but for the last dimension. params: operands,
        latest wins; out and lse: where to write. k_scale, v_scale (fp8 caches alone): an element of the cache stands
        for itself times its scale, a number >= 0 (default 1) or an fp32 tensor on the device, 0-d or
        ``[num_kv_heads]``. A tensor is read when the kernel runs, so that a CUDA graph takes what it holds at replay
        (a number stays); a negative element there makes results NaN.

        Returns out ``[rows, num_qo_heads, head_dim_vo]``; with return_lse (out, lse), lse fp32
        ``[rows, num_qo_heads]``, natural log; with return_state the raw fp32 state (out, lse) before sink and
        output_transform (lse None without softmax).
        """
        if return_lse and not return_state and not self._program.use_softmax:
            raise StateError(reason="a variant without softmax has no lse", fix="Leave return_lse out.")
        with_lse = self._program.use_softmax and (return_lse or return_state or lse is not None)
        inputs: operator.Tensors = (q, k_cache, v_cache)
        scales = (k_scale, v_scale)
        if torch.compiler.is_compiling():
            result, result_lse = operator.traced_run(
                self._handle, inputs, scales, params=params, into=(out, lse), with_lse=with_lse, raw=return_state
            )
        else:
            result, result_lse = self.compute(
                *inputs, scales=scales, params=params, out=out, lse=lse, with_lse=with_lse, raw=return_state
            )
        return (result, result_lse) if return_lse or return_state else result

    def compute(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor | None,
        *,
        scales: tuple[Any, Any] = (None, None),
        params: Mapping[str, Any] | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        with_lse: bool = False,
        raw: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`run` without its return conventions: (out, lse or None)."""
        state = self._planned()
        spec, total_q = self.spec, state.inputs.total_q
        tensors.check_q(q, spec, self.device, total_q)
        k, v = self._caches(k_cache, v_cache, state)
        k_scale, v_scale = (
            check_scale(name, scale, spec.kv_fp8, heads=spec.num_kv_heads, device=self.device)
            for name, scale in zip(("k_scale", "v_scale"), scales, strict=True)
        )
        rows = self._rows(state, q, (k, v), params)
        operands = self._operands.at_run(state.operands, params, state.inputs.lengths)
        state = self._follow_structure(state, operands)
        dtype = torch.float32 if raw else spec.dtype
        out = tensors.output_tensor(out, q, spec, dtype, rows)
        lse = tensors.lse_tensor(lse, q, spec, rows) if with_lse else None
        if rows.stop:
            self._implementation.launch(
                state.plan,
                LaunchTensors(
                    spec=spec,
                    program=self._program,
                    q=q.detach(),
                    k=k,
                    v=v,
                    out=out,
                    lse=lse,
                    workspace=self._workspace.buffer,
                    k_scale=k_scale,
                    v_scale=v_scale,
                    params=operands,
                    q_pos=state.placed.q_pos,
                    kv_pos=state.placed.kv_pos,
                    raw_state=raw,
                ),
            )
        return out, lse

    def explain(self, target_name: str | explain.Card = "h200") -> explain.Explanation:
        """The current plan for people: a table, a timeline of its CTAs, and the limits of the card `target_name`."""
        return explain.report(self._planned().plan, self.spec, target_name, cost=self._cost)

    @property
    def current_plan(self) -> Plan:
        """The Plan that `run` executes: plain arrays, for tools and tests."""
        return self._planned().plan

    def __copy__(self) -> BatchAttention:
        """An engine of its own on the same options and the same plan."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._workspace = self._workspace.another()
        if self._declared is not None:  # its plan lies in buffers that this object's next plan overwrites
            made._declared = self._declared.another()
            made._state, made._why_unplanned = None, "a copy under declared maxima plans for itself"
        made._handle = operator.register(made)
        return made

    def __deepcopy__(self, memo: object) -> BatchAttention:
        """As `__copy__`: what both hold in common never changes."""
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise NotYetSupported(
            feature="pickling a BatchAttention", fix="Build it again, from its options, where it is needed."
        )

    def _planned(self) -> Planned:
        if self._state is None:
            raise PlanRequired(reason=self._why_unplanned)
        return self._state

    def _tile_classes(self, num_ctas: int | None) -> tuple[TileClass, ...]:
        found = self._classes.get(num_ctas)
        if found is None:
            workers = num_ctas or self._implementation.default_num_ctas(self.target)
            found = self._classes[num_ctas] = self._config.tile_classes(workers)
        return found

    def _schedule(self, inputs: planning.PlanInputs, operands: Operands, classes: tuple[TileClass, ...]) -> Planned:
        made = planning.make_schedule(
            inputs,
            spec=self.spec,
            bounds=self._bounds,
            operands=self._operands.host_values(operands, self._bounds.structural_params),
            classes=classes,
            cost=self._cost,
            planner=self._planner,
        )
        if self._declared is None:
            return Planned(inputs, classes, place(inputs, made, operands, self.spec, self.device))
        return Planned(inputs, classes, self._declared.place(inputs, classes, operands, made))

    def _follow_structure(self, state: Planned, operands: Operands) -> Planned:
        """The plan for `operands`: scheduled again where one that shapes the tiles differs from the plan's."""
        for name in self._bounds.structural_params:
            planned = state.operands.get(name)
            if planned is None or planned is operands[name]:
                continue
            if self._declared is not None:
                raise self._declared.refuse(name)
            if not same_values(planned, operands[name]):
                return self._schedule(state.inputs, operands, state.classes)
        return state

    def _rows(self, state: Planned, q: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], params: Any) -> range:
        """Rows of out that this launch writes for sure; the end of the range is what out must have."""
        if not buffers.capturing(self.device):
            state.use_on_current_stream(self._workspace.buffer)
            return range(state.inputs.total_q)
        check_captured_params(params, self.device)
        if self._declared is not None:
            return self._declared.rows(q, caches, state.inputs.kv.pages is None)
        self._captured.append(state)  # the graph reads its buffers
        return range(state.inputs.total_q)

    def _caches(
        self, k_cache: torch.Tensor, v_cache: torch.Tensor | None, state: Planned
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kv, spec = state.inputs.kv, self.spec
        ragged = kv.pages is None
        views = []
        for name, cache, head_dim in zip(
            ("k_cache", "v_cache"),
            tensors.split_packed(k_cache, v_cache),
            (spec.head_dim_qk, spec.head_dim_vo),
            strict=True,
        ):
            tensors.check_common(name, cache, spec.kv_dtype, self.device)
            view = tensors.cache_view(name, cache, kv_layout=spec.kv_layout, ragged=ragged, page_size=kv.page_size)
            tensors.check_view(name, view, page_size=kv.page_size, heads=spec.num_kv_heads, head_dim=head_dim)
            views.append(view.detach())
        state.check_rows(min(views[0].shape[0], views[1].shape[0]))
        return views[0], views[1]
