"""Every sampler, ours and Optuna's: the contract, and what Optuna's samplers are shown."""

from __future__ import annotations

import warnings

import optuna
import pytest

from hpo_core import Job, MemoryJournal, Outcome, Report, Study
from hpo_core.samplers.optuna_sampler import OptunaSampler
from tests.conftest import World, failed, fresh, make_spec
from tests.contract_suites.sampler_contract import SamplerContract

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


def play_two(sampler: dict[str, object], journal: MemoryJournal, **changes: object) -> Study:
    world = TwoLosses(3, failures=0.05, nans=0.05)
    search = {"method": "asha", "configs": 30, "max_resource": 9, "reduction_factor": 3}
    metrics = [{"name": "loss"}, {"name": "speed", "mode": "max"}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = make_spec(**{"sampler": sampler, "metric": metrics[0], "metrics": metrics, "search": search} | changes)
        study = fresh(spec, journal, world)
        world.play(study)
    return study


@pytest.mark.parametrize("sampler", [{"name": "random"}, {"name": "TPESampler", "n_startup_trials": 5}], ids=str)
def test_a_study_with_several_objectives_is_reproducible_and_can_be_extended(sampler: dict[str, object]) -> None:
    journal = MemoryJournal()
    study = play_two(sampler, journal)
    assert study.status == "finished" and len(study.front) > 1
    space = study.spec.search_space()
    assert all(space.complaints(trial.params) == [] for trial in study.state.trials)
    assert [t.params for t in play_two(sampler, MemoryJournal()).state.trials] == [t.params for t in study.state.trials]
    again = Study.open("world", journal)
    again.recover("next")
    again.set_capacity(4)
    again.extend(10)
    TwoLosses(4).play(again, again.state.wanted())
    new = [repr(t.params) for t in again.state.trials[30:]]
    assert len(new) == 10 and not set(new) <= {repr(t.params) for t in study.state.trials}


def test_optuna_is_shown_complete_trials_of_one_rung_for_several_objectives() -> None:
    study = play_two({"name": "TPESampler", "n_startup_trials": 6}, MemoryJournal())
    assert isinstance(study.sampler, OptunaSampler)
    results = [{r.resource: r for r in trial.results} for trial in study.state.trials]
    level = max(r for r in (1, 3, 9) if sum(r in found and found[r].loss is not None for found in results) >= 6)
    assert level > 1
    for found, shown in zip(results, study.sampler._study.get_trials(deepcopy=False), strict=True):
        finite = level in found and found[level].losses
        assert (shown.state == optuna.trial.TrialState.COMPLETE) == bool(finite)
        assert not finite or tuple(shown.values) == found[level].losses


def test_tpe_is_shown_pruned_trials_if_the_study_has_no_maximum_resource() -> None:
    world = World(3)
    search = {"method": "asha", "configs": 30, "reduction_factor": 3}
    study = fresh(make_spec(sampler={"name": "TPESampler", "n_startup_trials": 5}, search=search), world=world)
    world.play(study)
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
