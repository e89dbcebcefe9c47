"""Benchmarks measure what they say: sizes by hand, results checked first, ratios from a clock that we control."""

from __future__ import annotations

import argparse
import importlib.resources
import json
import xml.etree.ElementTree as ET

import oracle
import pytest
import torch

import attnloom as al
from attnloom import errors
from attnloom.bench import arguments, attention, chart, command, options, presets, show, timing
from attnloom.bench.attention import Result
from attnloom.bench.case import Case, make_batch
from attnloom.bench.sdpa import LAYOUTS, make_peer
from attnloom.testing import cases


def small(**changes):
    fields = {
        "workload": "constant_2x40",
        "mode": "decode",
        "dtype": "fp32",
        "page_size": 16,
        "heads": (4, 2),
        "head_dim": 64,
    }
    return Case(**(fields | {"implementation": "cpu", "num_ctas": 2} | changes))


def test_work_of_a_case_by_hand():
    decode = small()
    assert decode.name == "decode fp32 page 16, constant_2x40"
    assert decode.kv_bytes == 2 * 40 * 2 * (64 + 64) * 4
    assert decode.qo_bytes == 2 * 4 * (64 + 64) * 4
    assert decode.flops == 4 * 64 * (2 * 40) * 4
    assert small(mode="prefill").flops == 4 * 64 * (2 * 40 * 41 // 2) * 4
    assert small(page_size=None, dtype="bf16").kv_bytes * 2 == decode.kv_bytes


@pytest.mark.parametrize("mode", cases.MODES)
def test_visible_pairs_are_those_of_a_causal_mask(mode):
    case = small(workload="sharegpt_8", mode=mode)
    pairs = 0
    for qo, kv in zip(case.lengths.qo, case.lengths.kv, strict=True):
        rows = torch.arange(qo)[:, None] + kv - qo
        pairs += int((torch.arange(kv)[None] <= rows).sum())
    assert case.flops == 4 * 64 * pairs * 4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", cases.MODES)
def test_peer_is_causal_from_the_bottom_right(mode, layout):
    """The first prompt is longer than the chunk of a mixed step: rows 512 long over more keys."""
    case = small(workload="sharegpt_4_seed7", mode=mode)
    assert case.lengths.kv[0] > 512
    batch = make_batch(case)
    outs = make_peer(batch, layout)()
    assert len(outs) == len(batch.sequences.q)
    for i, out in enumerate(outs):
        request = oracle.Request(batch.sequences.q[i], *batch.keys(i))
        expected = oracle.attend(request, oracle.Functors(mask=lambda q_pos, kv_pos: kv_pos <= q_pos), 64**-0.5)
        torch.testing.assert_close(out[0].transpose(0, 1), expected.out.float(), rtol=1e-4, atol=1e-5)


def test_spread_is_median_and_quartiles():
    assert timing.spread([4.0, 1.0, 3.0, 2.0, 100.0]) == timing.Spread(3.0, 2.0, 4.0)


def test_rounds_are_interleaved_and_alternate():
    """A clock that charges each call its price and drifts upwards: ratios per round do not see the drift."""
    order, now = [], [1.0]

    def measure(call, calls):
        now[0] *= 1.1
        return call() * now[0]

    def ours():
        order.append("ours")
        return 1.0

    def peer():
        order.append("peer")
        return 3.0

    seconds, peer_seconds = timing.interleave(ours, peer, 8, measure)
    assert len(seconds) == len(peer_seconds) == 8
    assert order[-16:] == ["ours", "peer", "peer", "ours"] * 4
    ratio = timing.spread([p / s for s, p in zip(seconds, peer_seconds, strict=True)])
    assert ratio.low >= 3 / 1.1 - 1e-9
    assert ratio.high <= 3 * 1.1 + 1e-9


def test_samples_are_long_enough_to_time():
    assert timing.calls_per_sample(lambda: None, lambda call, calls: 1.0) == 1
    assert timing.calls_per_sample(lambda: None, lambda call, calls: 0.001) == 30
    assert timing.calls_per_sample(lambda: None, lambda call, calls: 0.0) == 200


def test_quickest_is_called_in_turn():
    order, price = [], {"a": 3.0, "b": 1.0, "c": 2.0}

    def measure(call, calls):
        order.append(call)
        return price[call] * 1e-3

    assert timing.quickest(list("abc"), measure) == 1
    assert order == list("abc") * 4


def result(ratio=2.0, target=None):
    peer = tuple(0.001 * ratio * f for f in (0.9, 1.0, 1.0, 1.0, 1.1))
    return Result(small(target=target), "cpu", LAYOUTS[0], (0.001,) * 5, peer, 36e-6, 2)


def test_ratio_is_peer_time_over_ours():
    assert result().ratio.median == pytest.approx(2.0)
    assert result().meets_target is None
    assert result(target=2.0).meets_target is True
    assert result(target=2.1).meets_target is False


def test_table_shows_targets_and_the_plan_apart():
    lines = show.table([result(target=1.0), result(0.5, target=1.0)]).splitlines()
    head, _, met, missed = ([cell.strip() for cell in line.split("|")] for line in lines)
    row = dict(zip(head, met, strict=True))
    assert row["ratio"] == "2.00"
    assert row["target"] == "1.00"
    assert (row["plan"], row["plan/36 + run"]) == ("36.0 µs", "1.00 ms")
    assert row["rate"] == "81.9 MB/s"
    assert "met" in met
    assert "MISSED" in missed
    assert "target" not in show.table([result()])


def test_json_holds_every_round():
    (entry,) = json.loads(show.as_json([result(target=1.5)], {"threads": 2}))["results"]
    assert entry["seconds"] == [0.001] * 5
    assert entry["case"]["target"] == 1.5
    assert entry["meets_target"] is True


def test_chart_draws_the_ratios():
    root = ET.fromstring(chart.draw([result(2.0, target=1.0), result(1.0)], {"threads": 2}, rounds=5))
    bars = [float(r.get("width")) for r in root.iter() if r.tag.endswith("rect") and r.get("rx")]
    assert bars[0] == pytest.approx(2 * bars[1], rel=1e-3)


def test_a_wrong_result_is_reported_and_not_timed(monkeypatch, capsys):
    """One value off by more than the tolerance stops the case."""
    real = al.BatchAttention.run

    def broken(self, *args, **kwargs):
        out = real(self, *args, **kwargs)
        out[-1, -1, -1] += 0.01
        return out

    def untimed(*_):
        raise RuntimeError("a wrong result was timed")

    monkeypatch.setattr(al.BatchAttention, "run", broken)
    monkeypatch.setattr(attention, "interleave", untimed)
    results = []
    assert command._measure_all((small(),), 7, results) == 1
    assert results == []
    assert "WRONG RESULT" in capsys.readouterr().err


def test_cpu_figures_are_the_agreed_lines():
    lines = [(c.mode, c.dtype, c.page_size, c.workload, c.target) for c in presets.cpu_figures()]
    expected = [
        (mode, dtype, page, workload, target)
        for mode, dtype, page, target in (
            ("decode", "fp32", None, 1.0),
            ("decode", "fp32", 16, 0.5),
            ("decode", "bf16", 16, 1.0),
            ("prefill", "fp32", 16, 0.9),
            ("prefill", "bf16", 16, 0.75),
        )
        for workload in ("uniform_16x1024", "zipf_16x1024")
    ]
    assert lines == expected
    assert {(c.heads, c.head_dim, c.implementation) for c in presets.cpu_figures()} == {((32, 8), 128, "cpu")}


def test_bench_alone_means_attention():
    assert options.complete(["bench"]) == ["bench", "attention"]
    assert options.complete(["bench", "--dtype", "fp32"]) == ["bench", "attention", "--dtype", "fp32"]
    assert options.complete(["bench", "plan", "--help"]) == ["bench", "plan", "--help"]
    assert options.complete(["bench", "--help"]) == ["bench", "--help"]


def test_variants_on_the_command_line():
    composed = arguments.variant("causal+sliding_window:7+soft_cap:30")
    same = al.variants.causal() & al.variants.sliding_window(7) & al.variants.soft_cap(30.0)
    assert composed.program.identity == same.program.identity
    assert arguments.variant("full").program.mask is None
    for wrong in ("", "causal:3", "soft_cap:x", "sliding_window:"):
        with pytest.raises(argparse.ArgumentTypeError):
            arguments.variant(wrong)


def test_stored_workloads():
    assert len(cases.stored_names()) == 14
    assert cases.workload("zipf_16x1024").kv_lens[:3] == (4846, 2423, 1615)
    for name in cases.stored_names():
        batch = cases.workload(name)
        assert batch.lengths("decode") == cases.Lengths((1,) * len(batch.kv_lens), batch.kv_lens)
        assert batch.lengths("prefill").qo == batch.kv_lens


def test_synthetic_workloads():
    assert cases.workload("constant_3x7").kv_lens == (7, 7, 7)
    drawn = cases.workload("uniform_500x100").kv_lens
    assert len(drawn) == 500
    assert (min(drawn), max(drawn)) == (50, 100)


@pytest.mark.parametrize("source", cases.SOURCES)
def test_drawn_workloads(source):
    batch = cases.workload(f"{source}_64")
    assert batch == cases.workload(f"{source}_64")
    assert batch.kv_lens == cases.workload(f"{source}_64_seed0").kv_lens
    assert batch.kv_lens != cases.workload(f"{source}_64_seed1").kv_lens
    assert len(set(batch.kv_lens)) > 32
    assert all(kv > prompt >= 1 for kv, prompt in zip(batch.kv_lens, batch.prompt_lens, strict=True))
    rows = cases._LOADERS[source]()
    totals = {(int(prompt), int(prompt + output)) for prompt, output in rows}
    ends = dict.fromkeys(int(prompt) for prompt, _ in rows)
    assert set(batch.prompt_lens) <= set(ends)
    longest = {p: max(t for q, t in totals if q == p) for p in set(batch.prompt_lens)}
    assert all(kv <= longest[p] for kv, p in zip(batch.kv_lens, batch.prompt_lens, strict=True))


def test_a_draw_takes_no_row_twice():
    drawn = cases.workload("sharegpt_4000").prompt_lens
    assert sorted(drawn) == sorted(int(prompt) for prompt, _ in cases._LOADERS["sharegpt"]())


def test_mixed_step_has_chunks_and_decodes():
    batch = cases.workload("azure_64")
    step = batch.lengths("mixed")
    for i, (qo, kv) in enumerate(zip(step.qo, step.kv, strict=True)):
        if i % 8:
            assert (qo, kv) == (1, batch.kv_lens[i])
        else:
            assert (qo, kv) == (min(512, batch.prompt_lens[i]), batch.prompt_lens[i])
    assert 512 in step.qo


@pytest.mark.parametrize("name", ["zipf", "zipf_3x9", "constant_0x4", "sharegpt_4001", "mooncake_", "azure_4_seed"])
def test_unknown_workloads_are_refused(name):
    with pytest.raises(errors.InvalidArgument, match=name):
        cases.workload(name)


def test_workload_files_have_their_notices():
    folder = importlib.resources.files("attnloom.testing") / "workloads"
    notice = (folder / "README.md").read_text(encoding="utf-8")
    files = [f.name for f in folder.iterdir() if f.name != "README.md"]
    assert len(files) == 4
    assert all(f"`{name}`" in notice for name in files)
    assert {len(cases._LOADERS[s]()) for s in cases.SOURCES} == {4000, 19366, 2000}
    assert all(words in notice for words in ("CC-BY-4.0", "Apache-2.0", "first 2,000 of its 12,031 rows", "ShareGPT"))
