"""One case of the GPU benchmark without a GPU: rounds, ratios, checks, what is tried and what is left out."""

from __future__ import annotations

import dataclasses
import itertools

import oracle
import pytest
import torch
from bench_fakes import FakeClock, FakePeer, Priced, measured, small

from attnloom.bench.gpu import clock, engine, record, rounds, table
from attnloom.bench.gpu.case import Target
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.measure import Bench, WrongResult, verdict
from attnloom.bench.gpu.peers import all_peers
from attnloom.bench.gpu.record import FAILED, MEASURED, OURS, UNAVAILABLE, UNFIT, Entry
from attnloom.bench.timing import Spread

# Rounds and ratios


def test_rounds_interleave_all_and_turn_around():
    fake = FakeClock()
    calls = {name: Priced(name, price) for name, price in (("a", 1e-3), ("b", 2e-3), ("c", 8e-3))}
    seconds = rounds.interleave(calls, 4, fake.sample)
    assert [name for name, _ in fake.order[-12:]] == ["a", "b", "c", "c", "b", "a"] * 2
    assert all(len(values) == 4 for values in seconds.values())
    for a, b, c in zip(*seconds.values(), strict=True):  # neighbours in a round differ by a drift of 1.1 a step
        assert 2 / 1.1 - 1e-9 <= b / a <= 2 * 1.1 + 1e-9
        assert 8 / 1.1**2 - 1e-9 <= c / a <= 8 * 1.1**2 + 1e-9


def test_longer_calls_are_called_less_often():
    assert [rounds.calls_per_sample(s) for s in (0.0, 1e-4, 1e-3, 4e-3, 1.0)] == [50, 50, 20, 5, 3]


def test_ratio_is_of_each_round():
    ours = Entry(OURS, "AttnLoom", MEASURED, seconds=(1.0, 2.0, 4.0))
    peer = Entry("p", "P", MEASURED, seconds=(2.0, 2.0, 12.0))
    assert peer.ratio(ours) == Spread(2.0, 1.5, 2.5)


def test_a_target_counts_against_the_quickest_of_its_peers():
    ours = Entry(OURS, "AttnLoom", MEASURED, seconds=(1.0, 1.0, 1.0))
    slow, quick = (Entry(f"rival-{s}", "R", MEASURED, seconds=(s, s, s)) for s in (3.0, 1.5))
    other = Entry("rivalry", "O", MEASURED, seconds=(1.1, 1.1, 1.1))
    entries = [ours, slow, quick, other]
    assert verdict(Target(("rival",), 1.5), entries).against == "rival-1.5"
    assert verdict(Target(("rival",), 1.5), entries).met is True
    assert verdict(Target(("rival",), 1.51), entries).met is False
    assert verdict(Target(("rival-3.0",), 2.9), entries).ratio.median == 3.0
    assert verdict(Target(("absent",), 1.0), entries).met is None


# One case


def test_every_setting_is_tried_and_the_quickest_measured():
    peer = FakePeer("rival", {"slow": 9e-3, "broken": "raises", "off": "wrong", "quick": 3e-3, "slower": 20e-3})
    done = measured(small(Target(("rival",), 2.0)), peer)
    (entry,) = done.peers
    assert (done.status, entry.status, entry.setting) == (MEASURED, MEASURED, "quick")
    assert entry.tried["broken"] == "RuntimeError: no kernel for this"
    assert entry.tried["off"].startswith("wrong result: 1 of 2 rows differ, row 1")
    assert entry.tried["quick"] < entry.tried["slow"]
    assert (len(entry.seconds), len(done.ours.seconds)) == (7, 7)
    assert entry.ratio(done.ours).median == pytest.approx(3.0, rel=0.35)  # the clock drifts within a round
    assert (entry.host_seconds, done.ours.setting) == (5e-6, "implementation cpu")
    assert done.verdicts[0].met is True


def test_a_peer_that_fails_is_reported_and_the_others_are_measured():
    peers = (
        FakePeer("dead", {"only": "raises"}),
        FakePeer("liar", {"only": "wrong"}),
        FakePeer("absent", {"only": 1e-3}, reason="import absent: ImportError: no"),
        FakePeer("other-work", {"only": 1e-3}, unfit="a prefill kernel"),
        FakePeer("idle", {}),
        FakePeer("fine", {"only": 2e-3}),
    )
    done = measured(small(), *peers, missing={"absent": "import absent: ImportError: no"})
    found = {entry.id: (entry.status, entry.message) for entry in done.peers}
    assert found["dead"] == (FAILED, "only: RuntimeError: no kernel for this")
    assert found["liar"][0] == FAILED
    assert "wrong result" in found["liar"][1]
    assert found["absent"] == (UNAVAILABLE, "import absent: ImportError: no")
    assert found["other-work"] == (UNFIT, "a prefill kernel")
    assert found["idle"] == (FAILED, "no setting to try")
    assert found["fine"] == (MEASURED, "")
    text = table.render(record.Report({}, {}, {"absent": "import absent: ImportError: no"}, (done,)))
    for line in (
        "unavailable: absent: import absent: ImportError: no",
        "failed: dead, " + small().name + ": only: RuntimeError: no kernel for this",
    ):
        assert line in text.splitlines()


