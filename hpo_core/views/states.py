"""States of studies, trials and attempts: one table of the words, and of their names in MLflow and Prefect."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from hpo_core.model.space import scalar_key
from hpo_core.model.trial import Outcome, Params
from hpo_core.search.grid import Grid
from hpo_core.state import StudyState, TrialRecord
from hpo_core.study import Study

STUDY_IN_MLFLOW = {"running": "RUNNING", "interrupted": "KILLED", "halted": "KILLED", "finished": "FINISHED"}
"""Word for a study to the status of its run."""
TRIAL_IN_MLFLOW = {"paused": "FINISHED", "stopped": "FINISHED", "abandoned": "FAILED"}
"""Status of a trial to that of its run, which runs in all other cases."""


class AttemptState(NamedTuple):
    """The word for an attempt in figures, and the name of its task run's state in Prefect."""

    word: str
    prefect: str


_ATTEMPTS = {
    None: AttemptState("running", "Running"),
    Outcome.COMPLETED: AttemptState("completed", "Completed"),
    Outcome.DIVERGED: AttemptState("diverged", "Completed"),
    Outcome.LOST: AttemptState("lost or preempted", "Crashed"),
    Outcome.PREEMPTED: AttemptState("lost or preempted", "Cancelled"),
}


def attempt_state(outcome: Outcome | None) -> AttemptState:
    """State of an attempt by the way it ended; None: it runs."""
    return _ATTEMPTS.get(outcome, AttemptState("failed", "Failed"))


def study_word(study: Study, *, driven: bool) -> str:
    """``running``, ``interrupted`` (nobody drives it), ``halted`` or ``finished``."""
    return study.status if study.status != "open" else "running" if driven else "interrupted"


def trial_state(study: Study, trial: TrialRecord) -> str:
    """``winner``, ``best so far``, ``completed``, ``not promoted``, ``diverged``, or the status of the trial.

    The winner is the best trial of a study that has ended or was halted. A trial without a finite loss at its end has
    diverged. ``paused`` means that it may still go on: nothing is paused once the study is finished.
    """
    best, status = study.best, trial.status
    if best is not None and best.trial == trial.number and status != "running":
        return "best so far" if study.status == "open" else "winner"
    if status in ("paused", "stopped") and trial.loss is None:
        return "diverged"
    if status == "paused" and study.status == "finished":
        outline = study.spec.search.outline()
        short = outline.max_resource is not None and trial.resource < outline.max_resource
        return "not promoted" if short and not outline.members else "completed"
    return status


MOST_POINTS = 20_000
"""Points of a grid whose states are told one by one; larger ones are counted."""


class JobState(StrEnum):
    """State of one configuration of a grid."""

    PENDING = "pending"
    """Not granted yet, or it waits for its place on a device that jobs share."""
    IN_PROGRESS = "in progress"
    """It trains."""
    COMPLETE = "complete"
    FAILED = "failed"
    """The last attempt failed: it is tried again, or was abandoned."""


class GridStates(msgspec.Struct, frozen=True):
    """Number of configurations in each state."""

    pending: int
    in_progress: int
    complete: int
    failed: int

    @property
    def words(self) -> str:
        """All that is not 0.

        >>> GridStates(3, 0, 5, 1).words
        '3 pending, 5 complete, 1 failed'
        """
        counts = zip(JobState, (self.pending, self.in_progress, self.complete, self.failed), strict=True)
        return ", ".join(f"{count:,} {state}" for state, count in counts if count)


class GridPoint(msgspec.Struct, frozen=True):
    """A point of the grid, and the trials that have its parameters."""

    params: Params
    trials: tuple[int, ...]
    state: JobState


def job_state(state: StudyState, trial: TrialRecord) -> JobState:
    if trial.results:
        return JobState.COMPLETE
    if state.trains(trial.number):
        return JobState.IN_PROGRESS
    return JobState.FAILED if trial.abandoned is not None or trial.failures else JobState.PENDING


def joint_state(states: Sequence[JobState]) -> JobState:
    """State of several jobs together: failed where one is; complete where all are.

    >>> joint_state([JobState.COMPLETE, JobState.PENDING])
    <JobState.IN_PROGRESS: 'in progress'>
    """
    if JobState.FAILED in states:
        return JobState.FAILED
    return states[0] if states and len(set(states)) == 1 else JobState.IN_PROGRESS if states else JobState.PENDING


def grid_states(study: Study) -> GridStates | None:
    """States of all configurations of a grid search, those given by hand included; None for another method."""
    if _grid(study) is None:
        return None
    found = [job_state(study.state, trial) for trial in study.state.trials]
    coming = max(0, sum(rung.expected for rung in study.method.rungs()) - len(found))
    return GridStates(
        pending=coming + found.count(JobState.PENDING),
        in_progress=found.count(JobState.IN_PROGRESS),
        complete=found.count(JobState.COMPLETE),
        failed=found.count(JobState.FAILED),
    )


def grid_points(study: Study) -> list[GridPoint]:
    """All points with their state; empty for another method, and for a grid of more than ``MOST_POINTS``."""
    grid = _grid(study)
    if grid is None or grid.size > MOST_POINTS:
        return []
    names = grid.names
    by_point: dict[Any, list[TrialRecord]] = {}
    for trial in study.state.trials:
        by_point.setdefault(_key(trial.params, names), []).append(trial)
    found = []
    for point in grid.points:
        trials = by_point.get(_key(point, names), [])
        states = [job_state(study.state, trial) for trial in trials]
        states += [JobState.PENDING] * (not states)
        found.append(GridPoint(point, tuple(trial.number for trial in trials), joint_state(states)))
    return found


def _grid(study: Study) -> Grid | None:
    return study.spec.search.grid(study.spec.search_space(), study.spec.seed)


def _key(params: Params, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(scalar_key(params[name]) if name in params else None for name in names)
