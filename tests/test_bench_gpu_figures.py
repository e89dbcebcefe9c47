"""Presets whose cases make up figures: what they ask, how cells are put together, time left and charts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from attnloom.bench.gpu import chart, chart_pages, charts, command, markdown, record, rounds, summary, table
from attnloom.bench.gpu.case import PLAN_LIMIT, READ_CEILING
from attnloom.bench.gpu.peers import all_peers
from attnloom.bench.gpu.presets import GPU_PRESETS
from attnloom.bench.gpu.record import MEASURED, NOT_RUN, OURS, WRONG, CaseRecord, Entry, Report, Verdict
from attnloom.bench.timing import Spread
from attnloom.cli import main

PARTS = [name for name in GPU_PRESETS if name.startswith("issue-4-") and name != "issue-4-smoke"]


def targets(name):
    return {
        (c.case.mode, c.case.workload, c.case.heads, c.case.head_dim, c.case.causal, t.label): (t.subject, t.at_least)
        for c in GPU_PRESETS[name]()
        for t in c.targets
    }


# What is asked


@pytest.mark.parametrize("name", [name for name in GPU_PRESETS if name.startswith("issue-4")])
def test_every_target_can_be_measured(name):
    cases = GPU_PRESETS[name]()
    assert len({(c.section, c.name) for c in cases}) == len(cases)
    for c in cases:
        others = {beside.id for beside in c.beside}
        assert len(others) == len(c.beside)
        peers = {p.id for p in all_peers() if c.wants(p.id)}
        assert not others & {p.id for p in all_peers()}
        for target in c.targets:
            assert target.subject in others | {OURS}
            assert target.label
            known = {OURS, READ_CEILING, PLAN_LIMIT} | others | peers
            assert any(target.names(each) for each in known), target
            assert (target.plan_seconds is not None) == (PLAN_LIMIT in target.peers)
        assert (c.case.dtype, c.case.device) == ("bf16", "cuda")
        assert c.case.flops > 0


def test_the_whole_is_its_parts_in_turn():
    whole = GPU_PRESETS["issue-4"]()
    by_section = {c.section: name for name in PARTS for c in GPU_PRESETS[name]() if name != "issue-4-paged"}
    assert Counter(c.section for c in whole) == {s: len(GPU_PRESETS[name]()) for s, name in by_section.items()}
    assert len({c.section for c in whole[: len(by_section)]}) == len(by_section)
    assert GPU_PRESETS["issue-4-smoke"]() == whole[: len(by_section)]
    labels = {t.label for name in PARTS for c in GPU_PRESETS[name]() for t in c.targets}
    assert {t.label for c in whole for t in c.targets} == labels


def test_prefill_asks_what_was_agreed():
    cases = GPU_PRESETS["issue-4-prefill"]()
    assert {sum(c.case.lengths.qo) for c in cases} == {16384, 32768}
    assert {max(c.case.lengths.qo) for c in cases} == {512 * 2**i for i in range(7)}
    assert {(c.case.page_size, c.peers, *((t.at_least, t.geomean) for t in c.targets)) for c in cases} == {
        (None, ("fa3",), (0.95, 1.0))
    }
    assert Counter((c.case.heads, c.case.causal) for c in cases) == {
        ((32, heads), causal): 7 for heads in (8, 32) for causal in (True, False)
    }
    pages = {t.subject: t.at_least for c in GPU_PRESETS["issue-4-paged"]() for t in c.targets}
    assert pages == {"ours-page-16": 0.97, "ours-page-64": 0.97, "ours-page-1": 0.85}
    batches = {c.case.workload: c.targets[0].at_least for c in GPU_PRESETS["issue-4-batches"]()}
    kinds = ("constant", "uniform", "zipf")
    assert batches == {f"{k}_16x1024": 1.25 for k in kinds} | {f"{k}_4x8192": 1.18 for k in kinds}


def test_decode_and_appends_ask_what_was_agreed():
    large = [c for c in GPU_PRESETS["issue-4-decode"]() if c.targets[0].peers == (READ_CEILING,)]
    assert all(c.counted_bytes >= 256 * 2**20 for c in large)
    skewed = {c.case.heads[1]: c.targets for c in GPU_PRESETS["issue-4-decode"]() if c.case.workload == "zipf_64x4096"}
    assert [(t.peers, t.at_least, t.alternative) for t in skewed[8]] == [(("flashinfer",), 1.6, None)]
    assert (skewed[32][0].at_least, skewed[32][0].alternative.at_least) == (1.4, 0.92)
    append = GPU_PRESETS["issue-4-append"]()
    assert {(c.case.heads, c.case.lengths.kv) for c in append} == {
        (heads, (kv,) * 32) for heads in ((32, 8), (32, 4)) for kv in (4096, 8192, 16384, 32768)
    }
    for c in append:
        marks = [round(1 / t.at_least, 6) for t in c.targets]
        assert marks == [1.15] * 6 + [1.25 if c.case.heads[1] == 4 else 1.15]
        assert [b.changes["qo_lens"] for b in c.beside] == [(rows,) * 32 for rows in range(2, 9)]


def test_guards_ask_what_was_agreed():
    found = {t.label.split()[0]: [] for c in GPU_PRESETS["issue-4-guards"]() for t in c.targets}
    assert set(found) == {"P1", "P2", "P3", "P5", "P7", "P9"}
    by_name = targets("issue-4-guards")
    skew = [key for key in by_name if key[1] == "lens_43x1024_1x131072"]
    assert len(skew) == 2
    (case,) = [c for c in GPU_PRESETS["issue-4-guards"]() if c.case.mode == "mixed"]
    assert case.case.lengths.qo == (2048, *(1,) * 32)
    assert case.case.lengths.kv == (2048, *(4096,) * 32)
    assert {c.case.kv_bytes for c in GPU_PRESETS["issue-4-guards"]() if c.case.workload.startswith("lens_43")} == {
        (43 * 1024 + 131072) * 4096
    }


# Cells together


def cell(label, ratio, at_least=0.95, geomean=1.0, reason=""):
    spread = None if ratio is None else Spread(ratio, ratio, ratio)
    return Verdict(("p",), at_least, "p", spread, label=label, geomean=geomean, reason=reason)


def records(*ratios, **changes):
    ours = Entry(OURS, "AttnLoom", MEASURED, setting="implementation cpu", seconds=(1.0,) * 3)
    return [
        CaseRecord(f"case {i}", {"mode": "decode"}, MEASURED, entries=(ours,), verdicts=(cell("f", ratio, **changes),))
        for i, ratio in enumerate(ratios)
    ]


@pytest.mark.parametrize(
    ("ratios", "changes", "outcome"),
    [
        ((1.0, 1.0), {}, "met"),
        ((0.96, 1.1), {}, "met"),
        ((0.96, 1.0), {}, "MISSED"),  # the cells' mean
        ((0.94, 1.5), {}, "MISSED"),  # one cell
        ((0.96, 0.97), {"geomean": None}, "met"),
        ((1.2, None), {"reason": "not run: late"}, "met so far"),
        ((None, None), {"reason": "p: unavailable: no"}, "not measured"),
        ((1.2, None), {"reason": WRONG}, WRONG),
        ((1.2, None), {"reason": f"ours-x: {WRONG}: 1 of 2 rows differ"}, WRONG),
    ],
)
def test_a_figure_is_met_by_all_its_cells(ratios, changes, outcome):
    (figure,) = summary.figures(records(*ratios, **changes))
    assert figure.outcome == outcome
    text = summary.render(records(*ratios, **changes)).splitlines()
    row = next(line for line in text if line.startswith("f "))
    assert f"{sum(r is not None for r in ratios)} of {len(ratios)}" in row
    assert f"figures: 1 {outcome}" in text
    if changes.get("reason"):
        assert any(line.startswith("not measured: f: ") and changes["reason"] in line for line in text)


def test_a_figure_shows_its_mean_its_lowest_cell_and_what_ran():
    (figure,) = summary.figures(records(0.8, 1.25, 4.0))
    assert figure.geomean == pytest.approx(4.0 ** (1 / 3))
    assert figure.worst[0] == "case 0"
    assert figure.ran == ("cpu",)
    assert summary.render([CaseRecord("x", {"mode": "decode"}, NOT_RUN)]) == ""


def test_the_table_begins_with_the_figures_and_names_wrong_results():
    cases = (
        *records(1.2),
        CaseRecord("bad", {"mode": "decode"}, WRONG, "row 1", verdicts=(cell("g", None, reason=WRONG),)),
    )
    shown = [dataclasses.replace(c, read_seconds=(1.0,) * 3, counted_bytes=1) for c in cases]
    lines = table.render(Report({}, {}, {}, tuple(shown))).splitlines()
    assert lines[0].startswith("figure")
    assert any(line.startswith("bad / p") and WRONG in line for line in lines)
    assert "WRONG: bad: row 1" in lines


# Time


def test_samples_get_shorter_with_the_time_left():
    now = [0.0]
    budget = command.Budget(100.0, clock=lambda: now[0])
    budget.cases_left = 50
    assert budget.share() == 2.0
    now[0] = 90.0
    assert budget.share() == 0.2
    now[0] = 200.0
    assert budget.share() == 0.0
    assert command.Budget(None).share() is None
    assert rounds.sample_seconds(None, 10) == 0.02
    assert rounds.sample_seconds(-1.0, 10) == 0.003
    assert rounds.sample_seconds(1.0, 100) == pytest.approx(0.008)


# Charts


def prompt(length, kv_heads, *, causal=True, section="prefill"):
    entries = [
        Entry(name, engine, MEASURED, setting="x", seconds=(seconds,) * 7)
        for name, engine, seconds in (
            (OURS, "AttnLoom", 1.0),
            ("ours-page-16", "AttnLoom, page 16", 2.0),
            ("fa3", "FA3", 4.0),
        )
    ]
    fields = {"mode": "prefill", "workload": f"constant_1x{length}", "heads": (32, kv_heads), "causal": causal}
    fields["page_size"] = None
    return CaseRecord(f"{length}", fields, MEASURED, "", 100, 10, (1.0,) * 7, entries=tuple(entries), section=section)


def test_pages_are_charted_by_length_beside_contiguous():
    cases = [prompt(2048, 8), prompt(512, 8, causal=False), prompt(512, 8), prompt(512, 32), prompt(1, 8, section="x")]
    found = chart_pages.groups(cases, kv_heads=8, peak_flops=20.0)
    assert [(g.distribution, g.label) for g in found] == [
        ("causal", "1 × 512"),
        ("causal", "1 × 2048"),
        ("not causal", "1 × 512"),
    ]
    assert [(bar.engine, bar.median) for bar in found[0].bars] == [
        ("AttnLoom", 0.5),
        ("AttnLoom, page 16", 0.25),
        ("FA3", 0.125),
    ]
    assert not chart.has_groups(Report({}, {}, {}, tuple(cases)))


def test_each_chart_is_a_file_of_its_own(tmp_path):
    pytest.importorskip("matplotlib")
    cases = (prompt(512, 8), prompt(512, 32), prompt(1024, 8, section="batches"))
    report = Report({"gpu": "a card"}, {"rounds": 7}, {}, cases)
    written = charts.draw(report, tmp_path / "deep" / "out.png")
    assert [path.name for path in written] == ["out.png", "out.svg", "out-pages.png", "out-pages.svg"]
    assert all(path.stat().st_size > 1000 for path in written)
    assert len(chart_pages.picture(report).axes) == 2
    assert charts.draw(dataclasses.replace(report, cases=()), tmp_path / "none.png") == []


def test_a_report_with_figures_is_read_as_it_was_written():
    report = Report({}, {}, {}, (dataclasses.replace(prompt(512, 8), verdicts=(cell("f", 1.0),)),))
    again = record.from_json(record.to_json(report), "x")
    assert again.cases[0].verdicts == report.cases[0].verdicts
    assert again.cases[0].section == "prefill"
    assert record.to_json(again) == record.to_json(report)


# For a README


def test_markdown_has_figures_and_batches():
    figure = dataclasses.replace(
        prompt(1024, 8, section="batches"),
        verdicts=(cell("f", 0.96), cell("f", 1.2), cell("g", None, reason="not run")),
    )
    report = Report({"gpu": "a card", "torch": "2", "date": "today"}, {"rounds": 7}, {}, (figure,))
    lines = markdown.render(report).splitlines()
    assert lines[0].startswith("a card, torch 2, today; ")
    assert "| f | 1.00 × on average, 0.95 × in each cell | 1.07 × on average, 0.96 × in 1024 | met |" in lines
    assert "| g | 1.00 × on average, 0.95 × in each cell | | not measured (0 of 1 cells) |" in lines
    assert "| | AttnLoom | FA3 |" in lines
    assert "| prefill 1 x 1024, 8 kv heads, contiguous | 0 TFLOP/s | 4.00 × |" in lines


def test_the_stored_report_as_markdown(capsys):
    stored = Path(__file__).parent / "data" / "bench_gpu_made_up.json"
    assert main(["bench", "draw", str(stored), "--markdown"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert any(
        row.startswith("| decode 64 x U(2048, 4096), 8 kv heads | 4.07 TB/s, 93.8 % of a plain read |") for row in rows
    )