def test_decode_is_replayed_and_prefill_is_not():
    fake = FakeClock()
    peer = FakePeer("rival", {"one": 1e-3, "two": 2e-3})
    Bench(fake, [peer], {}, 7).measure(small())
    assert fake.captured == 3
    Bench(fake, [peer], {}, 7).measure(small(mode="prefill"))
    assert fake.captured == 3


def test_a_graph_that_writes_nothing_is_not_timed():
    class Idle(FakeClock):
        def capture(self, call):
            return (lambda: None), call()

    with pytest.raises(WrongResult, match="replayed as a graph: 2 of 2 rows differ"):
        Bench(Idle(), [], {}, 7).measure(small())


def test_a_wrong_result_of_ours_stops_the_case(monkeypatch):
    real = engine.prepare

    def broken(batch):
        prepared = real(batch)
        return dataclasses.replace(prepared, call=lambda: prepared.call().mul_(1.1))

    monkeypatch.setattr(engine, "prepare", broken)
    with pytest.raises(WrongResult, match=r"AttnLoom: request 0, of rows \[0\]: 1 of 1 rows differ"):
        measured(small())


MASKS = {
    0: lambda q_pos, kv_pos: kv_pos <= q_pos,
    1: lambda q_pos, kv_pos: kv_pos <= q_pos + 1,
    -1: lambda q_pos, kv_pos: kv_pos <= q_pos - 1,
}


@pytest.mark.parametrize("page_size", [16, 1, None])
@pytest.mark.parametrize("mode", ["decode", "prefill", "mixed"])
def test_the_check_by_hand_knows_right_from_wrong(mode, page_size):
    """Against the oracle's rows it says nothing; a row that sees one key too many or too few is found."""
    batch = DeviceBatch(small(workload="sharegpt_3_seed7", mode=mode, page_size=page_size))
    k, v = batch.contiguous
    starts = batch.token_indptr.tolist()
    results = []
    for mask in MASKS.values():
        functors, outs = oracle.Functors(mask=mask), []
        for i, (start, end) in enumerate(itertools.pairwise(starts)):
            q = batch.q[batch.qo_indptr[i] : batch.qo_indptr[i + 1]]
            request = oracle.Request(q, k[start:end], v[start:end])
            outs.append(oracle.attend(request, functors, 64**-0.5).out.float())
        results.append(engine.wrong_rows(batch, torch.cat(outs)))
    right, _, too_few = results
    assert right is None
    assert "request 0" in too_few
    if mode != "decode":  # a last row has no key beyond its own
        assert "request 0" in results[1]


def test_contiguous_copies_follow_the_pages():
    batch = DeviceBatch(small(workload="sharegpt_3", page_size=7))
    k, _ = batch.contiguous
    position = 0
    for i, length in enumerate(batch.kv_lens):
        first = int(batch.kv_indptr[i])
        for j in range(length):
            page = int(batch.page_ids[first + j // 7])
            assert torch.equal(k[position], batch.k[page, j % 7])
            position += 1
    assert position == len(k)
    other = batch.repaged(small(workload="sharegpt_3", page_size=16))
    assert torch.equal(other.contiguous[1], batch.contiguous[1])
    assert torch.equal(other.q, batch.q)


def test_padded_caches_hold_each_request_and_zeros():
    batch = DeviceBatch(small(workload="sharegpt_3", page_size=7))
    k, v = batch.contiguous
    padded_k, padded_v = batch.padded()
    for i, length in enumerate(batch.kv_lens):
        start = sum(batch.kv_lens[:i])
        assert torch.equal(padded_k[i, :length], k[start : start + length])
        assert torch.equal(padded_v[i, :length], v[start : start + length])
        assert not padded_k[i, length:].any()


def test_differs_finds_nan_and_shape():
    rows = torch.ones(3, 2, 4)
    assert engine.differs(rows, rows.clone()) is None
    bad = rows.clone()
    bad[2, 1, 3] = torch.nan
    assert engine.differs(bad, rows).startswith("1 of 3 rows differ, row 2 by nan")
    assert engine.differs(rows[:2], rows) == "shape (2, 2, 4), expected (3, 2, 4)"


def test_page_sizes_are_compared_on_the_same_keys():
    (pages,) = (peer for peer in all_peers() if peer.id == "attnloom-page-16")
    gpu_case = small(Target(("attnloom-page-16",), 0.9), page_size=1)
    assert pages.unfit_reason(gpu_case) is None
    assert pages.unfit_reason(small()) is not None
    done = measured(gpu_case, pages)
    assert done.verdicts[0].met is not None


def test_work_and_roofline_by_hand():
    decode, prefill = small(), small(mode="prefill")
    kv = 2 * 40 * 2 * (64 + 64) * 4
    assert decode.counted_bytes == kv
    assert prefill.counted_bytes == kv + 2 * 40 * 4 * (64 + 64) * 4
    assert decode.roofline(1e9) == pytest.approx(kv / 1e9)
    assert decode.roofline(1e30) == pytest.approx(4 * 64 * 80 * 4 / 600e12)


def test_plain_reads_read_as_many_bytes():
    for size in (4096, 4 * 2**16, 2**22 + 4):
        for call in clock.reads(size, torch.device("cpu")).values():
            assert torch.isfinite(call()).all()
    assert set(clock.reads(2**22, torch.device("cpu"))) == {"sum", "sum of rows"}
    assert set(clock.reads(2**16 + 2**15, torch.device("cpu"))) == {"sum"}  # whole rows would leave a third out
