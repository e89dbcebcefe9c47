"""AttnLoom beside itself in a case of the GPU benchmark, and targets that compare with more than peers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from bench_fakes import FakeClock, FakePeer, measured, small

from attnloom.bench.gpu import engine, own
from attnloom.bench.gpu.case import PLAN_LIMIT, READ_CEILING, Beside, GpuCase, Target
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.measure import Bench, WrongResult
from attnloom.bench.gpu.record import FAILED, MEASURED, OURS, UNFIT, UNSUPPORTED, WRONG, Entry
from attnloom.bench.gpu.verdicts import unmeasured, verdict
from attnloom.errors import UnsupportedSpec

PARTS = ({"workload": "constant_1x20", "mode": "prefill", "qo_lens": None}, {"workload": "constant_3x33"})
BESIDE = {
    "pages": Beside("ours-pages", "P", {"page_size": 7}),
    "contiguous": Beside("ours-contiguous", "C", {"page_size": None}),
    "rows": Beside("ours-rows", "R", {"mode": "append", "qo_lens": (3, 3)}),
    "dim": Beside("ours-dim", "D", {"head_dim": 80}),
    "other batch": Beside("ours-other", "O", {"workload": "uniform_3x50"}),
    "capacity": Beside("ours-capacity", "K", {"capacity": 100}),
    "one split": Beside("ours-one", "S", one_split=True),
    "not causal": Beside("ours-full", "F", {"causal": False, "mode": "prefill"}),
    "parts": Beside("ours-parts", "A", parts=PARTS),
}


def case(beside, *targets, **changes):
    return dataclasses.replace(small(*targets, **changes), beside=(beside,))


@pytest.mark.parametrize("name", BESIDE)
def test_ours_is_measured_beside_itself(name):
    beside = BESIDE[name]
    done = measured(case(beside, Target((OURS,), 0.01, "figure", subject=beside.id)))
    (entry,) = done.peers
    assert (entry.status, entry.setting, len(entry.seconds)) == (MEASURED, "implementation cpu", 7), entry.message
    assert done.verdicts[0].met is True
    assert (done.verdicts[0].label, done.verdicts[0].subject, done.verdicts[0].against) == ("figure", beside.id, OURS)


def test_other_work_is_counted_as_its_own():
    rows = measured(case(BESIDE["rows"]))
    (entry,) = rows.peers
    kv = 2 * 40 * 2 * (64 + 64) * 4
    assert rows.bytes_of(rows.ours) == kv
    assert rows.bytes_of(entry) == kv + 2 * 3 * 4 * (64 + 64) * 4
    assert rows.flops_of(entry) == 4 * 64 * 2 * (38 + 39 + 40) * 4
    pages = measured(case(BESIDE["pages"]))
    assert pages.bytes_of(pages.peers[0]) == kv
    full = small(mode="prefill", causal=False)
    assert full.case.flops == 4 * 64 * 2 * 40 * 40 * 4


@pytest.mark.parametrize("name", ["rows", "dim", "parts", "pages"])
def test_a_wrong_result_beside_is_called_wrong_and_never_timed(name, monkeypatch):
    real, calls = engine.prepare, []

    def second_is_broken(batch, **how):
        prepared = real(batch, **how)
        calls.append(batch)
        if len(calls) == 1:
            return prepared
        return dataclasses.replace(prepared, call=lambda: prepared.call().mul_(1.1))

    monkeypatch.setattr(engine, "prepare", second_is_broken)
    target = Target((OURS,), 0.5, "figure", subject=BESIDE[name].id)
    done = measured(case(BESIDE[name], target))
    (entry,) = done.peers
    assert (entry.status, entry.seconds) == (WRONG, ())
    assert "rows differ" in entry.message
    assert done.verdicts[0].met is None
    assert WRONG in done.verdicts[0].reason


def test_a_graph_of_parts_that_leaves_one_out_is_wrong():
    class Forgetful(FakeClock):
        def capture(self, call):
            result = call()
            if not isinstance(result, list):
                return super().capture(call)
            kept = [part.clone() for part in result]
            return (lambda: result[0].copy_(kept[0])), result

    (entry,) = Bench(Forgetful(), [], {}, 7).measure(case(BESIDE["parts"])).peers
    assert entry.status == WRONG
    assert "replayed as a graph" in entry.message


def test_what_is_not_supported_is_a_row_with_its_reason(monkeypatch):
    real = engine.prepare

    def refuse(batch, **how):
        if batch.case.head_dim == 80:
            raise UnsupportedSpec(given="x", reasons="  cpu: no such head_dim", fix="")
        return real(batch, **how)

    monkeypatch.setattr(engine, "prepare", refuse)
    done = measured(case(BESIDE["dim"], Target((OURS,), 0.9, "dims", subject="ours-dim")))
    (entry,) = done.peers
    assert entry.status == UNSUPPORTED
    assert "no such head_dim" in done.verdicts[0].reason
    assert done.ours.seconds


def test_fp8_caches_hold_numbers_of_that_type():
    batch = DeviceBatch(small(dtype="bf16", kv_dtype="fp8_e4m3"))
    assert batch.k.dtype == torch.float8_e4m3fn
    assert batch.contiguous[0].dtype == torch.float8_e4m3fn
    assert batch.gpu_case.counted_bytes * 2 == small(dtype="bf16").counted_bytes
    plain = DeviceBatch(small(dtype="bf16"))
    assert torch.equal(batch.contiguous[1].float(), plain.contiguous[1].to(torch.float8_e4m3fn).float())


def test_tables_are_as_wide_as_the_capacity():
    gpu_case = small(workload="sharegpt_3", page_size=7, capacity=4096)
    batch = DeviceBatch(gpu_case)
    table = batch.kv_format().block_table
    assert table.shape == (3, -(-4096 // 7))
    for i, length in enumerate(batch.kv_lens):
        used = -(-length // 7)
        first = int(batch.kv_indptr[i])
        assert torch.equal(table[i, :used], batch.page_ids[first : first + used])
        assert not table[i, used:].any()


def test_one_split_divides_no_keys():
    batch = DeviceBatch(small(workload="constant_1x4096", num_ctas=8))
    attn_divided = engine.make_engine(batch.case)
    attn_divided.plan(batch.qo_indptr, batch.kv_format(), num_ctas=8)
    assert attn_divided.current_plan.merges.entries.shape[0]
    attn = engine.make_engine(batch.case)
    assert 1 <= engine._undivided(attn, batch) <= batch.num_kv_heads
    assert not attn.current_plan.merges.entries.shape[0]


def test_only_the_peers_of_a_case_are_measured():
    gpu_case = dataclasses.replace(small(), peers=("a",))
    done = measured(gpu_case, FakePeer("a", {"x": 1e-3}), FakePeer("a-b", {"x": 1e-3}), FakePeer("ab", {"x": 1e-3}))
    assert [entry.status for entry in done.peers] == [MEASURED, MEASURED, UNFIT]


# Targets


def entry(name, seconds, **fields):
    return Entry(name, name, MEASURED, seconds=(seconds,) * 3, **fields)


def test_targets_may_compare_with_a_read_or_a_time():
    ours = entry(OURS, 2.0, plan_seconds=4e-5)
    reads = (1.8, 2.0, 1.6)
    ceiling = verdict(Target((READ_CEILING,), 0.9), [ours], reads)
    assert (ceiling.ratio.median, ceiling.against, ceiling.met) == (0.9, READ_CEILING, True)
    planned = verdict(Target((PLAN_LIMIT,), 1.0, plan_seconds=5e-5), [ours])
    assert planned.ratio.median == pytest.approx(1.25)
    assert verdict(Target((PLAN_LIMIT,), 1.0, plan_seconds=3e-5), [ours]).met is False
    assert verdict(Target((PLAN_LIMIT,), 1.0, plan_seconds=3e-5), [entry(OURS, 1.0)]).reason == "no plan was timed"


def test_an_alternative_suffices_and_the_nearer_one_is_shown():
    target = Target(("p",), 1.4, alternative=Target((READ_CEILING,), 0.92))
    ours = entry(OURS, 1.0)
    by_ceiling = verdict(target, [ours, entry("p", 1.2)], (0.95,) * 3)
    assert (by_ceiling.against, by_ceiling.at_least, by_ceiling.met) == (READ_CEILING, 0.92, True)
    by_peer = verdict(target, [ours, entry("p", 1.5)], (0.95,) * 3)
    assert (by_peer.against, by_peer.at_least, by_peer.met) == ("p", 1.4, True)
    neither = verdict(target, [ours, entry("p", 1.2)], (0.7,) * 3)
    assert (neither.against, neither.met) == ("p", False)


def test_a_verdict_without_a_ratio_says_why():
    target = Target(("p",), 1.0, "figure", geomean=2.0)
    failed = Entry("p", "P", FAILED, "ValueError: no")
    found = verdict(target, [entry(OURS, 1.0), failed])
    assert (found.met, found.reason, found.label, found.geomean) == (None, "p: failed: ValueError: no", "figure", 2.0)
    assert verdict(target, [entry(OURS, 1.0)]).reason == "no such peer in this run"
    gone = dataclasses.replace(target, subject="ours-x")
    assert verdict(gone, [entry(OURS, 1.0), entry("p", 1.0)]).reason == "ours-x: not in this case"
    assert unmeasured(target, "not run: late").reason == "not run: late"


def test_a_wrong_result_of_fa2s_shows_too(monkeypatch):
    monkeypatch.setattr(own, "wrong", lambda batch, rows: "beside FA2 (torch): 1 of 2 rows differ")
    (found,) = measured(case(BESIDE["rows"])).peers
    assert (found.status, found.message) == (WRONG, "wrong result: beside FA2 (torch): 1 of 2 rows differ")
    from attnloom.bench.gpu import measure

    monkeypatch.setattr(measure.whole, "wrong", lambda batch, rows: "beside FA2 (torch): 1 of 2 rows differ")
    with pytest.raises(WrongResult, match="beside FA2"):
        measured(GpuCase(small().case))
