"""The command line: what it prints, what it writes, and one clear line for a mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

import attnloom as al
from attnloom import cli, errors


def run(capsys, *words):
    """(exit status, stdout, stderr)."""
    status = cli.main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refused(capsys, *words):
    """The one line that a mistake prints; argparse's own mistakes print the usage first."""
    try:
        status = cli.main(words)
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_info_tells_what_can_run(capsys):
    status, out, _ = run(capsys, "info")
    assert status == 0
    found = dict(line.split(maxsplit=1) for line in out.split("\n\n", maxsplit=1)[0].splitlines())
    assert found["attnloom"].startswith(al.__version__)
    assert {"python", "torch", "triton", "numba", "transformers", "CPU", "GPU", "cache"} <= {*found} | {"GPU"}
    for each in al.implementations("cpu"):
        assert f"  {each.name:<12} {'can run' if each.available else 'cannot run:'}" in out
        assert all(reason in out for reason in each.reasons)


def test_info_names_the_cache_and_the_environment(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path))
    _, out, _ = run(capsys, "info")
    assert f"{tmp_path}  (writable" in out
    assert f"ATTNLOOM_CACHE_DIR={tmp_path}" in out


def test_info_works_without_optional_packages(capsys, monkeypatch):
    from attnloom.cli import info

    def missing(name):
        raise info.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(info.metadata, "version", missing)
    monkeypatch.setattr(info.shutil, "which", lambda name: None)
    status, out, _ = run(capsys, "info")
    assert status == 0
    assert out.count("not installed") == len(info.PACKAGES)
    assert "none found" in out


def test_info_imports_nothing_heavy():
    code = (
        "import sys; from attnloom import cli; cli.main(['info']); "
        "print(sorted({'triton', 'numba', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"


def test_runs_as_a_module():
    command = [sys.executable, "-m", "attnloom.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"attnloom {al.__version__}\n"


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert all(name in out for name in ("info", "demo", "bench", "explain"))
    assert run(capsys)[0] == 2  # no command


@pytest.mark.parametrize("command", [("demo",), ("bench", "attention"), ("bench", "plan"), ("explain",)])
def test_help_of_a_command(capsys, command):
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, "--help"])
    assert stop.value.code == 0
    assert f"usage: attnloom {' '.join(command)}" in capsys.readouterr().out


def test_any_engine_error_is_one_line(capsys, monkeypatch):
    def fail(_):
        raise errors.InvalidArgument(name="x", given=1, supported="2", fix="Pass 2.")

    monkeypatch.setattr("attnloom.cli.info.run", fail)
    assert refused(capsys, "info") == "attnloom: x = 1 is not supported: expected 2. Pass 2.\n"


def test_explain_a_workload(capsys, tmp_path):
    path = tmp_path / "plan.svg"
    status, out, _ = run(capsys, "explain", "--workload", "zipf_16x1024", "--num-ctas", "132", "--output", str(path))
    assert status == 0
    assert "16 requests, 16 query rows on 16,376 keys; 32/8 heads of 128, bfloat16, page 16" in out
    assert str(path) in out
    assert ET.parse(path).getroot().tag.endswith("svg")


def test_explain_lengths(capsys):
    words = ["--qo-lens", "5,2x1", "--kv-lens", "64,2x300", "--heads", "4/2", "--head-dim", "64"]
    _, out, _ = run(capsys, "explain", *words, "--dtype", "fp32", "--page-size", "ragged", "--num-ctas", "2")
    assert "3 requests, 7 query rows on 664 keys; 4/2 heads of 64, float32, ragged KV" in out
    assert "2 CTAs" in out


def test_explain_options_change_the_plan(capsys):
    """Each option has an effect that the table shows."""
    base = ["explain", "--kv-lens", "4000,100,100", "--num-ctas", "16"]
    _, plain, _ = run(capsys, *base)
    changes = (
        ["--qo-lens", "9,1,1"],
        ["--heads", "8/8"],
        ["--head-dim", "64"],
        ["--dtype", "fp32"],
        ["--page-size", "4"],
        ["--variant", "causal+sliding_window:31"],
        ["--num-ctas", "3"],
        ["--planner", "algorithm1"],
        ["--implementation", "reference"],
    )
    for change in changes:
        status, out, _ = run(capsys, *base, *change)
        assert status == 0
        assert out != plain, change


