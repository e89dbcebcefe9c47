"""`attnloom tune`: the search, its measurements with a clock that counts, and the files."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import pytest
import torch

from attnloom import cli, errors
from attnloom.bench.case import Case
from attnloom.bench.gpu import tune
from attnloom.impl import tuning
from attnloom.impl.cpu import CpuImplementation
from attnloom.impl.gluon_sm90 import GluonSm90Implementation
from attnloom.impl.gluon_sm90.configs import ClassConfig, GluonSm90Config
from attnloom.impl.gluon_sm90.footprint import fits
from attnloom.spec import AttentionSpec
from attnloom.target import Target
from attnloom.variant import Variant


@dataclass(frozen=True)
class Row:
    classes: tuple[str, ...]


DEFAULT = Row(("small", "large"))
OTHERS = [Row((one, "large")) for one in "abcde"] + [Row(("small", one)) for one in "xy"] + [Row(("a", "x"))]


class Told:
    """Seconds of the one class that a case uses; the default's are 1."""

    def __init__(self, used, seconds, careful=None):
        self._used, self._seconds, self._careful = used, seconds, careful or seconds
        self.met = []

    def used(self, default):
        assert default is DEFAULT
        return self._used

    def _of(self, table, config, case):
        return table.get((config.classes[min(self._used[case])], case), 1.0)

    def quick(self, config, case):
        return self._of(self._seconds, config, case)

    def careful(self, configs, case):
        self.met.append([one.classes for one in configs])
        return [self._of(self._careful, one, case) for one in configs]


def test_each_used_class_is_exchanged_for_its_quickest():
    seconds = {("a", 0): 0.9, ("b", 0): 0.5, ("c", 0): 0.8, ("d", 0): math.inf, ("x", 1): 0.7, ("y", 1): 2.0}
    timing = Told([{0}, {1}], seconds)
    found = tune.search(DEFAULT, OTHERS, timing)
    assert [(one.place, one.config.classes) for one in found] == [(0, ("b", "large")), (1, ("small", "x"))]
    assert tune.combined(DEFAULT, found) == ("b", "x")
    assert found[0].gains == {0: 2.0}
    # the default meets the three quickest of its own case; a config with two changes is none of them
    assert timing.met == [
        [DEFAULT.classes, ("b", "large"), ("c", "large"), ("a", "large")],
        [DEFAULT.classes, ("small", "x"), ("small", "y")],
    ]


def test_what_meets_the_default_carefully_must_gain():
    quick = {("a", 0): 0.5}
    assert tune.search(DEFAULT, OTHERS, Told([{0}], quick, {("a", 0): 0.995, ("b", 0): 1.5})) == []
    assert tune.search(DEFAULT, OTHERS, Told([{0}], quick, {("a", 0): 0.9}))[0].gain == pytest.approx(1 / 0.9)


def test_cases_count_by_their_geometric_mean():
    seconds = {("a", 0): 0.25, ("a", 1): 2.0, ("b", 0): 0.9, ("b", 1): 0.5}
    (found,) = tune.search(DEFAULT, OTHERS, Told([{0}, {0}], seconds))
    assert found.config.classes == ("b", "large")
    assert found.gain == pytest.approx((1 / 0.45) ** 0.5)


def test_a_class_without_work_keeps_its_default():
    assert tune.search(DEFAULT, OTHERS, Told([{1}], {("b", 0): 0.1})) == []


class CountingClock:
    """Seconds are the number of calls so far."""

    calls = 0

    def sample(self, call, calls):
        call()
        self.calls += 1
        return float(self.calls)

    def capture(self, call):
        return call, call()


def test_configs_are_run_and_checked(monkeypatch):
    """On the host, where every config is the same code; what computes something else is never taken."""
    monkeypatch.setattr(CpuImplementation, "classes", (), raising=False)
    said = []
    case = Case("constant_2x64", "decode", "fp32", 16, (4, 2), 16, "cpu")
    timing = tune.DeviceTiming([case], "cpu", CountingClock(), said.append)
    assert timing.used(DEFAULT) == [{0}]
    assert tuning.tried("cpu") is None
    assert timing.quick(DEFAULT, 0) == 2.0  # one sample to warm up, one that counts
    assert timing.careful([DEFAULT, DEFAULT], 0)[0] > 0
    monkeypatch.setattr(tune.engine, "wrong_rows", lambda batch, out: "row 3 differs")
    assert timing.quick(DEFAULT, 0) == math.inf
    assert "WrongTile: row 3 differs" in said[-1]
    timing.deadline = 0.0
    assert timing.quick(DEFAULT, 0) == math.inf
    assert len(said) == 2


