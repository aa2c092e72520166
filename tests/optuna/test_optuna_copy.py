"""Studies copied into real Optuna storages: what they show, repetition, crashes, what goes on after its end."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from hpo_core.home import Home
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.spec import load_spec
from hpo_core.study import Study
from hpo_core.tracking.copy_progress import in_trouble
from hpo_core.tracking.follower import Follower, TrackerError, project_all, project_study
from hpo_core.tracking.optuna_projection import OptunaProjection
from hpo_core.tracking.projection import ProjectionBusyError
from tests.conftest import make_spec
from tests.methods import SEARCHES
from tests.mlflow.test_mlflow import NAME, Clock, bad, entries_of, good, play, start

State = TrialState


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'optuna.db'}"


def copied(
    study: Study, folder: Path, *, finish: bool = True, storage: optuna.storages.BaseStorage | None = None
) -> optuna.Study:
    projection = OptunaProjection(study.name, url_of(folder), folder / "study", storage=storage)
    project_all(projection, study.journal, study.seq)
    if finish:
        projection.finish()
    name = projection.copy_name
    projection.close()
    return optuna.load_study(study_name=name, storage=storage or url_of(folder))


def memory() -> optuna.storages.InMemoryStorage:
    """Quicker than a database, with the same rules."""
    return optuna.storages.InMemoryStorage()


def picture(study: optuna.Study) -> list[Any]:
    """All that a user of Optuna can see, but for the time at which a running trial ended there."""
    trials = [
        (t.number, t.state, repr(t.values), t.params, t.distributions, t.user_attrs, t.system_attrs,
         repr(t.intermediate_values), t.datetime_start)
        for t in study.get_trials()
    ]  # fmt: skip
    return [study.directions, study.metric_names, study.user_attrs, trials]


def test_a_finished_study(tmp_path: Path) -> None:
    study = play(*start(MemoryJournal(), configs=8))
    found = copied(study, tmp_path)
    assert found.study_name == NAME and found.metric_names == ["val_loss"]
    assert len(found.trials) == len(study.state.trials) == 8
    for trial, record in zip(found.trials, study.state.trials, strict=True):
        assert trial.number == trial.user_attrs["hpo.trial"] == record.number
        assert trial.params == record.params
        assert trial.user_attrs["hpo.results"] == [result.resource for result in record.results]
        assert trial.user_attrs["acc"] == record.results[-1].metrics["acc"]
        assert sorted(trial.intermediate_values) == list(range(1, record.resource + 1))
        for result in record.results:
            assert trial.intermediate_values[result.resource] == result.loss
        assert trial.state is (State.COMPLETE if record.resource == 4 else State.PRUNED)
        assert trial.value == record.loss
    assert {trial.state for trial in found.trials} == {State.COMPLETE, State.PRUNED}
    assert found.best_value == min(t.loss for t in study.state.trials if t.resource == 4 and t.loss is not None)
    assert study.best is not None and found.user_attrs["hpo.best_value"] == study.best.loss
    assert found.user_attrs["hpo.status"] == "finished"
    lr = found.trials[0].distributions["lr"]
    assert lr == optuna.distributions.FloatDistribution(1e-4, 1.0, log=True)
    for plot in ("plot_optimization_history", "plot_intermediate_values", "plot_parallel_coordinate", "plot_slice"):
        assert getattr(optuna.visualization, plot)(found).data


def test_paused_trials_run_until_the_study_has_ended(tmp_path: Path) -> None:
    study, clock = start(MemoryJournal(), configs=8)
    play(study, clock, jobs=6)
    place = memory()
    while_it_runs = copied(study, tmp_path, finish=False, storage=place)
    paused = [t.number for t in study.state.trials if t.status == "paused" and t.resource < 4]
    assert paused and all(while_it_runs.trials[number].state is State.RUNNING for number in paused)
    assert all(while_it_runs.trials[number].intermediate_values for number in paused)
    interrupted = copied(study, tmp_path, storage=place)  # nobody drives it, and it can be resumed
    assert interrupted.trials[paused[0]].state is State.RUNNING
    assert interrupted.user_attrs["hpo.status"] == "interrupted"
    play(study, clock)
    assert not [t for t in copied(study, tmp_path, storage=place).trials if t.state is State.RUNNING]


def test_any_number_of_attempts_makes_the_same_copy(tmp_path: Path) -> None:
    """Also ones that were cut short after any call."""
    study = play(*start(MemoryJournal(), configs=6))
    once = picture(copied(study, tmp_path / "once", storage=memory()))
    entries = entries_of(study)
    cut = Cut()
    attempts = 0
    projection = OptunaProjection(NAME, "cut", tmp_path / "study", storage=cut)  # type: ignore[arg-type]
    for length in (5, 12, len(entries)):
        while True:
            attempts += 1
            cut.left = 1 + attempts % 3
            if attempts % 2:  # also by a process that knows nothing
                projection.close()
                projection = OptunaProjection(NAME, "cut", tmp_path / "study", storage=cut)  # type: ignore[arg-type]
            try:
                projection.project(entries[projection.next_seq : length])
                projection.finish()
                break
            except InterruptedError:
                pass
            assert attempts < 1000
    projection.close()
    assert attempts > 20
    assert picture(optuna.load_study(study_name=NAME, storage=cut.storage)) == once


class Cut:
    """A storage whose process dies after so many writes."""

    def __init__(self) -> None:
        self.storage = memory()
        self.left = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.storage, name)
        if not name.startswith(("set_", "create_", "delete_")):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.left:
                raise InterruptedError(name)
            self.left -= 1
            return found(*args, **kwargs)

        return call


@pytest.mark.parametrize("search", ["asha", "asha-brackets", "stopping", "hyperband", "pasha", "pbt", "random"])
def test_methods(search: str, tmp_path: Path) -> None:
    """Step by step as in one go, and every trial has ended."""
    study, clock = start(MemoryJournal(), search=SEARCHES[search])
    place = memory()
    projection = OptunaProjection(NAME, "memory", tmp_path / "study", storage=place)
    while not study.finished:
        play(study, clock, jobs=7)
        project_all(projection, study.journal, study.seq)
    projection.finish()
    projection.close()
    found = optuna.load_study(study_name=NAME, storage=place)
    assert picture(found) == picture(copied(study, tmp_path / "once", storage=memory()))
    assert picture(study.to_optuna())[0] == picture(found)[0]
    assert picture(study.to_optuna())[3] == picture(found)[3]
    assert all(trial.state.is_finished() for trial in found.trials)
    complete = [trial for trial in found.trials if trial.state is State.COMPLETE]
    highest = max(record.resource for record in study.state.trials)
    assert complete and {trial.user_attrs["hpo.resource"] for trial in complete} == {highest}
    if study.state.has_members:
        children = [trial for trial in found.trials if "hpo.parent" in trial.user_attrs]
        assert children and all(min(t.intermediate_values) > study.state.trials[t.number].base for t in children)
        assert all({"hpo.member", "hpo.generation"} <= trial.user_attrs.keys() for trial in found.trials)


def test_failures_and_values_that_are_no_numbers(tmp_path: Path) -> None:
    def train(job: Job, clock: Clock) -> Report:
        if job.trial == 1:
            return bad(job, clock, Outcome.ERROR)
        found = good(job, clock)
        if job.trial == 2:
            return Report(trial=2, attempt=job.attempt, outcome=Outcome.COMPLETED, metrics={"val_loss": math.inf})
        return found

    study = play(*start(MemoryJournal(), configs=4), train)
    found = copied(study, tmp_path)
    assert found.trials[1].state is State.FAIL and found.trials[1].user_attrs["hpo.abandoned"]
    assert found.trials[1].intermediate_values == {1: 99.0}
    diverged = found.trials[2]
    assert diverged.state is State.PRUNED and diverged.value is None
    assert list(map(math.isnan, diverged.intermediate_values.values())) == [True]
    assert copied(study, tmp_path).trials[2].state is State.PRUNED  # NaN is no difference
    assert optuna.visualization.plot_intermediate_values(found).data


def test_several_objectives_constraints_and_maximize(tmp_path: Path) -> None:
    def train(job: Job, clock: Clock) -> Report:
        x = job.params["lr"]
        metrics = {"acc": 1 - x, "size": x * job.target, "late": x - 0.5}
        return Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.COMPLETED, metrics=metrics)

    metrics = [{"name": "acc", "mode": "max"}, {"name": "size"}]
    study = play(*start(MemoryJournal(), metric=metrics[0], metrics=metrics, constraints=["late"], configs=6), train)
    found = copied(study, tmp_path, storage=memory())
    assert [direction.name for direction in found.directions] == ["MAXIMIZE", "MINIMIZE"]
    for trial, record in zip(found.trials, study.state.trials, strict=True):
        last = record.results[-1].metrics
        assert trial.values == [last["acc"], last["size"]]
        assert trial.system_attrs["constraints"] == [last["late"]]
        assert "acc" not in trial.user_attrs and trial.user_attrs["late"] == last["late"]
    assert found.best_trials
    assert optuna.visualization.plot_pareto_front(found).data


def test_a_study_that_goes_on_after_its_end_is_copied_anew(tmp_path: Path) -> None:
    study, clock = start(MemoryJournal(), configs=4, stop={"total_resource": 6})
    play(study, clock)
    place = memory()
    assert study.status == "halted"
    before = copied(study, tmp_path, storage=place)
    assert not [t for t in before.trials if t.state is State.RUNNING]
    assert before.best_value == min(t.loss for t in study.state.trials if t.resource == max(
        u.resource for u in study.state.trials) and t.loss is not None)  # fmt: skip
    study.recover("another")
    play(study, clock)
    after = copied(study, tmp_path, storage=place)
    assert picture(after) == picture(copied(study, tmp_path / "once", storage=memory()))
    assert len(place.get_all_studies()) == 1


def test_an_older_journal_and_a_deleted_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = memory()
    study, clock = start(MemoryJournal(), configs=8)
    play(study, clock, jobs=3)
    older = MemoryJournal()
    first, *more = entries_of(study)
    older.create(NAME, first)
    for entry in more:
        older.append(NAME, entry)
    play(study, clock)
    copied(study, tmp_path, storage=place)
    again = Study.open(NAME, older)
    found = copied(again, tmp_path, storage=place)
    assert "An older journal was put back" in caplog.text
    assert len(found.trials) == len(again.state.trials) < 8
    # deleted by hand, while a follower that has copied it lives on
    projection = OptunaProjection(NAME, "memory", tmp_path / "study", storage=place)
    follower = Follower(study.journal, projection)
    assert follower.advance()
    optuna.delete_study(study_name=NAME, storage=place)
    follower.advance(finish=True)
    assert follower.advance(finish=True)
    projection.close()
    assert len(optuna.load_study(study_name=NAME, storage=place).trials) == 8


def test_another_study_of_that_name_is_left_alone(tmp_path: Path) -> None:
    theirs = optuna.create_study(storage=url_of(tmp_path), study_name=NAME)
    theirs.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    study = play(*start(MemoryJournal(), configs=2))
    found = copied(study, tmp_path)
    assert found.study_name == f"{NAME} (2026-01-01 00:00:00 UTC)"
    assert copied(study, tmp_path).study_name == found.study_name
    assert len(optuna.load_study(study_name=NAME, storage=url_of(tmp_path)).trials) == 2


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "optuna.db") as database:
        database.execute("create table alembic_version (version_num text)")
    database.close()
    study = play(*start(MemoryJournal(), configs=1))
    with pytest.raises(HpoError, match=r"holds tables of something else \(alembic_version"):
        copied(study, tmp_path)


@pytest.mark.slow
def test_a_locked_database_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpo_core.tracking.optuna_projection._SECONDS", 0.1)
    study, clock = start(MemoryJournal(), configs=4)
    play(study, clock, jobs=2)
    copied(study, tmp_path, finish=False)
    projection = OptunaProjection(NAME, url_of(tmp_path), tmp_path / "study")
    follower = Follower(study.journal, projection)
    play(study, clock)
    other = sqlite3.connect(tmp_path / "optuna.db", isolation_level=None)
    other.execute("begin exclusive")
    assert not follower.advance(finish=True)
    assert "locked" in follower.trouble
    assert in_trouble(tmp_path / "study", "Optuna")
    other.execute("rollback")
    other.close()
    assert follower.advance(finish=True)
    projection.close()
    assert not in_trouble(tmp_path / "study", "Optuna")
    assert {t.state for t in optuna.load_study(study_name=NAME, storage=url_of(tmp_path)).trials} <= {
        State.COMPLETE, State.PRUNED,
    }  # fmt: skip


def test_one_process_at_a_time(tmp_path: Path) -> None:
    study = play(*start(MemoryJournal(), configs=1))
    first = OptunaProjection(NAME, url_of(tmp_path), tmp_path / "study")
    project_all(first, study.journal, study.seq)
    with pytest.raises(ProjectionBusyError):
        copied(study, tmp_path)
    first.close()


def test_by_hand_beside_mlflow_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    journal = home.open_journal()
    study = play(*start(journal, configs=2, top=1, tracking={"mlflow": "off", "optuna": "on"}))
    path = home.folder / "optuna.db"
    assert project_study(home, journal, NAME) == (
        f"{NAME}: {study.seq} new entries of {study.seq} copied; optuna-dashboard sqlite:///{path}"
    )
    assert "0 new entries" in project_study(home, journal, NAME)
    assert f"{study.seq} new entries" in project_study(home, journal, NAME, rebuild=True)
    assert len(optuna.load_study(study_name=NAME, storage=f"sqlite:///{path}").trials) == 2
    monkeypatch.setenv("HPO_OPTUNA_STORAGE", "postgresql+psycopg://me:secret-word@127.0.0.1:1/db")
    with pytest.raises(TrackerError, match="was not copied to Optuna at postgresql") as caught:
        project_study(home, journal, NAME)
    assert "secret-word" not in str(caught.value)
    monkeypatch.setenv("HPO_OPTUNA_STORAGE", home.journal_url)
    with pytest.raises(SpecError, match="is the database of the journal or of MLflow"):
        project_study(home, journal, NAME)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("postgresql://me:pw@h/db", "holds a user or a password"),
        ("mysql+pymysql://h/db?password=pw", "holds a user or a password"),
        ("http://h:8080", "no database URL"),
        ("optuna.db", "no database URL"),
        ("sqlite:///:memory:", "no database URL"),
        ("", "no database URL"),
    ],
)
def test_storages_that_are_refused(url: str, what: str) -> None:
    with pytest.raises(SpecError, match=what) as caught:
        make_spec(tracking={"optuna": url})
    assert ":pw@" not in str(caught.value) and "=pw" not in str(caught.value)


def test_in_a_study_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(json.dumps(make_spec(tracking={"optuna": "sqlite:///copies.db"}).plain()))
    assert load_spec(tmp_path / "a.yaml").tracking.optuna == f"sqlite:///{tmp_path / 'copies.db'}"
    found = load_spec(tmp_path / "a.yaml", ["tracking.optuna=on"]).tracking.optuna
    assert found == "on"


def test_a_deployment_takes_its_own_storage_and_those_that_are_allowed() -> None:
    from hpo_flows.deployed.permissions import NotAllowedError, Permissions

    own, listed, other = "sqlite:////srv/own.db", "postgresql+psycopg://h/optuna", "sqlite:////srv/other.db"
    settings = {"HPO_OPTUNA_STORAGE": own, "HPO_ALLOWED_TRACKING": listed}
    permissions = Permissions.of_environment(settings)
    for storage in (None, "on", "off", own, listed):
        permissions.check_tracking(make_spec(tracking={"optuna": storage}))
    for storage in (other, "postgresql+psycopg://elsewhere/optuna", "postgresql+psycopg://h/optuna?options=x"):
        with pytest.raises(NotAllowedError, match=r"tracking\.optuna = .* is not allowed here"):
            permissions.check_tracking(make_spec(tracking={"optuna": storage}))