def test_explain_modes_of_a_workload(capsys):
    tables = {
        run(capsys, "explain", "--workload", "sharegpt_8", "--mode", m)[1] for m in ("decode", "prefill", "mixed")
    }
    assert len(tables) == 3


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--kv-lens and --workload = 'neither'"),
        (["--workload", "zipf_16x1024", "--kv-lens", "4"], "--kv-lens and --workload = 'both'"),
        (["--workload", "zipf"], "workload = 'zipf'"),
        (["--kv-lens", "4,x"], "'4,x': expected lengths"),
        (["--kv-lens", "4", "--qo-lens", "1,1"], "batch"),
        (["--kv-lens", "4", "--heads", "32/8/1"], "'32/8/1': expected query/kv heads"),
        (["--kv-lens", "4", "--heads", "3/2"], "num_qo_heads = 3"),
        (["--kv-lens", "4", "--page-size", "0"], "'0': expected an integer from 1"),
        (["--kv-lens", "4", "--num-ctas", "0"], "num_ctas = 0"),
        (["--kv-lens", "4", "--variant", "causal+magic"], "'magic': expected some of"),
        (["--kv-lens", "4", "--variant", "sliding_window"], "'sliding_window': expected some of"),
        (["--kv-lens", "4", "--variant", "sliding_window:-1"], "left"),
        (["--kv-lens", "4", "--target", "h900"], "h900"),
        (["--kv-lens", "4", "--implementation", "magic"], "magic"),
        (["--kv-lens", "4", "--output", "missing/plan.svg"], "missing/plan.svg"),
        (["--kv-lens", "4", "--output", "plan.jpg"], "plan.jpg"),
    ],
)
def test_explain_mistakes(capsys, words, named):
    try:
        status = cli.main(["explain", *words])
    except SystemExit as stop:
        status = stop.code
    err = capsys.readouterr().err
    assert status == 2
    assert named in err
    assert "Traceback" not in err


def test_bench_writes_table_json_and_chart(capsys, tmp_path):
    words = [
        "--workload",
        "constant_2x40",
        "--mode",
        "decode",
        "prefill",
        "--dtype",
        "fp32",
        "--page-size",
        "ragged",
        "16",
    ]
    size = ["--heads", "4/2", "--head-dim", "64", "--implementation", "cpu", "--num-ctas", "2", "--rounds", "7"]
    status, out, err = run(capsys, "bench", *words, *size, "--output-dir", str(tmp_path))
    assert status == 0, err
    names = [f"{m} fp32 {s}, constant_2x40" for m in ("decode", "prefill") for s in ("ragged", "page 16")]
    assert all(name in out for name in names)
    written = json.loads((tmp_path / "attention.json").read_text())
    assert [r["name"] for r in written["results"]] == names
    assert all(len(r["seconds"]) == len(r["sdpa_seconds"]) == 7 for r in written["results"])
    assert written["machine"]["torch"]
    labels = [t.text for t in ET.parse(tmp_path / "attention.svg").getroot().iter() if t.text]
    assert all(name in labels for name in names)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--rounds", "6"], "--rounds = 6"),
        (["--rounds", "x"], "'x': expected an integer from 1"),
        (["--threads", "0"], "'0': expected an integer from 1"),
        (["--device", "nowhere"], "'nowhere': expected a torch device"),
        (["--device", "cuda:99"], "'cuda:99': this torch sees"),
        (["--workload", "nothing"], "workload = 'nothing'"),
        (["--implementation", "magic"], "magic"),
        (["--preset", "cpu-figures", "--workload", "variable_64"], "--workload = ['variable_64']"),
        (["--preset", "cpu-figures", "--head-dim", "64"], "--head-dim = 64"),
    ],
)
def test_bench_mistakes(capsys, words, named):
    try:
        status = cli.main(["bench", *words])
    except SystemExit as stop:
        status = stop.code
    err = capsys.readouterr().err
    assert status == 2
    assert named in err
    assert "Traceback" not in err


def test_bench_shows_what_an_interrupted_run_measured(capsys, monkeypatch, tmp_path):
    from attnloom.bench import command

    real, left = command.measure, [1]

    def interrupted(case, rounds):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return real(case, rounds)

    monkeypatch.setattr(command, "measure", interrupted)
    words = ["--workload", "constant_1x9", "constant_2x9", "--heads", "2/1", "--head-dim", "16", "--dtype", "fp32"]
    status, out, err = run(capsys, "bench", *words, "--output-dir", str(tmp_path))
    assert status == 130
    assert "interrupted" in err
    assert "decode fp32 page 16, constant_1x9" in out
    assert len(json.loads((tmp_path / "attention.json").read_text())["results"]) == 1
