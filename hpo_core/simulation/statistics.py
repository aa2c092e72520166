"""From repeats to figures with a spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpo_core.simulation.repeats import Run, Scenario
from hpo_core.views.formatting import Spread, quantile


@dataclass(frozen=True, slots=True)
class Answer:
    """What the repeats of one scenario came to."""

    scenario: Scenario
    runs: tuple[Run, ...]

    def figures(self, target: float | None) -> dict[str, Spread | None]:
        """Every figure by name; ``target`` is a loss. Times and worker time in seconds."""
        runs = self.runs
        return {
            "seconds": Spread.of(run.seconds for run in runs),
            "seconds_to_target": None if target is None else Spread.of(run.reached(target) for run in runs),
            "seconds_to_first_at_max": Spread.of(run.first_full for run in runs),
            "trials_at_max": Spread.of(run.full for run in runs),
            "trials": Spread.of(run.trials for run in runs),
            "jobs": Spread.of(run.jobs for run in runs),
            "failed_attempts": Spread.of(run.failed for run in runs),
            "resource": Spread.of(run.resource for run in runs),
            "utilization": Spread.of(run.utilization for run in runs),
            "occupancy": Spread.of(run.occupancy for run in runs),
            "worker_seconds": Spread.of(run.offered for run in runs),
            "lost_worker_seconds": Spread.of(run.lost for run in runs),
            "seconds_replicated": Spread.of(run.replicated for run in runs),
            "best_loss": Spread.of(run.loss for run in runs),
        }

    def rungs(self) -> list[tuple[int, float]]:
        """(resource, median of the results there)."""
        levels = sorted({level for run in self.runs for level, _ in run.rungs})
        counts = [dict(run.rungs) for run in self.runs]
        return [(level, quantile(sorted(c.get(level, 0) for c in counts), 0.5)) for level in levels]

    def endings(self) -> dict[str, int]:
        """Why repeats ended, where they did not finish, and how many of them."""
        found: dict[str, int] = {}
        for run in self.runs:
            if run.ended != "finished":
                found[run.ended] = found.get(run.ended, 0) + 1
        return found


def common_target(answers: Sequence[Answer]) -> float | None:
    """The best loss that every repeat of every scenario came to: a fair goal where the user names none."""
    finals = [run.loss for answer in answers for run in answer.runs]
    known = [loss for loss in finals if loss is not None]
    return max(known) if len(known) == len(finals) and known else None
