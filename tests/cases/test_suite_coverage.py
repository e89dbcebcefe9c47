"""Runs last: what the whole suite must have met. Without the whole suite there is nothing to judge."""

import case_table
import pytest
from harness import NUM_CTAS, OBSERVED
from interpreted import INTERPRETED


@pytest.fixture
def whole_suite(request):
    here = {path.name for path in request.path.parent.glob("test_*.py")}
    options = request.config.option
    narrowed = options.keyword or options.markexpr or getattr(options, "lf", False)
    if here != case_table.COLLECTED or narrowed or any("::" in argument for argument in request.config.args):
        pytest.skip("only part of the cases was asked for")


@pytest.mark.skipif(INTERPRETED, reason="judges the main process")
def test_both_classes_splits_and_merges_occurred(whole_suite):
    for what in ("class 16", "class 128", "both classes in one plan", "splits", "merges"):
        assert OBSERVED[f"cpu {what}"] > 20, f"{what}: {OBSERVED}"
    for count in NUM_CTAS:
        assert OBSERVED[f"cpu num_ctas {count}"] > 20


@pytest.mark.skipif(INTERPRETED, reason="judges the main process")
def test_cpu_skips_no_case_that_has_a_cpu_meaning(whole_suite):
    assert case_table.uncovered() == []


@pytest.mark.skipif(not INTERPRETED, reason="judges the process of Triton's interpreter")
def test_the_interpreter_met_both_classes_and_every_case(whole_suite):
    for what in ("class 16", "class 32", "both classes in one plan", "splits", "merges"):
        assert OBSERVED[f"triton {what}"] > 20, f"{what}: {OBSERVED}"
    assert case_table.uncovered_under_the_interpreter() == []
