"""A run of the GPU benchmark without a GPU: budget, choice of peers, files, table, chart and command line."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from pathlib import Path

import pytest
import torch
from bench_fakes import FakeClock, FakePeer, measured, small

from attnloom import errors
from attnloom.bench import options
from attnloom.bench.gpu import chart, command, peer, record, table
from attnloom.bench.gpu.case import Target
from attnloom.bench.gpu.peer import Build
from attnloom.bench.gpu.peers import all_peers
from attnloom.bench.gpu.presets import GPU_PRESETS
from attnloom.bench.gpu.record import FAILED, MEASURED, NOT_RUN, OURS, CaseRecord, Entry
from attnloom.cli import main

STORED = Path(__file__).parent / "data" / "bench_gpu_made_up.json"


# A run


def failing(gpu_case):
    raise RuntimeError("out of memory")


def test_a_case_that_raises_does_not_end_the_run(capsys):
    cases = (small(Target(("p",), 1.0)), small(mode="prefill"))
    done = list(command.measure_all(failing, cases, command.Budget(None)))
    assert [d.status for d in done] == [FAILED, FAILED]
    assert done[0].message == "RuntimeError: out of memory"
    assert done[0].verdicts[0].met is None
    assert capsys.readouterr().err.count("failed: RuntimeError: out of memory") == 2


def test_no_case_starts_that_would_outlast_the_budget(capsys):
    now = [0.0]
    budget = command.Budget(100.0, clock=lambda: now[0])

    def measure(gpu_case):
        now[0] += 40.0
        return CaseRecord(gpu_case.name, {"mode": "decode"}, MEASURED, entries=(Entry(OURS, "AttnLoom", MEASURED),))

    done = list(command.measure_all(measure, [small()] * 4, budget))
    assert [d.status for d in done] == [MEASURED, MEASURED, NOT_RUN, NOT_RUN]
    assert now[0] == 80.0
    assert "budget of 100 s" in done[2].message
    assert "[3/4, 80 s]" in capsys.readouterr().err


def test_peers_are_chosen_by_the_start_of_their_ids():
    every = [p.id for p in command.choose_peers(["all"], [])]
    assert every == [p.id for p in all_peers()]
    assert len(set(every)) == len(every)
    flashinfer = [p.id for p in command.choose_peers(["flashinfer"], ["flashinfer-ragged"])]
    assert flashinfer == [name for name in every if name.startswith("flashinfer-") and "ragged" not in name]
    assert command.choose_peers(["none"], []) == ()
    assert [p.id for p in command.choose_peers(["fa3", "flex"], ["flex"])] == ["fa3"]
    with pytest.raises(errors.InvalidArgument, match="flash'"):
        command.choose_peers(["all"], ["flash"])


def test_every_peer_says_why_it_cannot_run_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    reasons = {p.id: p.unavailable_reason() for p in all_peers()}
    assert reasons.pop("attnloom-page-16") is None
    assert all(reason == "torch sees no CUDA device" for reason in reasons.values()), reasons


def test_a_package_that_fails_to_import_says_how(tmp_path, monkeypatch):
    (tmp_path / "broken_peer.py").write_text("raise OSError('libthat.so.1: no such file')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert peer.import_reason("broken_peer") == "import broken_peer: OSError: libthat.so.1: no such file"
    assert "ModuleNotFoundError" in peer.import_reason("package_that_is_not_there")
    assert peer.import_reason("json") is None


@pytest.fixture
def run_here(monkeypatch, tmp_path):
    """`command.run` with a clock of ours and the `cpu` implementation: (peers, cases, seconds) -> status, report."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(command, "CudaClock", lambda device: FakeClock())

    def run(peers, cases, seconds=None):
        monkeypatch.setattr(command, "all_peers", lambda: peers)
        words = ["attention", "--json", str(tmp_path / "out.json"), "--rounds", "7"]
        parser = argparse.ArgumentParser()
        options.add_arguments(parser)
        status = command.run(parser.parse_args(words + (["--seconds", seconds] if seconds else [])), cases)
        return status, record.from_json((tmp_path / "out.json").read_text(encoding="utf-8"), "out.json")

    return run


