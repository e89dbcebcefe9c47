"""`gluon_sm90` without a GPU: what it refuses, how rows travel, which kernels launches ask for, kept descriptors."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import attnloom as al
from attnloom.errors import InvalidArgument
from attnloom.impl.gluon_sm90 import GluonSm90Implementation, descriptors, movement, warm
from attnloom.impl.gluon_sm90.configs import ClassConfig
from attnloom.impl.gluon_sm90.requests import attention_request, kernel_config
from attnloom.impl.gluon_sm90.tables import ROWS
from attnloom.impl.triton import arguments
from attnloom.impl.triton.warm import Shape, plan_of, tensors_of
from attnloom.spec import AttentionSpec
from attnloom.target import Target

H200 = Target("cuda", 90, 132, 232_448, "NVIDIA H200")
GLUON = GluonSm90Implementation()
CAUSAL = al.variants.causal().program


def spec_of(**changes) -> AttentionSpec:
    given = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 128, "dtype": torch.bfloat16, "page_size": 16}
    return AttentionSpec.create(**{**given, **changes})


def of_spec(spec, *, gap=0, offset=0, page_size=None, **flags):
    """(plan, tensors) on the host: `gap` elements behind each token of k and v, their first one at `offset`."""
    size = page_size or spec.page_size or 1
    caches = []
    for dim in (spec.head_dim_qk, spec.head_dim_vo):
        token = spec.num_kv_heads * dim + gap
        base = torch.zeros(4 * size * token + offset, dtype=spec.dtype)[offset:]
        caches.append(base.as_strided((4, size, spec.num_kv_heads, dim), (size * token, token, dim, 1)))
    shape = Shape(*caches, paged=spec.page_size is not None)
    plan = plan_of(spec, GLUON.default_config(spec, CAUSAL, H200), shape)
    tensors = tensors_of(spec, CAUSAL, plan, shape)
    return plan, dataclasses.replace(tensors, q=torch.zeros(tensors.q.shape, dtype=spec.dtype), **flags)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target.of_arch("sm80"), "compute capability 9.0 (Hopper), and the device has 8.0"),
        (Target("cuda", None, 304, 65_536, "MI300X"), "is no NVIDIA GPU"),
        (Target("cpu", None, 2, 0, "x86_64"), "runs on a Hopper GPU, and the device is cpu"),
    ],
)
def test_it_says_why_it_cannot_run(target, words):
    (reason,) = GLUON.unavailable_reasons(target)
    assert words in reason


def test_it_runs_on_hopper_but_not_interpreted(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert GLUON.unavailable_reasons(H200) == []
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert GLUON.unavailable_reasons(H200) == ["it is compiled, and TRITON_INTERPRET is set"]


def test_it_says_what_it_cannot_compute():
    assert GLUON.unsupported_reasons(spec_of(), CAUSAL, H200) == []
    for dims in ((64, 128), (80, 80), (192, 128), (256, 256)):
        assert GLUON.unsupported_reasons(spec_of(head_dim=dims[0], head_dim_vo=dims[1]), CAUSAL, H200) == []
    (reason,) = GLUON.unsupported_reasons(spec_of(dtype=torch.float32), CAUSAL, H200)
    assert "dtype is torch.float32" in reason
    reasons = GLUON.unsupported_reasons(spec_of(head_dim=576, head_dim_vo=512), CAUSAL, H200)
    assert [reason.rsplit(", and ")[1] for reason in reasons] == ["head_dim is 576", "head_dim_vo is 512"]


def test_small_tiles_go_where_one_token_is_wider():
    """16 query heads a kv head fill 16 rows with one token: no tile of 8 is planned for."""
    sizes = [one.tile_q for one in GLUON.default_config(spec_of(), CAUSAL, H200).classes]
    assert sizes == [8, 16, 32, 64, 128]
    wide = spec_of(num_qo_heads=32)
    assert [one.tile_q for one in GLUON.default_config(wide, CAUSAL, H200).classes] == [16, 32, 64, 128]
    huge = spec_of(num_qo_heads=300, num_kv_heads=1)
    assert [one.tile_q for one in GLUON.default_config(huge, CAUSAL, H200).classes] == [128]


def test_classes_are_planned_by_the_sms_they_fill():
    config = GLUON.default_config(spec_of(), CAUSAL, H200)
    for one, tile in zip(config.classes, config.tile_classes(132), strict=True):
        assert (tile.tile_q, tile.tile_kv, tile.num_ctas) == (one.tile_q, one.tile_kv, 132 * one.ctas_per_sm)
        assert tile.every_head == (one.kind == "decode")


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "append"}, {"tile_q": 24}, {"tile_kv": 32}, {"stages": 0}, {"ctas_per_sm": 9}, {"q_stages": 2}],
    ids=str,
)
def test_a_class_that_no_kernel_has_is_refused(wrong):
    with pytest.raises(InvalidArgument, match=f"ClassConfig.{next(iter(wrong))}"):
        ClassConfig(**{"kind": "decode", "tile_q": 8, "tile_kv": 64, "stages": 2, **wrong})


@pytest.mark.parametrize(
    ("page_size", "by_tma"),
    [(None, True), (1, False), (4, False), (8, True), (16, True), (24, False), (64, True), (192, True), (256, True)],
)
def test_pages_that_fill_tiles_come_by_tma(page_size, by_tma):
    plan, t = of_spec(spec_of(page_size=page_size))
    assert movement.kv_by_tma(plan, t, 64) == by_tma
    if page_size == 192:
        assert not movement.kv_by_tma(plan, t, 128)


@pytest.mark.parametrize(("gap", "alignment"), [(0, 16), (8, 16), (4, 8), (2, 4), (1, 2)])
def test_strides_decide_how_wide_rows_are_copied(gap, alignment):
    plan, t = of_spec(spec_of(), gap=gap)
    assert movement.kv_alignment(plan, t) == alignment
    assert movement.kv_by_tma(plan, t, 64) == (alignment == 16)
    assert alignment == kernel_config(plan, t, ClassConfig("decode", 8, 64, 2)).ALIGN


def test_an_address_that_16_does_not_divide_is_gathered():
    plan, t = of_spec(spec_of(), offset=4)
    assert movement.kv_alignment(plan, t) == 8
    assert not movement.kv_by_tma(plan, t, 64)


def test_a_stride_of_one_head_does_not_count():
    """With one kv head no address depends on its stride."""
    plan, t = of_spec(spec_of(num_qo_heads=4, num_kv_heads=1))
    odd = [x.as_strided(x.shape, (*x.stride()[:2], 3, 1)) for x in (t.k, t.v)]
    assert movement.kv_by_tma(plan, dataclasses.replace(t, k=odd[0], v=odd[1]), 64)


def test_a_page_that_stands_for_all_is_gathered():
    """TMA refuses a stride of 0."""
    plan, t = of_spec(spec_of())
    k = t.k[:1].expand(4, -1, -1, -1)
    assert not movement.kv_by_tma(plan, dataclasses.replace(t, k=k), 64)
    assert movement.kv_alignment(plan, dataclasses.replace(t, k=k)) == 16


@pytest.mark.parametrize(("group", "by_tma"), [(1, True), (4, True), (5, False), (64, True), (96, False)])
def test_queries_come_by_tma_where_tokens_fill_a_warpgroup(group, by_tma):
    plan, t = of_spec(spec_of(num_qo_heads=2 * group))
    cfg = kernel_config(plan, t, ClassConfig("prefill", 128, 64, 2))
    assert by_tma == cfg.Q_TMA
    assert not kernel_config(plan, t, ClassConfig("decode", 64, 64, 2)).Q_TMA
    shifted = torch.zeros(t.q.numel() + 1, dtype=t.q.dtype)[1:].view(t.q.shape)
    assert not kernel_config(plan, dataclasses.replace(t, q=shifted), ClassConfig("prefill", 128, 64, 2)).Q_TMA


def test_boxes_follow_pages_and_pieces():
    plan, t = of_spec(spec_of(head_dim=192, head_dim_vo=128))
    cfg = kernel_config(plan, t, ClassConfig("prefill", 128, 64, 2))
    assert descriptors.boxes(cfg) == {
        "q0_desc": (16, 4, 128),
        "q1_desc": (16, 4, 64),
        "k0_desc": (1, 16, 1, 128),
        "k1_desc": (1, 16, 1, 64),
        "v0_desc": (1, 16, 1, 128),
    }
    plan, t = of_spec(spec_of(head_dim=80, page_size=None))
    assert descriptors.boxes(kernel_config(plan, t, ClassConfig("decode", 8, 64, 2))) == {
        "k0_desc": (1, 64, 1, 128),
        "v0_desc": (1, 64, 1, 128),
    }
    plan, t = of_spec(spec_of(page_size=1))
    assert descriptors.boxes(kernel_config(plan, t, ClassConfig("decode", 8, 64, 2))) == {}


@pytest.mark.parametrize("page_size", [16, 1, None])
def test_launches_ask_for_what_is_compiled_ahead(page_size):
    """Caches and rows of other sizes, and other plans, never ask for another kernel."""
    spec = spec_of(page_size=page_size)
    config = GLUON.default_config(spec, CAUSAL, H200)
    plan, t = of_spec(spec)
    shape = Shape(t.k, t.v, paged=page_size is not None)
    ahead = [request.key for _, request in warm.wanted(spec, CAUSAL, H200, config, shape)]
    assert len(set(ahead)) == len(config.classes) + 1  # and the merge
    for rows, pages in ((1, 2), (977, 3)):
        q = torch.empty(rows, 8, 128, dtype=spec.dtype, device="meta")
        tensors = dataclasses.replace(t, q=q, k=t.k[:pages], v=t.v[:pages])
        keys = [
            attention_request(plan, tensors, i, (one, ("cuda", 90, 32))).key for i, one in enumerate(config.classes)
        ]
        assert keys == ahead[: len(keys)]


def test_a_layout_is_part_of_a_kernels_identity():
    """A box of another width has another type of descriptor, and a request another key."""
    plan, t = of_spec(spec_of())
    request = attention_request(plan, t, 0, (ClassConfig("decode", 8, 64, 2), ("cuda", 90, 32)))
    kind = request.signature["k0_desc"]
    assert kind.startswith("tensordesc<bf16[1, 16, 1, 128],NVMMASharedLayout(swizzle_byte_width=128")
    narrower = {**request.signature, "k0_desc": kind.replace("byte_width=128", "byte_width=64")}
    assert dataclasses.replace(request, signature=narrower).key != request.key


class Counting:
    """A kernel that encodes numbers."""

    def __init__(self):
        self.asked = []

    def descriptor(self, device, place, address, shape, strides):
        self.asked.append((device, place, address, shape, strides))
        return (len(self.asked),)


def test_descriptors_are_encoded_once_per_place(monkeypatch):
    monkeypatch.setattr(descriptors, "_REMEMBERED", 3)
    plan, t = of_spec(spec_of())
    cfg, kernel = kernel_config(plan, t, ClassConfig("prefill", 128, 64, 2)), Counting()
    kept = descriptors.Descriptors(kernel, cfg, 1)

    def given(tensors):
        call = arguments.of_call(tensors, 64, arguments.ADDRESSES)
        return kept.arguments(call, tensors, 1 << 20)

    first = given(t)
    assert first == (1, None, 2, None, 3, None)
    assert given(t) == first
    strides = (16 * 256, 256, 128, 1)
    assert kernel.asked[1] == (1, 1, t.k.data_ptr(), (4, 16, 2, 128), strides)
    assert kernel.asked[0] == (1, 0, t.q.data_ptr(), (16, 8, 128), (1024, 128, 1))
    fewer = dataclasses.replace(t, k=t.k[:2])
    assert given(fewer) == (1, None, 4, None, 5, None)
    for rows in range(1, 8):
        given(dataclasses.replace(t, q=t.q[:rows]))
    assert len(kept._q) == len(kept._kv) + 1 == 3
    nothing = dataclasses.replace(t, k=t.k[:0], v=t.v[:0])
    given(nothing)
    assert kernel.asked[-1][2:4] == (1 << 20, (1, 16, 2, 128))  # a place that is there, and one page of it


def test_a_ragged_cache_is_one_page():
    plan, t = of_spec(spec_of(page_size=None))
    kernel = Counting()
    kept = descriptors.Descriptors(kernel, kernel_config(plan, t, ClassConfig("decode", 8, 64, 2)), 0)
    assert kept.arguments(arguments.of_call(t, 64, arguments.ADDRESSES), t, 0) == (None, None, 1, None, 2, None)
    assert kernel.asked[0][3:] == ((1, 4, 2, 128), (256, 256, 128, 1))


def test_every_shipped_tile_is_where_a_tuner_would_look():
    assert [row.head_dims for row in ROWS] == sorted(row.head_dims for row in ROWS)
    for row in ROWS:
        assert [one.tile_q for one in row.classes] == [8, 16, 32, 64, 128]
