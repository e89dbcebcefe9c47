"""Runs last: what the whole suite must have met. Without the whole suite there is nothing to judge."""

import case_table
import pytest
from harness import NUM_CTAS, OBSERVED


@pytest.fixture
def whole_suite(request):
    ran = {item.path.name for item in request.session.items if item.path.parent.name == "cases"}
    here = {path.name for path in request.path.parent.glob("test_*.py")}
    options = request.config.option
    narrowed = options.keyword or options.markexpr or getattr(options, "lf", False)
    if ran != here or narrowed or any("::" in argument for argument in request.config.args):
        pytest.skip("only part of the cases was asked for")


def test_both_classes_splits_and_merges_occurred(whole_suite):
    for what in ("class 16", "class 128", "both classes in one plan", "splits", "merges"):
        assert OBSERVED[f"cpu {what}"] > 20, f"{what}: {OBSERVED}"
    for count in NUM_CTAS:
        assert OBSERVED[f"cpu num_ctas {count}"] > 20


def test_cpu_skips_no_case_that_has_a_cpu_meaning(whole_suite):
    assert case_table.uncovered() == []
