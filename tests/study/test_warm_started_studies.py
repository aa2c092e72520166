"""Studies that begin from what earlier ones found: who is tried first, what samplers see, what audit says."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

from hpo_core import MemoryJournal, Study, StudySpec
from hpo_core.model.errors import SpecError, StudyNotFoundError
from hpo_core.optuna.optuna_sampler import OptunaSampler
from hpo_core.replay.audit import audit
from hpo_core.replay.past_results import with_past
from hpo_core.replay.rerun import rerun_spec
from hpo_core.samplers.sampler import WarmStarted
from tests.conftest import World, fresh, make_spec, played

SMALL = {"method": "asha", "configs": 12, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}


class Drifted(World):
    """The same world on other data: every loss is larger by 5."""

    def loss(self, job: Any, resource: int | None = None) -> float:
        return super().loss(job, resource) + 5.0


def earlier(*names: str) -> MemoryJournal:
    journal = MemoryJournal()
    for seed, name in enumerate(names):
        World(seed).play(fresh(make_spec(study=name, seed=seed, search=SMALL), journal))
    return journal


def warm(journal: MemoryJournal, *studies: str, sampler: str = "random", **changes: Any) -> StudySpec:
    settings = {"studies": list(studies), **changes.pop("warm", {})}
    spec = make_spec(study="new", seed=9, search=SMALL, sampler={"name": sampler}, warm_start=settings, **changes)
    return with_past(spec, journal)


def test_incumbents_of_earlier_studies_are_tried_first() -> None:
    journal = earlier("a", "b")
    spec = warm(journal, "b", "a")
    study = fresh(spec, journal)
    World(5).play(study)
    best = [Study.open(name, journal, reading=True) for name in ("b", "a")]
    assert all(old.best is not None for old in best)
    assert [t.params for t in study.state.trials[:2]] == [old.state.trials[old.best.trial].params for old in best]  # type: ignore[union-attr]
    cold = played(make_spec(study="cold", seed=9, search=SMALL), World(5))
    assert study.state.trials[5].params == cold.state.trials[5].params, "the sampler goes on as it would have"


@pytest.mark.parametrize("sampler", ["random", "ranked_gp", "TPESampler"])
def test_audit_and_replay_of_a_warm_started_study(sampler: str) -> None:
    journal = earlier("a")
    study = fresh(warm(journal, "a", sampler=sampler), journal)
    World(5).play(study)
    report = audit(journal.entries("new"))
    assert report.clean and report.sampler_checked == (sampler == "random")
    again = Study.open("new", journal)
    assert [t.params for t in again.state.trials] == [t.params for t in study.state.trials]
    assert isinstance(again.sampler, WarmStarted)


def test_losses_of_other_data_are_shifted_by_what_was_trained_on_both() -> None:
    journal = earlier("a")
    study = fresh(warm(journal, "a", sampler="TPESampler"), journal)
    Drifted(5).play(study)
    assert isinstance(study.sampler, WarmStarted) and isinstance(study.sampler.sampler, OptunaSampler)
    shown = study.sampler.sampler._study.get_trials(deepcopy=False)
    past = len(study.spec.warm_start.past)
    assert past >= 3 and len(shown) == past + 12
    old = [t.value for t in shown[:past] if t.state == optuna.trial.TrialState.COMPLETE]
    new = [t.value for t in shown[past:] if t.state == optuna.trial.TrialState.COMPLETE]
    assert old and new and min(old) > 5.0, "without the shift no new result could look good beside them"


def test_a_parameter_with_one_choice_moves_configurations_to_new_data() -> None:
    journal = earlier("a")
    plain = make_spec().plain()["space"] | {"data": {"type": "categorical", "choices": ["new.npz"]}}
    spec = warm(journal, "a", space=plain)
    assert spec.warm_start is not None and spec.warm_start.proposals
    assert {p["data"] for p in spec.warm_start.proposals} == {"new.npz"}
    narrow = make_spec().plain()["space"] | {"x": {"type": "float", "low": 0.0, "high": 1e-9}}
    none = warm(journal, "a", space=narrow).warm_start
    assert none is not None and none.proposals == [], "what lies outside the space is not proposed"


def test_what_cannot_be_is_refused() -> None:
    journal = earlier("a")
    with pytest.raises(SpecError, match=r"study 'a' optimizes loss \(min\), the new one gain \(max\)"):
        warm(journal, "a", metric={"name": "gain", "mode": "max"})
    with pytest.raises(StudyNotFoundError):
        warm(journal, "b")
    with pytest.raises(SpecError, match="nothing was read from there yet"):
        Study.create(make_spec(warm_start={"studies": ["a"]}))
    with pytest.raises(SpecError, match="search grid says itself"):
        make_spec(warm_start={"studies": ["a"]}, search={"method": "grid", "points": {"x": 2, "d": 2}})


def test_a_rerun_of_a_warm_started_study_follows_its_record_alone() -> None:
    journal = earlier("a")
    World(5).play(fresh(warm(journal, "a"), journal))
    spec = rerun_spec(list(journal.entries("new")), "again")
    assert spec.warm_start is None
    again = played(spec, World(6))
    new = Study.open("new", journal, reading=True)
    assert [t.params for t in again.state.trials] == [t.params for t in new.state.trials]