SPEC = AttentionSpec.create(num_qo_heads=32, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16, page_size=16)
H200 = Target("cuda", 90, 132, 232_448, "NVIDIA H200")
PROGRAM = Variant().program


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A cache directory of its own, nothing remembered before and after."""
    from attnloom.impl.gluon_sm90 import implementation

    monkeypatch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")
    forget = (tuning.forget, implementation._config_of.cache_clear)
    for one in forget:
        one()
    yield tmp_path
    for one in forget:
        one()


def test_a_tuned_file_serves_its_device_and_spec(fresh):
    gluon, tuned = GluonSm90Implementation(), (ClassConfig("decode", 64, 64, 2), ClassConfig("prefill", 128, 64, 3))
    path = tuning.file_of(tuning.SHIPPED, H200.name, "gluon_sm90")
    tuning.write(path, tuning.Key.of(SPEC), tuple(asdict(one) for one in tuned), "by hand")
    assert path == fresh / "shipped" / "nvidia_h200" / "gluon_sm90.json"
    assert gluon.default_config(SPEC, PROGRAM, H200) == GluonSm90Config(tuned)
    table = gluon.default_config(SPEC, PROGRAM, Target.of_arch("sm90"))
    assert table.classes != tuned
    narrow = AttentionSpec.create(num_qo_heads=32, num_kv_heads=8, head_dim=64, dtype=torch.bfloat16, page_size=16)
    assert gluon.default_config(narrow, PROGRAM, H200).classes != tuned


def test_an_entry_replaces_its_own_alone_and_the_cache_comes_first(fresh):
    path, other = tuning.file_of(tuning.SHIPPED, "Card", "it"), tuning.file_of(tuning.written(), "Card", "it")
    key, wide = tuning.Key.of(SPEC), tuning.Key(256, 256, "bfloat16", "bfloat16", 4)
    for classes, at in (({"n": 1}, key), ({"n": 2}, wide), ({"n": 3}, key)):
        tuning.write(path, at, (classes,), "measured")
    assert [one["classes"] for one in json.loads(path.read_text())["entries"]] == [[{"n": 3}], [{"n": 2}]]
    assert tuning.classes_of("it", SPEC, "Card") == ({"n": 3},)
    assert tuning.classes_of("it", SPEC, "Other card") is None
    tuning.write(other, key, ({"n": 4},), "measured")
    assert tuning.classes_of("it", SPEC, "Card") == ({"n": 4},)


@pytest.mark.parametrize("text", ["", "[]", '{"entries": [{}]}', '{"entries": [{"classes": [], "dtype": "x"}]}'])
def test_a_damaged_file_is_named(fresh, text):
    path = tuning.file_of(tuning.SHIPPED, "Card", "it")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(errors.InvalidArgument, match=r"card/it\.json.*tune again"):
        tuning.classes_of("it", SPEC, "Card")


def test_candidates_fit_and_change_one_class():
    default, *others = GluonSm90Implementation().candidate_configs(SPEC, PROGRAM, H200)
    assert len(others) > 40
    for one in others:
        changed = [new for old, new in zip(default.classes, one.classes, strict=True) if old != new]
        assert len(changed) == 1
        assert fits(changed[0], 128, 128)
        assert [c.tile_q for c in one.classes] == [c.tile_q for c in default.classes]


def test_the_command_needs_a_gpu(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["tune", "--workload", "constant_2x64", "--device", "cuda:99"])
    assert stop.value.code == 2
    assert "GPUs" in capsys.readouterr().err
    assert cli.main(["tune", "--workload", "constant_2x64", "--device", "cpu", "--rows", "1", "4"]) == 2
    assert "gluon_sm90 or triton on a GPU" in capsys.readouterr().err
