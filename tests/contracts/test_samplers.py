"""Every sampler: the contract, what Optuna's are shown, and that finite ones end the study."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import optuna
import pytest

from hpo_core import Job, Outcome, Report, Study
from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.optuna.optuna_sampler import OptunaSampler, optuna_samplers
from hpo_core.replay.audit import audit
from hpo_core.views.summary import summarize
from tests.conftest import World, failed, make_spec, played
from tests.contract_suites.sampler_contract import SamplerContract
from tests.methods import SEARCHES

SAMPLERS = [
    {"name": "random"},
    {"name": "ranked_gp", "n_startup_trials": 5},
    {"name": "TPESampler", "n_startup_trials": 5},
    {"name": "CmaEsSampler", "warn_independent_sampling": False},
    {"name": "GPSampler", "n_startup_trials": 5},
    {"name": "QMCSampler", "warn_independent_sampling": False},
    {"name": "NSGAIISampler", "population_size": 5},
]


class TestSamplers(SamplerContract):
    @pytest.fixture(params=SAMPLERS, ids=lambda s: str(s["name"]))
    def sampler_settings(self, request: pytest.FixtureRequest) -> dict[str, object]:
        return dict(request.param)

    def configs(self, sampler_settings: dict[str, object]) -> int:
        return 12 if sampler_settings["name"] == "GPSampler" else 30  # a GP proposal takes half a second

    def may_repeat(self, sampler_settings: dict[str, object]) -> bool:
        return sampler_settings["name"] == "GPSampler"  # one that found the optimum at a corner proposes it again


def test_gp_is_shown_the_highest_rung_with_enough_results() -> None:
    study = TestSamplers().play({"name": "GPSampler", "n_startup_trials": 5})
    assert isinstance(study.sampler, OptunaSampler)
    shown = study.sampler._study.get_trials(deepcopy=False)
    complete = [t for t in shown if t.state == optuna.trial.TrialState.COMPLETE]
    assert len(complete) >= 3
    levels = {len(t.intermediate_values) for t in complete}
    assert min(levels) >= 2, "trials of the base rung alone are not the model's data any more"


class TwoLosses(World):
    """The second metric is best where the first one is worst, but both want a small x."""

    def report(self, job: Job) -> Report:
        found = super().report(job)
        if found.outcome is not Outcome.COMPLETED:
            return found
        size = float(job.params.get("d", 8))
        metrics = {"loss": found.metrics["loss"] + size / 64, "speed": size / 64 - float(job.params["x"])}
        return Report(trial=job.trial, attempt=job.attempt, outcome=found.outcome, metrics=metrics)


def play_two(sampler: dict[str, object]) -> Study:
    search = {"method": "asha", "configs": 30, "max_resource": 9, "reduction_factor": 3}
    metrics = [{"name": "loss"}, {"name": "speed", "mode": "max"}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = make_spec(sampler=sampler, metric=metrics[0], metrics=metrics, search=search)
        return played(spec, TwoLosses(3, failures=0.05, nans=0.05))


@pytest.mark.parametrize("sampler", [{"name": "random"}, {"name": "TPESampler", "n_startup_trials": 5}], ids=str)
def test_a_study_with_several_objectives_is_reproducible_and_can_be_extended(sampler: dict[str, object]) -> None:
    study = play_two(sampler)
    assert study.status == "finished" and len(study.front) > 1
    space = study.spec.search_space()
    assert all(space.complaints(trial.params) == [] for trial in study.state.trials)
    assert [t.params for t in play_two(sampler).state.trials] == [t.params for t in study.state.trials]
    again = Study.open("world", study.journal)
    again.recover("next")
    again.set_capacity(4)
    again.extend(10)
    TwoLosses(4).play(again, again.state.wanted())
    new = [repr(t.params) for t in again.state.trials[30:]]
    assert len(new) == 10 and not set(new) <= {repr(t.params) for t in study.state.trials}


def test_optuna_is_shown_complete_trials_of_one_rung_for_several_objectives() -> None:
    study = play_two({"name": "TPESampler", "n_startup_trials": 6})
    assert isinstance(study.sampler, OptunaSampler)
    results = [{r.resource: r for r in trial.results} for trial in study.state.trials]
    level = max(r for r in (1, 3, 9) if sum(r in found and found[r].loss is not None for found in results) >= 6)
    assert level > 1
    for found, shown in zip(results, study.sampler._study.get_trials(deepcopy=False), strict=True):
        finite = level in found and found[level].losses
        assert (shown.state == optuna.trial.TrialState.COMPLETE) == bool(finite)
        assert not finite or tuple(shown.values) == found[level].losses


def test_tpe_is_shown_pruned_trials_if_the_study_has_no_maximum_resource() -> None:
    search = {"method": "asha", "configs": 30, "reduction_factor": 3}
    study = played(make_spec(sampler={"name": "TPESampler", "n_startup_trials": 5}, search=search), World(3))
    assert study.status == "finished"
    assert isinstance(study.sampler, OptunaSampler)
    shown = study.sampler._study.get_trials(deepcopy=False)
    assert {trial.state for trial in shown} == {optuna.trial.TrialState.PRUNED}
    assert max(len(trial.intermediate_values) for trial in shown) >= 3


@pytest.mark.parametrize("constraints", [[], ["limit"]])
def test_tpe_learns_where_memory_runs_out(constraints: list[str]) -> None:
    def share(outcome: Outcome) -> float:
        sampler = {"name": "TPESampler", "n_startup_trials": 8}
        search = {"method": "random", "configs": 40}
        plain = {"sampler": sampler, "search": search, "constraints": constraints, "training": {"fail_fast": None}}
        study = Study.create(make_spec(**plain))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Optuna warns where a result lacks its constraints
            while (job := study.ask()) is not None:
                x = float(job.params["x"])
                if x < 0.5:
                    study.tell(job, {"loss": 1 - x, **dict.fromkeys(constraints, -1.0)})
                else:  # the better ones need more memory than there is
                    study.tell_report(failed(job, outcome))
        given_up = [trial for trial in study.state.trials if trial.abandoned is not None]
        assert all(len(trial.failures) == study.spec.training.allowed(outcome) + 1 for trial in given_up)
        return sum(trial.number >= 15 for trial in given_up) / 25

    assert share(Outcome.OUT_OF_MEMORY) < 0.6 * share(Outcome.ERROR)


SPACE = {
    "kind": {"type": "categorical", "choices": ["svm", "tree"]},
    "depth": {"type": "int", "low": 1, "high": 4, "when": {"kind": "tree"}},
    "x": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.5},
}
GRID = {"kind": ["svm", "tree"], "depth": [1, 2, 3, 4], "x": [0.0, 0.5, 1.0]}
ALL = [("svm", None, x) for x in GRID["x"]] + list(itertools.product(["tree"], [1, 2, 3, 4], GRID["x"]))
"""The 15 configurations; the grid of 24 points has those of ``svm`` four times each."""
FINITE: list[dict[str, Any]] = [{"name": "BruteForceSampler"}, {"name": "GridSampler", "search_space": GRID}]
METHODS = [name for name, search in SEARCHES.items() if search["method"] not in ("pbt", "grid")]


def tried(study: Study) -> list[Any]:
    return sorted(((t.params["kind"], t.params.get("depth"), t.params["x"]) for t in study.state.trials), key=repr)


def finite_study(sampler: dict[str, Any], search: dict[str, Any], world: World, steps: int | None = None) -> Study:
    return played(make_spec(sampler=sampler, space=SPACE, search=search), world, steps=steps)


def test_every_sampler_of_optuna_that_is_offered_runs_a_study() -> None:
    names = optuna_samplers()
    left = {"BaseSampler", "BaseGASampler", "PartialFixedSampler"}
    assert set(names) == {n for n in optuna.samplers.__all__ if n.endswith("Sampler")} - left
    for name in names:
        arguments = {"search_space": GRID} if name == "GridSampler" else {}
        search = {"method": "asha", "configs": 12, "max_resource": 9, "reduction_factor": 3}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = finite_study({"name": name, **arguments}, search, World(2))
        assert study.status == "finished" and len(study.state.trials) == 12, name
        assert max(trial.resource for trial in study.state.trials) == 9, name


@pytest.mark.parametrize("name", ["BaseGASampler", "PartialFixedSampler", "BaseSampler"])
def test_what_is_no_sampler_by_itself_is_refused_with_others(name: str) -> None:
    with pytest.raises(
        SpecError, match=rf"{name}' is not offered: .*; use random, ranked_gp, or one of Optuna's: BruteForce"
    ):
        make_spec(sampler={"name": name})


@pytest.mark.parametrize("sampler", FINITE, ids=lambda s: str(s["name"]))
@pytest.mark.parametrize("name", METHODS)
def test_a_study_ends_when_every_configuration_was_tried_once(name: str, sampler: dict[str, Any]) -> None:
    search = SEARCHES[name] | ({"configs": 40} if "configs" in SEARCHES[name] else {"rounds": 3})
    study = finite_study(sampler, search, World(5, failures=0.05, nans=0.05))
    assert study.status == "finished" and study.state.exhausted
    assert tried(study) == sorted(ALL, key=repr)
    assert summarize(study).reason == f"{sampler['name']} has no further configurations: all 15 were tried"
    assert sum(status.units for status in study.method.rungs()) == 0
    lines = [encode_entry(entry) for entry in study.journal.entries("world")]
    assert sum('"SamplerExhausted"' in line for line in lines) == 1
    assert audit(map(decode_entry, lines)).clean
    study.check()


@pytest.mark.parametrize("sampler", FINITE, ids=lambda s: str(s["name"]))
@pytest.mark.parametrize("steps", [1, 4, 9, 14, 17])
def test_a_restart_neither_repeats_nor_loses_a_configuration(sampler: dict[str, Any], steps: int) -> None:
    search = {"method": "asha", "max_resource": 9, "reduction_factor": 3, "configs": 30}
    study = finite_study(sampler, search, World(1), steps)
    again = Study.open("world", study.journal)
    again.recover("next")
    World(1).play(again)
    assert tried(again) == sorted(ALL, key=repr)
    assert audit(study.journal.entries("world")).clean


def test_an_exhausted_study_takes_no_further_configurations() -> None:
    study = finite_study(FINITE[1], {"method": "random", "configs": 50}, World(1))
    for known in (study, Study.open("world", study.journal)):
        assert not summarize(known).extendable
        with pytest.raises(HpoError, match="GridSampler has no further configurations; all 15 were tried"):
            known.extend(3)


def test_a_population_is_refused_a_finite_sampler() -> None:
    with pytest.raises(SpecError, match=r"BruteForceSampler has a finite list .* a population begins anew"):
        make_spec(sampler=FINITE[0], space=SPACE, search=SEARCHES["pbt"])


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({}, "says nothing of kind, depth, x"),
        (GRID | {"y": [1]}, "'y' is no parameter of the space"),
        (GRID | {"x": []}, "search_space.x = .* is no list of values"),
        (GRID | {"x": [0.0, 7.5]}, "search_space.x: 7.5 lies outside its range"),
        (GRID | {"x": [0.3]}, "search_space.x: 0.3 is off its steps"),
        (GRID | {"kind": ["svm", "bush"]}, "search_space.kind: 'bush' is none of its choices"),
    ],
)
def test_a_grid_has_the_values_of_the_space(grid: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        make_spec(sampler={"name": "GridSampler", "search_space": grid}, space=SPACE)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        ({"type": "float", "low": 0.0, "high": 1.0}, "x is float without a step"),
        ({"type": "int", "low": 0, "high": 10_000}, "at most about 200,000 points"),
    ],
)
def test_what_has_no_list_or_too_long_a_one_is_refused(x: dict[str, Any], says: str) -> None:
    n = {"type": "int", "low": 1, "high": 20}
    with pytest.raises(SpecError, match=says):
        make_spec(sampler={"name": "BruteForceSampler"}, space={"n": n, "x": x})