def test_a_run_without_matplotlib_has_its_figures(run_here, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, report = run_here((), [small()])
    assert (status, report.cases[0].status) == (0, MEASURED)
    assert "no chart: the chart needs the package matplotlib" in capsys.readouterr().out


def test_a_run_from_end_to_end(run_here, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    peers = (FakePeer("rival", {"a": 2e-3}), FakePeer("absent", {"a": 1.0}, reason="import absent: ImportError: no"))
    status, report = run_here(peers, [small(Target(("rival",), 1.2)), small(mode="prefill")])
    assert status == 0
    assert report.missing == {"absent": "import absent: ImportError: no"}
    assert [done.status for done in report.cases] == [MEASURED, MEASURED]
    assert report.cases[0].verdicts[0].met is True
    assert {(tmp_path / name).exists() for name in ("out.png", "out.svg")} == {True}
    printed = capsys.readouterr()
    assert "unavailable: absent: import absent: ImportError: no" in printed.out.splitlines()
    assert "targets: 1 met" in printed.out
    assert "[2/2," in printed.err


def test_a_run_in_which_ours_fails_says_so_by_its_status(run_here, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command.Bench, "measure", lambda self, case: failing(case))
    status, report = run_here((), [small()])
    assert status == 1
    assert report.cases[0].message == "RuntimeError: out of memory"
    assert (
        "failed: decode fp32 page 16, constant_2x40, 4/2 heads, head_dim 64: RuntimeError: out of memory"
        in capsys.readouterr().out
    )
    assert not (tmp_path / "out.png").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_a_small_run_on_the_gpu(mode, tmp_path):
    words = ["--device", "cuda", "--workload", "uniform_4x512", "--mode", mode, "--peers", "torch", "--rounds", "7"]
    assert main(["bench", *words, "--json", str(tmp_path / "out.json")]) == 0
    (done,) = record.from_json((tmp_path / "out.json").read_text(encoding="utf-8"), "out.json").cases
    found = {entry.id: entry for entry in done.entries}
    assert (found[OURS].status, found["torch-fa2"].status) == (MEASURED, MEASURED), found["torch-fa2"].message
    assert min(*found[OURS].seconds, *found["torch-fa2"].seconds, *done.read_seconds) > 0
    assert (tmp_path / "out.png").exists()


def test_each_peer_knows_its_cases():
    fits = {
        name: {p.id for p in all_peers() if p.unfit_reason(gpu_case) is None}
        for name, gpu_case in {
            "prefill": small(mode="prefill", dtype="bf16"),
            "ragged lengths": small(mode="prefill", dtype="bf16", workload="zipf_16x1024"),
            "decode": small(dtype="bf16"),
            "page 1": small(dtype="bf16", page_size=1),
            "fp32": small(mode="prefill"),
            "chunks": small(dtype="bf16", mode="mixed", workload="sharegpt_8"),
        }.items()
    }
    prefill = {f"flashinfer-{storage}-{backend}" for storage in ("paged", "ragged") for backend in ("fa2", "fa3")}
    decode = {"flashinfer-decode-cuda", "flashinfer-decode-tensor", "fa3", "torch-fa2", "torch-cudnn"}
    assert fits["prefill"] == prefill | {"fa3", "torch-fa2", "torch-cudnn", "flex"}
    assert fits["ragged lengths"] == fits["prefill"] - {"torch-cudnn"}
    assert fits["decode"] == decode
    assert fits["page 1"] == decode | {"attnloom-page-16"}
    assert fits["fp32"] == {"flex"}
    assert fits["chunks"] == prefill | {"fa3"}


def test_modules_of_all_peers_are_built_together():
    seen = []

    class Compiled(FakePeer):
        def build(self, cases):
            return Build([f"{self.id} {len(cases)}"], seen.append)

    command.build([FakePeer("x", {}), Compiled("a", {}), Compiled("b", {})], [small(), small()])
    assert sorted(itertools.chain.from_iterable(seen)) == ["a 2", "b 2"]


# Files


def test_stored_report_is_read_as_it_was_written():
    text = STORED.read_text(encoding="utf-8")
    report = record.from_json(text, "stored")
    assert json.loads(record.to_json(report)) == json.loads(text)
    assert report.cases[0].ours.seconds


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "attnloom-bench-gpu/0"}', '{"schema": "attnloom-bench-gpu/1"}'])
def test_other_files_are_refused(text):
    with pytest.raises(errors.InvalidArgument, match=r"that\.json"):
        record.from_json(text, "that.json")


def test_json_is_whole_after_every_case(tmp_path):
    done = measured(small(Target(("rival",), 1.0)), FakePeer("rival", {"only": 2e-3}))
    report = record.Report({"gpu": "x"}, {"rounds": 7}, {}, (done,))
    path = tmp_path / "deep" / "out.json"
    record.write(path, report)
    assert record.from_json(path.read_text(encoding="utf-8"), "x") == record.from_json(record.to_json(report), "x")
    assert list(path.parent.iterdir()) == [path]
    plain = json.loads(path.read_text(encoding="utf-8"))["cases"][0]
    entry = plain["entries"][1]
    assert entry["ratio"]["median"] == done.peers[0].ratio(done.ours).median
    assert entry["bytes_per_second"] * done.peers[0].time.median == pytest.approx(done.counted_bytes)
    assert plain["verdicts"][0]["met"] is True


def test_table_has_ratios_first_and_targets():
    report = record.from_json(STORED.read_text(encoding="utf-8"), "stored")
    text = table.render(report)
    lines = text.splitlines()
    assert lines[0].split("|")[1].strip() == "ratio"
    measured_cases = [c for c in report.cases if c.status == MEASURED]
    assert sum("MISSED" in line for line in lines[2:]) >= 1
    assert f"targets: {sum(v.met is True for c in report.cases for v in c.verdicts)} met" in text
    head = next(line for line in lines if line.startswith("case / peer"))
    assert [cell.strip() for cell in head.split("|")][1:3] == ["ratio", "quartiles"]
    first = measured_cases[0].peers[0]
    row = next(line for line in lines if line.startswith(f"  {first.id} "))
    assert [cell.strip() for cell in row.split("|")][1] == f"{first.ratio(measured_cases[0].ours).median:.2f}"
    assert any(line.startswith("not run: ") for line in lines)


def test_chart_groups_by_distribution_and_takes_the_best_back_end():
    def entry(name, engine_name, seconds):
        return Entry(name, engine_name, MEASURED, seconds=(seconds,) * 7)

    def case(workload, *entries):
        fields = {"mode": "decode", "workload": workload, "heads": (32, 8), "page_size": 16}
        return CaseRecord(workload, fields, MEASURED, "", 100, 10, (1.0,) * 7, entries=entries)

    cases = [
        case("zipf_64x4096", entry(OURS, "AttnLoom", 2.0), entry("f-a", "F", 8.0), entry("f-b", "F", 4.0)),
        case("constant_64x4096", entry(OURS, "AttnLoom", 1.25)),
    ]
    constant, skewed = chart.groups(cases, decode=True, peak_flops=1.0)
    assert (constant.distribution, constant.bars[0].median) == ("constant", 0.8)
    assert [(bar.engine, bar.median) for bar in skewed.bars] == [("AttnLoom", 0.5), ("F", 0.25)]
    assert skewed.label.startswith("64 × 4096")
    assert chart.groups(cases, decode=False, peak_flops=1.0) == []


def test_stored_report_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    report = record.from_json(STORED.read_text(encoding="utf-8"), "stored")
    figure = chart.picture(dataclasses.replace(report, missing={"fa3": "why"}))
    assert "not on this machine: fa3" in figure.get_suptitle()
    axes = figure.axes
    assert [axis.get_title(loc="left") for axis in axes] == ["Decode", "Causal prefill"]
    groups = chart.groups(report.cases, decode=True, peak_flops=1.0)
    bars = [patch for patch in axes[0].patches if patch.get_width() == pytest.approx(0.9)]
    assert len(bars) == sum(len(group.bars) for group in groups)
    assert bars[0].get_height() == pytest.approx(100 * groups[0].bars[0].median)
    assert main(["bench", "draw", str(STORED), "--chart", str(tmp_path / "picture.png")]) == 0
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "picture.svg").read_text(encoding="utf-8")


