"""What every sampler promises: ours, and Optuna's through the oracle."""

from __future__ import annotations

import warnings

import optuna
import pytest

from hpo_core import MemoryJournal, Study
from hpo_core.samplers.optuna import CounterRandomSampler, OptunaSampler
from tests.conftest import World, fresh, make_spec

SAMPLERS = [
    {"name": "random"},
    {"name": "RandomSampler"},
    {"name": "TPESampler", "n_startup_trials": 5},
    {"name": "CmaEsSampler", "warn_independent_sampling": False},
    {"name": "GPSampler", "n_startup_trials": 5},
    {"name": "QMCSampler", "warn_independent_sampling": False},
    {"name": "NSGAIISampler", "population_size": 5},
]


@pytest.fixture(params=SAMPLERS, ids=lambda s: str(s["name"]))
def sampler(request: pytest.FixtureRequest) -> dict[str, object]:
    return dict(request.param)


def play(sampler: dict[str, object], journal: MemoryJournal, steps: int | None = None) -> Study:
    world = World(3, failures=0.05, nans=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        configs = 14 if sampler["name"] == "GPSampler" else 30  # a GP proposal takes half a second
        search = {"method": "asha", "configs": configs, "max_resource": 9, "reduction_factor": 3}
        study = fresh(make_spec(sampler=sampler, search=search), journal, world)
        world.play(study, steps=steps)
    return study


def test_proposals_are_inside_the_space(sampler: dict[str, object]) -> None:
    study = play(sampler, MemoryJournal())
    space = study.spec.search_space()
    assert study.status == "finished"
    for trial in study.state.trials:
        assert space.complaints(trial.params) == []


def test_same_history_gives_the_same_proposals(sampler: dict[str, object]) -> None:
    one, two = play(sampler, MemoryJournal()), play(sampler, MemoryJournal())
    assert [t.params for t in one.state.trials] == [t.params for t in two.state.trials]


def test_resumed_study_does_not_repeat_configurations(sampler: dict[str, object]) -> None:
    journal = MemoryJournal()
    study = play(sampler, journal, steps=10)
    again = Study.open("world", journal)
    again.recover("next")
    world = World(4)
    world.play(again)
    params = [repr(trial.params) for trial in again.state.trials]
    old, new = params[: len(study.state.trials)], params[len(study.state.trials) :]
    assert old[:3] != new[:3], "the sampler began its sequence anew"
    if sampler["name"] != "GPSampler":  # a GP that found the optimum at a corner proposes it again
        assert sum(p in old for p in new) < len(new) / 2
    assert again.state.trials[: len(study.state.trials)][0].params == study.state.trials[0].params


def test_tpe_learns_and_beats_random() -> None:
    def median_x(name: str) -> float:
        found = []
        for seed in range(3):
            world = World(seed)
            study = fresh(
                make_spec(sampler={"name": name}, seed=seed, search={"method": "random", "configs": 40}), world=world
            )
            world.play(study)
            found += sorted(t.params["x"] for t in study.state.trials[20:])
        return sorted(found)[len(found) // 2]

    assert median_x("TPESampler") < 0.5 * median_x("random")


def test_gp_learns_from_the_highest_rung_with_enough_results() -> None:
    study = play({"name": "GPSampler"}, MemoryJournal())
    assert isinstance(study.sampler, OptunaSampler)
    shown = study.sampler._study.get_trials(deepcopy=False)
    complete = [t for t in shown if t.state == optuna.trial.TrialState.COMPLETE]
    assert len(complete) >= 3
    levels = {len(t.intermediate_values) for t in complete}
    assert min(levels) >= 2, "trials of the base rung alone are not the model's data any more"


def test_ours_in_plain_optuna() -> None:
    def objective(trial: optuna.Trial) -> float:
        trial.suggest_categorical("c", ["a", "b"])
        trial.suggest_int("n", 1, 64, log=True)
        return trial.suggest_float("x", 0.0, 1.0)

    def params(seed: int) -> list[dict[str, object]]:
        study = optuna.create_study(sampler=CounterRandomSampler(seed=seed))
        study.optimize(objective, n_trials=10)
        return [trial.params for trial in study.trials]

    assert params(1) == params(1) != params(2)
