"""The step log: a line for every step in which something happens, one for each run of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from attnloom.demo.console import Console
from attnloom.demo.steps import Row, Step
from attnloom.demo.words import does, listed, names

# with more requests the columns shrink to one character
_WIDE = 16


class StepLog:
    """Prints steps as columns of requests: prompt tokens computed, `d` for one token decoded, `·` not running.

    `arrivals` grows while requests arrive: (steps done before, names).
    """

    def __init__(
        self, console: Console, requests: Sequence[str], arrivals: Sequence[tuple[int, tuple[str, ...]]] = ()
    ) -> None:
        self._console = console
        self._arrivals = arrivals
        self._requests = tuple(requests)
        self._wide = len(self._requests) <= _WIDE
        self._quiet: list[Step] = []
        self._owners: dict[int, tuple[str, ...]] = {}
        self._tokens = 0

    def header(self) -> None:
        """What the columns mean."""
        say = self._console.line
        say(
            "Columns are requests: a number is prompt tokens computed in that step, d one token decoded, · not running."
        )
        if self._wide:
            columns = "".join(f"{name:>4}" for name in self._requests)
        else:
            columns = "  " + f"{self._requests[0]} … {self._requests[-1]}".ljust(len(self._requests))
        say(self._console.style(f"{'step':>7} {'tokens':>6} {'ms':>6} │{columns} │ what happened", "dim"))

    def add(self, step: Step) -> None:
        """The next step; it is printed now, or with its like when something else happens."""
        self._tokens += sum(not row.unfinished for row in step.rows)
        notes = self._notes(step)
        if not notes and not step.prefills:
            if self._quiet and [row.request for row in self._quiet[-1].rows] != [row.request for row in step.rows]:
                self._flush()
            self._quiet.append(step)
            self._console.status(
                f"step {step.number}: {does('decode', [r.request for r in step.rows])}; {self._tokens} tokens so far"
            )
            return
        self._flush()
        self._print(str(step.number), step, step.seconds, notes)

    def close(self) -> None:
        """Print what is held back."""
        self._flush()

    def _flush(self) -> None:
        steps, self._quiet = self._quiet, []
        if not steps:
            return
        first, last = steps[0].number, steps[-1].number
        label = str(first) if first == last else f"{first}–{last}"
        self._print(label, steps[-1], sum(step.seconds for step in steps) / len(steps), [])

    def _print(self, label: str, step: Step, seconds: float, notes: list[str]) -> None:
        rows = {row.request: row for row in step.rows}
        cells = "".join(self._cell(rows.get(name)) for name in self._requests)
        left = "" if self._wide else "  "
        text = f"{label:>7} {step.tokens:>6} {seconds * 1e3:>6.0f} │{left}{cells} │ {'; '.join(notes)}"
        self._console.line(text.rstrip())

    def _cell(self, row: Row | None) -> str:
        text = "·" if row is None else (str(row.new) if self._wide else "P") if row.prefill else "d"
        return f"{text:>4}" if self._wide else text

    def _notes(self, step: Step) -> list[str]:
        notes = [does("arrive", who) for steps, who in self._arrivals if steps == step.number - 1]
        if step.joined:
            notes.append(does("join", step.joined))
        notes += self._newly_shared(step)
        notes += [f"{name} leaves with {count} tokens" for name, count in step.left]
        return notes

    def _newly_shared(self, step: Step) -> list[str]:
        """Pages that more requests hold than when they were last mentioned."""
        fresh: dict[tuple[str, ...], list[int]] = {}
        for page, who in step.shared_pages().items():
            if not set(who) <= set(self._owners.get(page, ())):
                fresh.setdefault(who, []).append(page)
                self._owners[page] = who
        return [f"{listed('page', sorted(pages))} shared by {names(who)}" for who, pages in fresh.items()]
