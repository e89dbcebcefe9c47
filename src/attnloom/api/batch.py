"""BatchAttention: options at construction, lengths at `plan` (once a step), tensors at `run` (once a layer)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from attnloom import env, explain
from attnloom.api import operator, planning, tensors
from attnloom.api.buffers import Workspace
from attnloom.api.operands import Operands, OperandTable, copies, host_values, same_values
from attnloom.errors import InvalidArgument, NotYetSupported, PlanRequired, StateError
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
    head_dim_vo is given), dtype of q, k, v and out; page_size (None: chosen at each plan), kv_layout
    "NHD" or "HND", variant (None: full attention), sm_scale (default ``head_dim ** -0.5``), device
    (None: torch's default), implementation (a name of `implementations()`; None: the first that can),
    workspace (1-D uint8 of `workspace_size()` bytes; None: the engine owns one), planner ("stream", or
    "algorithm1", the baseline of the FlashInfer paper).

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
        _refuse_later_options(deterministic, max_batch_size, max_total_q, max_pages)
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
        self._planner = planner
        self._cost = cost_model(self.target.arch_name)
        self._state: _Planned | None = None
        self._why_unplanned = "plan() has not been called"
        self._handle = operator.register(self)

    @property
    def implementation(self) -> str:
        """Name of the implementation that runs."""
        return self._implementation.name

    def workspace_size(self, num_ctas: int | None = None) -> int:
        """Bytes of workspace that a plan with `num_ctas` workers needs (None: the default of the device)."""
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
        default ones; num_ctas: workers to balance over; validate: check page ids for being
        negative here, and device metadata too (None: ``ATTNLOOM_CHECK``).

        Host arrays may be overwritten when this returns. After a plan that raised, `run` refuses.
        """
        self._state, self._why_unplanned = None, "the last plan() failed"
        if share_prefixes is not None:
            raise NotYetSupported(feature="share_prefixes", fix="Leave it out.")
        num_ctas = planning.check_num_ctas(num_ctas)
        inputs = planning.gather_inputs(qo_indptr, kv, spec=self.spec, device=self.device, q_pos=q_pos, kv_pos=kv_pos)
        if env.check_enabled() if validate is None else validate:
            planning.check_page_ids(inputs.kv)
        classes = self._tile_classes(num_ctas)
        self._workspace.ensure(workspace_bytes(classes, self.spec.head_dim_vo))
        operands = self._operands.at_plan(params, inputs.lengths)
        operands |= copies(operands, self._bounds.structural_params)  # what shaped the tiles must also mask them
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
        latest wins; out and lse: where to write.

        Returns out ``[rows, num_qo_heads, head_dim_vo]``; with return_lse (out, lse), lse fp32
        ``[rows, num_qo_heads]``, natural log; with return_state the raw fp32 state (out, lse) before sink and
        output_transform (lse None without softmax).
        """
        if k_scale is not None or v_scale is not None:
            raise NotYetSupported(feature="k_scale and v_scale (fp8 caches)", fix="Leave them out.")
        if return_lse and not return_state and not self._program.use_softmax:
            raise StateError(reason="a variant without softmax has no lse", fix="Leave return_lse out.")
        with_lse = self._program.use_softmax and (return_lse or return_state or lse is not None)
        if torch.compiler.is_compiling():
            result, result_lse = operator.traced_run(
                self._handle, (q, k_cache, v_cache), params=params, into=(out, lse), with_lse=with_lse, raw=return_state
            )
        else:
            result, result_lse = self.compute(
                q, k_cache, v_cache, params=params, out=out, lse=lse, with_lse=with_lse, raw=return_state
            )
        return (result, result_lse) if return_lse or return_state else result

    def compute(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor | None,
        *,
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
        operands = self._operands.at_run(state.operands, params, state.inputs.lengths)
        state = self._follow_structure(state, operands)
        dtype = torch.float32 if raw else spec.dtype
        out = tensors.output_tensor(out, q, spec, dtype, total_q)
        lse = tensors.lse_tensor(lse, q, spec, total_q) if with_lse else None
        if total_q:
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
                    params=operands,
                    q_pos=state.inputs.q_pos_device,
                    kv_pos=state.inputs.kv_pos_device,
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
        made._handle = operator.register(made)
        return made

    def __deepcopy__(self, memo: object) -> BatchAttention:
        """As `__copy__`: what both hold in common never changes."""
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise NotYetSupported(
            feature="pickling a BatchAttention", fix="Build it again, from its options, where it is needed."
        )

    def _planned(self) -> _Planned:
        if self._state is None:
            raise PlanRequired(reason=self._why_unplanned)
        return self._state

    def _tile_classes(self, num_ctas: int | None) -> tuple[TileClass, ...]:
        return self._config.tile_classes(num_ctas or self._implementation.default_num_ctas(self.target))

    def _schedule(self, inputs: planning.PlanInputs, operands: Operands, classes: tuple[TileClass, ...]) -> _Planned:
        structural = host_values(operands, self._bounds.structural_params)
        plan = planning.build_plan(
            inputs,
            spec=self.spec,
            bounds=self._bounds,
            operands=structural,
            classes=classes,
            cost=self._cost,
            planner=self._planner,
            device=self.device,
        )
        return _Planned(inputs, operands, classes, plan)

    def _follow_structure(self, state: _Planned, operands: Operands) -> _Planned:
        """The plan for `operands`: scheduled again where one that shapes the tiles differs from the plan's."""
        for name in self._bounds.structural_params:
            planned = state.operands.get(name)
            if planned is not None and not same_values(planned, operands[name]):
                return self._schedule(state.inputs, operands, state.classes)
        return state

    def _caches(
        self, k_cache: torch.Tensor, v_cache: torch.Tensor | None, state: _Planned
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


class _Planned:
    """One plan and what it was made from."""

    def __init__(
        self,
        inputs: planning.PlanInputs,
        operands: Operands,
        classes: tuple[TileClass, ...],
        plan: Plan,
    ) -> None:
        self.inputs = inputs
        self.operands = operands
        self.classes = classes
        self.plan = plan
        self._checked_rows: int | None = None

    def check_rows(self, num_rows: int) -> None:
        """Once per cache size, where page ids lie on the host: all of them are inside the cache."""
        kv = self.inputs.kv
        if self._checked_rows == num_rows or (kv.pages is not None and kv.pages.device.type != "cpu"):
            return
        planning.check_pages(kv, num_rows, name="k_cache and v_cache")
        self._checked_rows = num_rows


def resolve_device(device: torch.device | str | int | None) -> torch.device:
    """`device` with its index, torch's default device for None."""
    try:
        resolved = torch.get_default_device() if device is None else torch.device(device)
        known = resolved.type != "cuda" or (resolved.index or 0) < torch.cuda.device_count()
    except (RuntimeError, TypeError):
        known = False
    if not known:
        raise InvalidArgument(
            name="device",
            given=device,
            supported=f"'cpu' or one of the {torch.cuda.device_count()} CUDA devices of this machine",
            fix="Leave it out for torch's default device.",
        )
    if resolved.type == "cuda" and resolved.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return resolved


def check_variant(variant: Variant | None) -> Variant:
    """`variant`, or full attention for None; raises for anything that is no Variant."""
    if variant is None:
        return Variant()
    if not isinstance(variant, Variant):
        raise InvalidArgument(
            name="variant",
            given=variant,
            supported="an attnloom.Variant",
            fix="Call the built-in (al.variants.causal()), or wrap functions in al.Variant(...).",
        )
    return variant


def _refuse_later_options(
    deterministic: bool, max_batch_size: int | None, max_total_q: int | None, max_pages: int | None
) -> None:
    if deterministic:
        raise NotYetSupported(
            feature="deterministic=True", fix="Results of one plan are already bitwise repeatable; leave it out."
        )
    maxima = {"max_batch_size": max_batch_size, "max_total_q": max_total_q, "max_pages": max_pages}
    for name, value in maxima.items():
        if value is not None:
            raise NotYetSupported(feature=f"the declared maximum {name}", fix="Leave it out: buffers fit each plan.")