# The command line


def test_presets_ask_what_was_agreed():
    cases = GPU_PRESETS["issue-3"]()
    asked = {(c.case.mode, c.case.workload, c.case.heads[1], c.case.page_size): c.targets for c in cases}
    assert len(asked) == len(cases)
    assert {(c.case.heads[0], c.case.head_dim, c.case.dtype) for c in cases} == {(32, 128, "bf16")}
    by_name = {key: {t.peers[0]: t.at_least for t in targets} for key, targets in asked.items()}
    for length in (1024, 2048, 4096, 8192, 16384):
        name = f"constant_{16384 // length}x{length}"
        assert by_name["prefill", name, 8, 16] == {"torch-fa2": 1.2, "flashinfer-paged-fa2": 1.2}
    for name in ("uniform_16x1024", "zipf_16x1024"):
        assert by_name["prefill", name, 8, 16] == {"flashinfer-paged-fa2": 1.3}
    for name in ("constant_64x4096", "uniform_64x4096", "constant_256x1024", "uniform_256x1024"):
        assert by_name["decode", name, 8, 16] == {"flashinfer": 0.95}
    assert by_name["decode", "zipf_64x4096", 8, 16] == {"flashinfer": 1.5}
    assert by_name["decode", "zipf_64x4096", 32, 16] == {"flashinfer": 1.25}
    assert by_name["decode", "constant_64x4096", 8, 1] == {"attnloom-page-16": 0.9}
    known = [p.id for p in all_peers()]
    assert all(any(t.names(name) for name in known) for c in cases for t in c.targets)
    assert set(cases) == set(GPU_PRESETS["gpu-prefill"]()) | set(GPU_PRESETS["gpu-decode"]())


@pytest.mark.parametrize(
    "words",
    [["--preset", "issue-3"], ["--peers", "fa3"], ["--seconds", "3"], ["--skip-peer", "flex"], ["--json", "x.json"]],
)
def test_options_of_a_gpu_run_are_refused_on_a_cpu(words, capsys):
    assert main(["bench", *words]) == 2
    assert f"{words[0]} = " in capsys.readouterr().err


def test_seconds_are_above_zero():
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    assert parser.parse_args(["attention", "--seconds", "1.5"]).seconds == 1.5
    for wrong in ("0", "-1", "inf", "nan", "x"):
        with pytest.raises(SystemExit):
            parser.parse_args(["attention", f"--seconds={wrong}"])
