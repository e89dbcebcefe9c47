"""Explained plans: figures counted by hand on hand-made plans, and against a dense mask on real ones."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

import attnloom as al
from attnloom import errors, explain
from attnloom.explain import svg
from attnloom.schedule.cost import CostModel
from attnloom.schedule.work import ClassPlan, MergeList, PageView, Plan, TileClass
from attnloom.spec import AttentionSpec

SPEC = AttentionSpec.create(num_qo_heads=4, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16, page_size=8)
SLOT = 2 * 64 * 2  # bytes of K and V of one token and kv head
ROW = 2 * 64 * 2  # bytes of q and out of one packed row
TILE = TileClass(tile_q=4, tile_kv=16, num_ctas=3)
# One unit for an item with its 4 rows, one for each kv tile.
COST = CostModel(fixed=0.6, alpha=0.1, beta=1 / 16)
NS = "{http://www.w3.org/2000/svg}"


def ints(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


def class_plan(tile, heads_per_item, rows):
    """rows: per CTA (or group), items as (request, row_count, kv_head, kv_begin, kv_end, slot, segments)."""
    items, spans, segments, indptr = [], [], [], [0]
    for cta in rows:
        for request, row_count, head, begin, end, slot, seen in cta:
            items.append((request, 0, row_count, -1, head, begin, end, slot))
            spans.append((len(segments), len(seen)))
            segments += seen
        indptr.append(len(items))
    indptr += [indptr[-1]] * (tile.num_ctas + 1 - len(indptr))
    return ClassPlan(
        tile=tile,
        heads_per_item=heads_per_item,
        items=ints(items).reshape(-1, 8),
        item_segments=ints(spans).reshape(-1, 2),
        segments=ints(segments).reshape(-1, 3),
        work_indptr=ints(indptr),
    )


def make_plan(classes, qo, kv, pages=None, page_size=8):
    qo_indptr = np.concatenate([[0], np.cumsum(qo)])
    kv_indptr = np.concatenate([[0], np.cumsum(kv)])
    if pages is None:
        view = PageView(None, ints(kv_indptr[:-1].tolist(), torch.int64), ints(kv), 1)
    else:
        start = np.cumsum([0, *map(len, pages)])[:-1]
        view = PageView(
            ints([page for each in pages for page in each]), ints(start.tolist(), torch.int64), ints(kv), page_size
        )
    return Plan(
        batch=len(qo), total_q=sum(qo), total_kv=sum(kv), num_qo_heads=4, num_kv_heads=2,
        qo_indptr=ints(qo_indptr.tolist()), kv_indptr=ints(kv_indptr.tolist(), torch.int64),
        levels=(view,), level_indptr=(0, len(qo)), classes=tuple(classes),
        merges=MergeList(ints([]).reshape(0, 5), ints([0]), ints([]).reshape(0, 2)),
        row_maps=None, deterministic=False, has_q_pos=False, has_kv_pos=False,
    )  # fmt: skip


def split_plan():
    """Request 0 (1 row, 40 keys) with head 0 cut at 32; request 1 (2 rows, 20 keys), causal."""
    whole = [(0, 40, 1)]
    causal = [(0, 16, 1), (16, 20, 0)]
    part = class_plan(
        TILE,
        1,
        [
            [(0, 2, 0, 0, 32, 0, whole)],
            [(0, 2, 0, 32, 40, 1, whole), (1, 4, 0, 0, 20, -1, causal)],
            [(0, 2, 1, 0, 40, -1, whole), (1, 4, 1, 0, 20, -1, causal)],
        ],
    )
    return make_plan([part], qo=[1, 2], kv=[40, 20], pages=[[3, 1, 4, 0, 5], [9, 2, 6]])


def report(plan, card="h200"):
    return explain.report(plan, SPEC, card, cost=COST)


def test_figures_of_a_split_plan_by_hand():
    (figures,) = report(split_plan()).classes
    assert (figures.requests, figures.ctas, figures.busy_ctas) == (2, 3, 3)
    assert (figures.q_tiles, figures.items) == (4, 5)
    assert (figures.split_q_tiles, figures.partial_states) == (1, 2)
    # request 0: tiles of 16, 16 and 8 keys, per head; request 1: a full and a masked tile per head
    assert (figures.full_tiles, figures.masked_tiles, figures.skipped_tiles) == (8, 2, 0)
    assert figures.row_fill == (2 + 2 + 4 + 4) / 16
    # CTA 0: 1 + 2; CTA 1: 1 + 1 and 1 + 2; CTA 2: 1 + 3 and 1 + 2
    assert figures.balance == pytest.approx(7 / 5)
    assert figures.idle == pytest.approx(1 - 5 / 7)
    assert figures.kv_bytes_read == figures.kv_bytes == 2 * (40 + 20) * SLOT
    assert figures.qo_bytes == 12 * ROW
    assert figures.flops == (2 * 2 * 40 + 2 * 4 * 20) * 2 * (64 + 64)


def test_timeline_of_a_split_plan_by_hand():
    (panel,) = report(split_plan()).panels
    assert panel.cta.tolist() == [0, 1, 1, 2, 2]
    assert panel.start.tolist() == pytest.approx([0, 0, 2, 0, 4])
    assert panel.stop.tolist() == pytest.approx([3, 2, 5, 4, 7])
    assert panel.cut_before.tolist() == [False, True, False, False, False]
    assert panel.cut_after.tolist() == [True, False, False, False, False]
    assert (panel.span, panel.even) == pytest.approx((7, 5))


def every_head_plan(num_ctas=5, pages=None):
    """Items for both kv heads at once: two groups of two CTAs, CTA 4 has none. The window hides keys 0..31."""
    seen = [(32, 40, 0)]
    part = class_plan(TileClass(4, 16, num_ctas), 2, [[(0, 2, -1, 32, 40, -1, seen)], [(1, 2, -1, 32, 40, -1, seen)]])
    return make_plan([part], qo=[1, 1], kv=[40, 40], pages=pages)


def test_items_for_every_head_count_once_a_head():
    explanation = report(every_head_plan())
    (figures,), (panel,) = explanation.classes, explanation.panels
    assert (figures.items, figures.q_tiles, figures.busy_ctas) == (4, 4, 4)
    assert (figures.full_tiles, figures.masked_tiles, figures.skipped_tiles) == (0, 4, 8)
    assert panel.cta.tolist() == [0, 1, 2, 3]
    assert panel.head.tolist() == [0, 1, 0, 1]
    assert panel.busy.tolist() == pytest.approx([2, 2, 2, 2, 0])
    assert figures.idle == pytest.approx(0.2)
    assert figures.kv_bytes == 2 * 2 * 8 * SLOT


def test_shared_pages_are_counted_once():
    """The visible keys 32..39 of both requests are the fifth page."""
    shared = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 4]]
    apart = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert report(every_head_plan(pages=shared)).total.kv_bytes == 2 * 8 * SLOT
    assert report(every_head_plan(pages=apart)).total.kv_bytes == 2 * 2 * 8 * SLOT
    assert report(every_head_plan(pages=shared)).total.kv_bytes_read == 2 * 2 * 8 * SLOT


def test_pages_are_counted_by_the_tokens_used():
    """Keys 4..19 over pages of 8 in any order: half of the first page, the second, half of the third."""
    part = class_plan(TILE, 1, [[(0, 2, h, 0, 24, -1, [(4, 20, 1)])] for h in (0, 1)])
    plan = make_plan([part], qo=[1], kv=[24], pages=[[7, 0, 3]])
    assert report(plan).total.kv_bytes == 2 * 16 * SLOT


def test_slots_read_by_two_classes_count_once():
    parts = [class_plan(TILE, 1, [[(r, 2, h, 0, 16, -1, [(0, 16, 1)]) for h in (0, 1)]]) for r in (0, 1)]
    plan = make_plan(parts, qo=[1, 1], kv=[16, 16], pages=[[0, 1], [0, 2]])
    explanation = report(plan)
    assert [c.kv_bytes for c in explanation.classes] == [2 * 16 * SLOT] * 2
    assert explanation.total.kv_bytes == 2 * 24 * SLOT


def test_empty_plan():
    explanation = report(make_plan([class_plan(TILE, 1, [])], qo=[0, 0], kv=[0, 5]))
    assert explanation.total.limit.seconds == 0
    assert "No work" in explanation.table()
    assert "No work" in explanation.svg()


def test_limits_of_a_card():
    card = explain.Card("slow", 1e6, {torch.bfloat16: 1e3})
    total = report(split_plan(), card).total
    assert total.limit == explain.Limit(total.flops / 1e3, "compute")
    memory = explain.Card("no peak known", 1e6)
    assert report(split_plan(), memory).total.limit.seconds == (total.kv_bytes + total.qo_bytes) / 1e6
    assert "no peak of bfloat16" in report(split_plan(), memory).total.limit.bound
    with pytest.raises(errors.InvalidArgument, match=r"'h900'.*expected h200"):
        report(split_plan(), "h900")


def test_table_shows_the_figures():
    table = report(split_plan()).table()
    assert str(report(split_plan())) == table
    assert "2 requests, 3 query rows on 60 keys; 4/2 heads of 64, bfloat16, page 8" in table
    line = {row.split("|")[0].strip(): [c.strip() for c in row.split("|")[1:]] for row in table.splitlines()}
    assert line["tile (rows × keys)"] == ["4 × 16", "total"]
    assert line["kv tiles, full"][0] == "8"
    assert line["balance (max / mean)"][0] == "1.400"
    assert line["K and V, each slot once"] == ["30.7 kB", "30.7 kB"]
    assert "estimated and not measured" in table


def item_rects(document):
    """(x, y, width, height, fill, title) of every bar."""
    found = []
    for rect in ET.fromstring(document).iter(f"{NS}rect"):
        title = rect.find(f"{NS}title")
        if title is not None:
            found.append((*(float(rect.get(k)) for k in ("x", "y", "width", "height")), rect.get("fill"), title.text))
    return found


def test_svg_draws_the_cost_model_time():
    """Bars lie where their costs say: 7 units are the whole axis."""
    rects = item_rects(report(split_plan()).svg())
    left, unit = 62.0, (930.0 - 62.0) / 7
    starts, stops = [0, 0, 2, 0, 4], [3, 2, 5, 4, 7]
    assert [r[0] for r in rects] == pytest.approx([left + unit * s for s in starts], abs=0.01)
    ends = [left + unit * s for s in stops]
    assert [r[0] + r[2] for r in rects] == pytest.approx(ends, abs=0.8)  # a hair is left between items
    rows = sorted({r[1] for r in rects})
    assert [rows.index(r[1]) for r in rects] == [0, 1, 1, 2, 2]
    fills = [r[4] for r in rects]
    assert fills[0] == fills[1] == fills[3] != fills[2] == fills[4]
    assert "request 0, kv head 0" in rects[0][5]
    assert "keys 32–40 in 1 tiles (0 masked)" in rects[1][5]
    assert "partial state" in rects[0][5]
    assert "partial state" not in rects[2][5]


def path_with(document, fill):
    return next(p for p in ET.fromstring(document).iter(f"{NS}path") if p.get("fill") == fill).get("d")


def test_svg_draws_idle_time_and_cuts():
    document = report(split_plan()).svg()
    idle = re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", path_with(document, "url(#attnloom-idle)"))
    unit = (930.0 - 62.0) / 7
    # CTA 0 ends at 3 and CTA 1 at 5; CTA 2 is never idle
    expected = [(62 + 3 * unit, 930), (62 + 5 * unit, 930)]
    assert [tuple(map(float, box)) for box in idle] == [pytest.approx(e, abs=0.01) for e in expected]
    cuts = re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)", path_with(document, svg.CUT))
    (after, first_row, bar_end), (before, second_row, inside) = [tuple(map(float, box)) for box in cuts]
    # CTA 0's item is cut at its end, after 3 units; CTA 1's first one at its beginning
    assert bar_end == pytest.approx(62 + 3 * unit, abs=0.8)
    assert bar_end - 3 < after < bar_end
    assert before == pytest.approx(62, abs=0.01)
    assert before < inside < before + 3
    assert first_row < second_row


@pytest.mark.parametrize(("requests", "more"), [(12, None), (80, "+")])
def test_svg_legend_names_requests_up_to_a_limit(requests, more):
    rows = [[(r, 2, h, 0, 16, -1, [(0, 16, 1)])] for r in range(requests) for h in (0, 1)]
    tile = TileClass(4, 16, len(rows))
    plan = make_plan([class_plan(tile, 1, rows)], qo=[1] * requests, kv=[16] * requests)
    document = report(plan).svg()
    words = [t.text for t in ET.fromstring(document).iter(f"{NS}text")]
    note = [w for w in words if w and w.startswith("+")]
    assert bool(note) == (more is not None)
    if note:
        listed = sum(w == f"{100 / requests:.1f} %" for w in words)
        assert note == [f"+{requests - listed} more"]
    assert len({r[4] for r in item_rects(document)}) == requests


def test_svg_of_many_items_has_one_shape_a_request(monkeypatch):
    monkeypatch.setattr(svg, "_MOST_TITLED_BARS", 4)
    document = report(split_plan()).svg()
    assert item_rects(document) == []
    titles = [p.find(f"{NS}title") for p in ET.fromstring(document).iter(f"{NS}path")]
    titles = [t.text for t in titles if t is not None and t.text.startswith("request")]
    assert titles == ["request 0: 3 items on 3 CTAs", "request 1: 2 items on 2 CTAs"]


def test_svg_is_self_contained():
    document = report(split_plan()).svg()
    assert "href" not in document
    assert re.findall(r"https?://[^\"' ]+", document) == ["http://www.w3.org/2000/svg"]


def test_save(tmp_path):
    explanation = report(split_plan())
    path = explanation.save(tmp_path / "plan.svg")
    assert path.read_text(encoding="utf-8") == explanation.svg()
    for bad in (tmp_path / "plan.pdf", tmp_path / "missing" / "plan.svg"):
        with pytest.raises(errors.InvalidArgument, match=re.escape(str(bad))):
            explanation.save(bad)


def test_save_png(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the PNG is drawn by matplotlib")
    path = report(split_plan()).save(tmp_path / "plan.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    report(make_plan([class_plan(TILE, 1, [])], qo=[0], kv=[0])).save(tmp_path / "empty.png")
    for name in [m for m in sys.modules if m.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(errors.MissingDependency, match="matplotlib"):
        report(split_plan()).save(tmp_path / "other.png")


LENGTHS = (([1, 1, 1], [700, 64, 1]), ([33, 1, 0, 5], [33, 300, 9, 400]), ([200, 3], [1000, 2]))
MASKS = {
    "causal": (al.variants.causal, lambda q, kv: kv <= q),
    "window": (
        lambda: al.variants.causal() & al.variants.sliding_window(100),
        lambda q, kv: (kv <= q) & (kv >= q - 100),
    ),
    "full": (al.Variant, lambda q, kv: (kv >= 0) | (q < 0)),
}


@pytest.mark.parametrize("num_ctas", [1, 7, 132])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("qo", "kv"), LENGTHS)
def test_figures_equal_a_count_on_dense_masks(qo, kv, mask, num_ctas):
    """Real plans: tiles, keys and flops counted pair by pair, split or not."""
    make, visible = MASKS[mask]
    attn = al.BatchAttention(
        num_qo_heads=4,
        num_kv_heads=2,
        head_dim=64,
        dtype=torch.bfloat16,
        variant=make(),
        implementation="cpu",
        device="cpu",
    )
    attn.plan(
        np.concatenate([[0], np.cumsum(qo)]), al.RaggedKV(np.concatenate([[0], np.cumsum(kv)])), num_ctas=num_ctas
    )
    explanation = attn.explain()
    tiles = sorted({panel.tile for panel in explanation.panels}, key=lambda t: t.tile_q)
    expected = {tile: np.zeros(5, np.int64) for tile in tiles}
    slots = 0
    for qo_len, kv_len in zip(qo, kv, strict=True):
        rows = 2 * qo_len
        if not rows:
            continue
        tile = next((t for t in tiles if t.tile_q >= rows), tiles[-1])
        pairs = visible(np.arange(rows)[:, None] // 2 + kv_len - qo_len, np.arange(kv_len)[None])
        counted, seen = count_tiles(pairs, tile)
        expected[tile] += 2 * counted
        slots += 2 * int(seen.sum())
    for figures, panel in zip(explanation.classes, explanation.panels, strict=True):
        found = (figures.q_tiles, figures.full_tiles, figures.masked_tiles, figures.skipped_tiles, figures.flops // 256)
        assert found == tuple(expected[panel.tile])
        assert figures.idle == pytest.approx(1 - panel.busy.mean() / panel.busy.max() if panel.busy.any() else 0)
    assert explanation.total.kv_bytes == slots * SLOT
    assert explanation.total.qo_bytes == 2 * 2 * sum(qo) * ROW


def count_tiles(pairs, tile):
    """(q tiles, full, masked and empty kv tiles, rows x keys of non-empty tiles) and which keys are read."""
    counted, seen = np.zeros(5, np.int64), np.zeros(pairs.shape[1], bool)
    for row in range(0, pairs.shape[0], tile.tile_q):
        counted[0] += 1
        for key in range(0, pairs.shape[1], tile.tile_kv):
            block = pairs[row : row + tile.tile_q, key : key + tile.tile_kv]
            kind = 1 if block.all() else 2 if block.any() else 3
            counted[kind] += 1
            if kind < 3:
                counted[4] += block.size
                seen[key : key + tile.tile_kv] = True
    return counted, seen
