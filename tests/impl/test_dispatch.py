"""Which implementation runs, with implementations made up for the purpose."""

import pytest
import torch

import attnloom as al
from attnloom.errors import InvalidArgument, UnsupportedSpec
from attnloom.impl import dispatch
from attnloom.impl.reference import ReferenceImplementation
from attnloom.spec import AttentionSpec
from attnloom.target import Target

SPEC = AttentionSpec.create(num_qo_heads=4, num_kv_heads=2, head_dim=32, dtype=torch.float32)
PROGRAM = al.variants.causal().program
CPU = Target.of(torch.device("cpu"))


class Made(ReferenceImplementation):
    """An implementation that says what it is told to say."""

    def __init__(self, name, unavailable=(), unsupported=()):
        super().__init__()
        self.name, self.unavailable, self.unsupported, self.asked = name, list(unavailable), list(unsupported), []

    def unavailable_reasons(self, target):
        return self.unavailable

    def unsupported_reasons(self, spec, program, target):
        self.asked.append((spec, program, target))
        return self.unsupported


@pytest.fixture
def registered(monkeypatch):
    def register(*made):
        monkeypatch.setattr(dispatch, "registry", lambda: {one.name: one for one in made})
        return made

    return register


def choose(name=None, program=PROGRAM):
    return dispatch.choose(SPEC, program, CPU, name)


def test_the_shipped_order_prefers_the_gpu_and_ends_with_the_reference():
    names = list(dispatch.registry())
    assert names[-2:] == ["cpu", "reference"]
    assert names.index("triton") < names.index("cpu")
    assert [one.name for one in dispatch.implementations(CPU)] == names
    assert all(name == one.name for name, one in dispatch.registry().items())
    assert dispatch.registry() is dispatch.registry()


def test_the_first_that_can_is_taken(registered):
    first, second, third = registered(Made("a", ["no card"]), Made("b", unsupported=["odd"]), Made("c"))
    assert choose() is third
    assert first.asked == []  # what is not there is not asked about a case
    assert second.asked == third.asked == [(SPEC, PROGRAM, CPU)]
    first.unavailable.clear()
    assert choose() is first


@pytest.mark.parametrize("refusing", [{"unavailable": ["no card"]}, {"unsupported": ["odd head_dim"]}])
def test_a_named_one_never_falls_back(registered, refusing):
    registered(Made("a", **refusing), Made("b"))
    assert choose().name == "b"
    with pytest.raises(UnsupportedSpec) as raised:
        choose("a")
    message = str(raised.value)
    assert f"a: {next(iter(refusing.values()))[0]}" in message
    assert "b:" not in message
    assert "leave implementation= out" in message


def test_a_named_one_is_taken_though_another_comes_first(registered):
    registered(Made("a"), Made("b"))
    assert choose("b").name == "b"


def test_a_refusal_lists_every_reason_of_every_one(registered):
    registered(
        Made("a", unavailable=["no card", "no compiler"], unsupported=["never asked"]),
        Made("b", unsupported=["head_dim 32", "dtype torch.float32"]),
    )
    with pytest.raises(UnsupportedSpec) as raised:
        choose()
    lines = [line.strip() for line in str(raised.value).splitlines()]
    reasons = [line for line in lines if line.startswith(("a:", "b:"))]
    assert reasons == ["a: no card", "a: no compiler", "b: head_dim 32", "b: dtype torch.float32"]
    given = next(line for line in lines if line.startswith("given:"))
    assert "head_dim_qk=32" in given
    assert PROGRAM.identity[:12] in given
    assert "cpu" in given
    assert "leave implementation= out" not in str(raised.value)


@pytest.mark.parametrize("name", ["", "d", "A", 3])
def test_an_unknown_name_is_refused_with_those_that_there_are(registered, name):
    registered(Made("a"), Made("b"))
    with pytest.raises(InvalidArgument, match="'a', 'b'"):
        choose(name)


def test_availability_says_why_not_and_does_not_ask_about_cases(registered):
    made = registered(Made("a", ["no card", "no compiler"]), Made("b", unsupported=["odd"]))
    rows = dispatch.implementations(CPU)
    assert [(r.name, r.available, r.reasons) for r in rows] == [
        ("a", False, ("no card", "no compiler")),
        ("b", True, ()),
    ]
    assert all(one.asked == [] for one in made)


def test_nothing_runs_on_a_device_that_nobody_serves():
    rows = dispatch.implementations(Target.of(torch.device("meta")))
    assert rows
    assert not any(row.available for row in rows)
    assert all(row.reasons for row in rows)
