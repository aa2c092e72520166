"""Invariants of a study's state, asserted by tests after each event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpo_core.model.trial import Further
from hpo_core.state.best_results import dominates
from hpo_core.state.trial_record import TrialRecord, is_complete

if TYPE_CHECKING:
    from hpo_core.model.events import JobCompleted
    from hpo_core.state.best_results import BestResults
    from hpo_core.state.study_state import StudyState


def check_state(state: StudyState) -> None:
    """Assert every invariant; tests call it after each event."""
    assert set(state.running) == {t.number for t in state.trials if t.running}
    assert state.slots_in_use == sum(grant.demand.slots for grant in state.running.values())
    assert all(state.running[number].attempt == placed.attempt for number, placed in state.placed.items())
    assert len(set(state.waiting)) == len(state.waiting)
    for number in state.waiting:
        trial = state.trials[number]
        assert not trial.running and trial.failures and trial.abandoned is None
    for i, trial in enumerate(state.trials):
        assert trial.number == i
        resources = [result.resource for result in trial.results]
        assert resources == sorted(set(resources)), f"trial {i} has a resource twice: {resources}"
        further = [result.resource for result in trial.further]
        assert further == sorted(set(further)), f"trial {i} was trained further twice to one target: {further}"
        for results in (trial.results, trial.further):
            attempts = [result.attempt for result in results]
            assert attempts == sorted(set(attempts)), f"trial {i} counts an attempt twice: {attempts}"
        assert all((type(result.stage) is Further) == (result in trial.further) for result in trial.all_results)
        assert not (trial.running and trial.abandoned), f"trial {i} runs although abandoned"
        if trial.running:
            assert trial.granted is not None
            further_job = type(trial.granted.stage) is Further
            assert trial.granted.target > (trial.resource if further_job else trial.searched)
            assert not further_job or i in state.extended
            assert trial.granted.attempt == trial.attempts - 1
    _check_best(state)
    running = [t for t in state.trials if t.running and t.granted is not None]
    jobs = [(t.granted.target, type(t.granted.stage) is Further, t) for t in running if t.granted is not None]
    repeats = state.spec.repeats if state.spec is not None else 1
    assert state.further_running == repeats * sum(target - t.resource for target, further, t in jobs if further)
    searching = repeats * sum(target - t.searched for target, further, t in jobs if not further)
    assert state.resource_running - state.further_running == searching
    for number, wish in state.extended.items():
        trial = state.trials[number]
        assert wish.target > trial.resource and trial.abandoned is None and trial.all_results
    assert state.completed_jobs == sum(len(t.results) + len(t.further) for t in state.trials)
    found = [result for trial in state.trials for result in trial.all_results]
    assert state.finite_results == sum(result.loss is not None or bool(result.losses) for result in found)
    assert state.reopened_at <= len(state.trials)
    assert state.infeasible_results == sum(r.infeasible for t in state.trials for r in t.all_results)
    assert state.abandoned_trials == sum(t.abandoned is not None for t in state.trials)


def _check_best(state: StudyState) -> None:
    """Both rules, from the records of all trials."""
    usable = [
        (_rung(trial, result), result)
        for trial in state.trials
        for result in trial.all_results
        if result.loss is not None and is_complete(result) and not result.infeasible
    ]
    _check_one(state, state.best_of_all, [result for _, result in usable])
    top = max((rung for rung, _ in usable), default=0)
    _check_one(state, state.best_of_highest_rung, [result for rung, result in usable if rung == top])
    highest = state.spec is not None and state.spec.best_of == "highest_rung"
    shown = state.best_of_highest_rung if highest else state.best_of_all
    assert state.incumbent is shown.incumbent and state.front is shown.front


def _rung(trial: TrialRecord, result: JobCompleted) -> int:
    """Units that the search had trained it when the result came."""
    return max((r.resource for r in trial.results if r.attempt <= result.attempt), default=trial.base)


def _check_one(state: StudyState, best: BestResults, results: list[JobCompleted]) -> None:
    losses = [result.loss for result in results if result.loss is not None]
    assert (best.incumbent.loss if best.incumbent else None) == (min(losses) if losses else None)
    assert (best.front[0] if best.front else None) == best.incumbent
    several = [result for result in results if result.losses]
    if not several:
        assert best.front == ([best.incumbent] if best.incumbent else [])
        return
    keys = [member.losses for member in best.front]
    assert keys == sorted(set(keys))
    assert not any(dominates(a, b) for a in keys for b in keys)
    for result in several:
        assert result.losses in keys or any(dominates(key, result.losses) for key in keys)
    found = {(t.number, r.resource, r.losses) for t in state.trials for r in t.all_results}
    assert all((member.trial, member.resource, member.losses) in found for member in best.front)
