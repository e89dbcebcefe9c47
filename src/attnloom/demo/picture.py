"""The picture of one plan: of the fullest step in which requests prefill beside others that decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnloom.demo.steps import Step, StepRecorder


class PlanPicture:
    """Keeps the explanation of the plan of the fullest mixed step; `on_plan` is for the integration's `enable`."""

    def __init__(self, directory: Path) -> None:
        self.recorder: StepRecorder | None = None
        self.step: Step | None = None
        self.plans = 0
        self.path = directory / "plan.svg"
        self.table_path = directory / "plan.txt"
        for path in (self.path, self.table_path):
            path.unlink(missing_ok=True)  # an old picture must not pass for this run's

    def on_plan(self, event: Any) -> None:
        """A plan was made, in the thread that generates; draw it at once, for the next plan reuses its arrays."""
        step = self.recorder.current if self.recorder is not None else None
        if step is None:
            return  # the warm-up's
        self.plans += 1
        if not step.mixed or (self.step is not None and _worth(step) <= _worth(self.step)):
            return
        explanation = event.attn.explain()
        explanation.save(self.path)
        self.table_path.write_text(explanation.table() + "\n", encoding="utf-8")
        self.step = step


def _worth(step: Step) -> tuple[bool, int]:
    """Several requests of either kind first, then the most tokens."""
    prefills = len(step.prefills)
    return min(prefills, len(step.rows) - prefills) > 1, step.tokens
