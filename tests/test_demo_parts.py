"""The demo's parts by themselves: options, prompts, the step log, the sentences about steps."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from attnloom.demo import add_arguments, main
from attnloom.demo.console import Console
from attnloom.demo.log import StepLog
from attnloom.demo.options import Options
from attnloom.demo.prompts import BUILT_IN, read_prompts
from attnloom.demo.report import happenings
from attnloom.demo.steps import Row, Step
from attnloom.demo.verify import first_difference
from attnloom.demo.weights import _WithoutBars
from attnloom.demo.words import listed


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    for name in Options.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text


def test_asking_for_the_parser_imports_no_transformers() -> None:
    code = (
        "import argparse, sys; from attnloom.demo import add_arguments; add_arguments(argparse.ArgumentParser());"
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_prompts_of_a_file_are_spread_over_three_waves(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("a\nb\n\nc\nd\ne\n", encoding="utf-8")
    prompts = read_prompts(path, 5)
    assert [(p.text, p.wave, p.max_new_tokens) for p in prompts] == [
        ("a", 0, 5), ("b", 0, 5), ("c", 1, 5), ("d", 1, 5), ("e", 2, 5),
    ]  # fmt: skip
    assert len(BUILT_IN) >= 8
    assert {p.wave for p in BUILT_IN} == {0, 1, 2}
    assert len({p.max_new_tokens for p in BUILT_IN}) > 3
    assert max(p.max_new_tokens for p in read_prompts(None, 20)) == 20
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert Options.from_arguments(parser.parse_args(["--no-verify"])).verify is False


@pytest.mark.parametrize(
    ("got", "expected", "at"),
    [([1, 2], [1, 2], None), ([1, 3], [1, 2], 1), ([1], [1, 2], 1), ([1, 2, 3], [1, 2], 2), ([], [], None)],
)
def test_first_difference(got: list[int], expected: list[int], at: int | None) -> None:
    assert first_difference(got, expected) == at


def _two_steps() -> list[Step]:
    first = Step(1, (Row("r1", 20, 0, 20, (5, 6)), Row("r2", 12, 0, 40, (7,))), ("r1", "r2"), seconds=0.5)
    second = Step(
        2, (Row("r1", 1, 20, 20, (5, 6)), Row("r2", 28, 12, 40, (5, 8, 9))), (), left=[("r1", 2)], seconds=0.25
    )
    return [first, second]


def test_the_log_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    log = StepLog(Console(), ["r1", "r2"], [(0, ("r1", "r2"))])
    for step in _two_steps():
        log.add(step)
    for number in (3, 4):
        log.add(Step(number, (Row("r2", 1, 40, 40, (5, 8, 9)),), (), seconds=0.1))
    log.close()
    assert capsys.readouterr().out.splitlines() == [
        "      1     32    500 │  20  12 │ r1 r2 arrive; r1 r2 join",
        "      2     29    250 │   d  28 │ page 5 shared by r1 r2; r1 leaves with 2 tokens",
        "    3–4      1    100 │   ·   d │",
    ]


def test_the_log_of_many_requests_is_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"r{i}" for i in range(1, 41)]
    log = StepLog(Console(), names)
    log.header()
    for step in _two_steps():
        log.add(step)
    log.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split("│")[1].strip() == "dP" + "·" * 38


def test_progress_bars_are_dropped_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    from tqdm import tqdm

    stream = _WithoutBars()
    print("before", file=stream)
    for _ in tqdm(range(3), file=stream, mininterval=0):
        pass
    print("after", file=stream)
    assert capsys.readouterr().err == "before\nafter\n"


def test_numbers_are_listed_in_runs() -> None:
    assert listed("step", [1, 3, 4, 5, 9]) == "steps 1, 3–5, 9"
    assert listed("page", [7]) == "page 7"
    assert listed("step", range(1, 40, 2)) == "steps 1, 3, 5, 7, 9, 11, 13, …, 39"


def test_what_the_steps_show_in_sentences() -> None:
    lines = happenings(_two_steps())
    assert lines[0] == "requests joined at step 1 and left after step 2"
    assert lines[1] == "r2's prompt was prefilled in 2 chunks of 12 + 28 tokens: step 2, beside decoding"
    assert lines[2].startswith("page 5 was shared, by 2 requests")
    assert happenings(_two_steps()[:1])[-1] == "no page was shared: no two prompts begin with the same full page"
