"""The Hopper kernels compiled without a GPU: spills in their loops, shared memory and registers of an SM.

Every shipped tile once, with other facts each; `make compile-all` compiles the whole list.
"""

from __future__ import annotations

import pytest

from tools.compile_hopper import Taken, compile_all, faults
from tools.hopper_list import CACHES, DIMS, FLAGS, GROUPS, ROUNDS, VARIANTS, covering

CASES = list(covering())
FIRST_ROUND = CASES[: len(CASES) // ROUNDS]
PROCESSES = 2


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What each of the first round's kernels takes, compiled here in a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return dict(compile_all(FIRST_ROUND, PROCESSES))


@pytest.mark.parametrize("case", FIRST_ROUND, ids=lambda case: case.words)
def test_it_compiles_within_an_sm_and_does_not_spill_in_its_loops(compiled, case):
    assert faults(case, compiled[case]) == []


def test_the_list_crosses_what_kernels_depend_on():
    """At most 150: each tile of each head dims; each way of moving rows, variant, flag and group with each kernel."""
    assert len(CASES) == len(set(CASES)) <= 150
    assert {case.dims for case in FIRST_ROUND} == set(DIMS)
    for kind in ("decode", "prefill"):
        mine = [case for case in CASES if case.tile.kind == kind]
        for field, values in (("variant", VARIANTS), ("flag", FLAGS), ("group", GROUPS), ("cache", CACHES)):
            assert {getattr(case, field) for case in mine} == set(values), (kind, field)


def test_faults_are_found():
    """What the other tests rely on."""
    case = FIRST_ROUND[0]
    good = Taken(100_000, 100_100, 128, 8, 7, 0, 1.0, "plain")
    assert faults(case, good) == []
    assert case.tile.ctas_per_sm == 2
    wrong = {
        "footprint": Taken(100_000, 99_999, 128, 8, 0, 0, 1.0, "plain"),
        "CTA's": Taken(240_000, 240_000, 128, 8, 0, 0, 1.0, "plain"),
        "2 CTAs take more shared": Taken(120_000, 120_000, 128, 8, 0, 0, 1.0, "plain"),
        "registers": Taken(100_000, 100_000, 168, 12, 0, 0, 1.0, "plain"),
        "1 spills in loops": Taken(100_000, 100_000, 128, 8, 1, 1, 1.0, "plain"),
    }
    for words, taken in wrong.items():
        assert any(words in fault for fault in faults(case, taken)), words
    assert faults(case, "CompilationError: of some kind") == ["CompilationError: of some kind"]
