"""What a trial is called where people look at a study."""

from __future__ import annotations

from hpo_core.state import TrialRecord
from hpo_core.study import Study


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
        short = outline.max_resource is not None and trial.searched < outline.max_resource
        return "not promoted" if short and not outline.members else "completed"
    return status
