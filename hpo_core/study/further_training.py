"""Training beyond the search: which trial a person may have trained further, and which of them is next.

After a search its winner is trained for longer than any rung (Li et al. 2020, A.3; Li et al. 2019, 4.3.2). Such a job
has the stage :class:`~hpo_core.model.stage.Further`; ``Study.train_further`` states the rules.
"""

from __future__ import annotations

from hpo_core.model.errors import HpoError
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState

MAX_RESOURCE = 2**53
"""Above it a float no longer tells two resources apart."""


def check_training(state: StudyState, study: str, trial: int | None, to: int, *, searching: bool) -> int:
    """The trial to train further than the search did, or None's: the best; see ``Study.trial_to_train``.

    Args:
        searching: whether the study may still promote it by itself.
    """
    where = f"Study {study!r}"
    if searching:
        raise HpoError(
            f"{where}: its search is not over, and may train that trial further by itself. Let it finish first "
            f"(`hpo resume {study}`), or interrupt it: a halted search stays halted meanwhile."
        )
    if trial is None:
        if state.incumbent is None:
            raise HpoError(
                f"{where} has no finite result yet{_feasible(state)}, so there is no best trial to train further."
            )
        trial = state.incumbent.trial
    if isinstance(trial, bool) or not isinstance(trial, int) or not 0 <= trial < len(state.trials):
        known = f"its trials are 0 to {len(state.trials) - 1}" if state.trials else "it has none yet"
        raise HpoError(f"{where} has no trial {trial!r}; {known}.")
    record = state.trials[trial]
    where = f"{where}, trial {trial}"
    if record.abandoned is not None:
        raise HpoError(f"{where} was abandoned ({record.abandoned.reason}); train another trial further.")
    if trial in state.waiting or (record.running and trial not in state.extended):
        raise HpoError(f"{where}: its job for the search is not done; `hpo resume {study}` goes on with it first.")
    results = record.all_results
    if not results:
        raise HpoError(f"{where} has no result yet; train a trial further that has one.")
    if record.loss is None and not results[-1].losses:
        raise HpoError(
            f"{where}: its loss at {record.resource} is not finite, so nothing good comes of more training; take "
            "another trial."
        )
    if isinstance(to, bool) or not isinstance(to, int) or not record.resource < to <= MAX_RESOURCE:
        raise HpoError(
            f"{where} is trained to {record.resource} already; to = {to!r} must be an integer above that and at most "
            f"{MAX_RESOURCE:,}, for it counts all units of training, those behind the trial included."
        )
    asked = state.extended.get(trial)
    if asked is not None and to < asked.target:
        raise HpoError(f"{where} is to be trained to {asked.target} already; give at least that.")
    return trial


def _feasible(state: StudyState) -> str:
    return " that satisfies its constraints" if state.infeasible_results else ""


def next_in_turn(state: StudyState) -> int | None:
    """The trial that was asked for first among those without a job; None: there is none."""
    free = (number for number in state.extended if not state.trials[number].running)
    return next((number for number in free if number not in state.waiting), None)


def recorded_training(spec: StudySpec, state: StudyState) -> tuple[int, int] | None:
    """(trial, target) that a rerun has yet to train beyond its search, as its source did; None: nothing."""
    record = spec.search.record()
    for further in record.further if record is not None else ():
        trial = state.trials[further.trial] if further.trial < len(state.trials) else None
        if trial is None or trial.abandoned is not None or further.trial in state.extended:
            continue
        failed = max((ended.target for ended in trial.given_up), default=0)
        if trial.all_results and max(trial.resource, failed) < further.target:
            return further.trial, further.target
    return None
