"""Studies of Optuna's as recorded ones: results, warm starts, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from hpo_core.cli.app import app
from hpo_core.home import Home
from hpo_core.model.errors import HpoError, SpecError, StudyExistsError
from hpo_core.replay.past_results import with_past
from hpo_core.study import Study
from hpo_core.tracking.optuna_import import import_study
from tests.conftest import make_spec

Float = optuna.distributions.FloatDistribution


@pytest.fixture
def url(tmp_path: Path) -> str:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return f"sqlite:///{tmp_path / 'theirs.db'}"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def optimized(storage: Any, *, trials: int = 15, **more: Any) -> optuna.Study:
    """A plain study of Optuna's: steps from 0, a condition, choices, pruning, a failure."""
    study = optuna.create_study(
        storage=storage, study_name="theirs", sampler=optuna.samplers.RandomSampler(seed=1),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2), **more,
    )  # fmt: skip

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 1e-3, 1, log=True)
        kind = trial.suggest_categorical("kind", ["a", "b", None])
        depth = trial.suggest_int("depth", 1, 4) if kind == "a" else 0
        if trial.number == 3:
            raise ArithmeticError
        for step in range(9):
            trial.report(x + depth / (step + 1), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return x

    study.optimize(objective, n_trials=trials, catch=ArithmeticError)
    return study


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_plain_study_from_a_journal_file(tmp_path: Path, home: Home, direction: str) -> None:
    file = tmp_path / "journal.log"
    backend = optuna.storages.journal.JournalFileBackend(str(file))
    theirs = optimized(optuna.storages.JournalStorage(backend), direction=direction)
    found = import_study(home, str(file), "theirs", metrics=["score"])
    assert found.left_out == {"FAIL": 1} and found.resource == 9  # step 0 is the first unit
    journal = home.read_journal()
    study = Study.open("theirs", journal, reading=True)
    assert study.spec.metric.mode == direction[:3]
    kept = [trial for trial in theirs.trials if trial.state is not TrialState.FAIL]
    for mine, trial in zip(study.state.trials, kept, strict=True):
        assert mine.params == trial.params and mine.resource == len(trial.intermediate_values)
        assert mine.loss == (-1 if direction == "maximize" else 1) * trial.value  # type: ignore[operator]
    spec = make_spec(
        metric={"name": "score", "mode": direction[:3]},
        space={"x": {"type": "float", "low": 1e-3, "high": 1}},
        warm_start={"studies": ["theirs"]},
    )
    warm = with_past(spec, journal).warm_start
    assert warm is not None and warm.proposals is not None and len(warm.proposals) == 3
    with pytest.raises(SpecError, match=r"study 'theirs' optimizes score \("):
        with_past(make_spec(warm_start={"studies": ["theirs"]}), journal)


def test_values_that_are_no_numbers_and_several_metrics(url: str, home: Home) -> None:
    one = optuna.create_study(storage=url, study_name="one")
    for number, values in enumerate(({1: 0.5, 2: math.nan}, {1: math.inf}, {1: 0.25, 2: 0.125})):
        state = TrialState.COMPLETE if number == 2 else TrialState.PRUNED
        one.add_trial(
            create_trial(
                state=state, value=0.125 if number == 2 else None, params={"x": number / 4},
                distributions={"x": Float(0, 1)}, intermediate_values=values,
            )
        )  # fmt: skip
    import_study(home, url, "one")
    state = Study.open("one", home.read_journal(), reading=True).state
    assert [[result.loss for result in trial.results] for trial in state.trials] == [[None], [None], [0.125]]
    two = optuna.create_study(storage=url, study_name="two", directions=["minimize", "maximize"])
    two.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 1.0), n_trials=3)
    assert import_study(home, url, "two", metrics=["size", "acc"]).metrics == ["size", "acc"]
    found = Study.open("two", home.read_journal(), reading=True)
    assert [metric.mode for metric in found.spec.objectives] == ["min", "max"] and len(found.front) == 1
    with pytest.raises(SpecError, match="has 2 values, and 1 names"):
        import_study(home, url, "two", metrics=["size"], name="three")


def test_ranges_that_move_and_kinds_that_do(url: str, home: Home) -> None:
    study = optuna.create_study(storage=url, study_name="moving")
    for low, high in ((0, 1), (-1, 0.5)):
        study.add_trial(create_trial(value=1.0, params={"x": 0.25}, distributions={"x": Float(low, high)}))
    import_study(home, url, "moving")
    assert Study.open("moving", home.read_journal(), reading=True).spec.plain()["space"]["x"]["low"] == -1
    memory = optuna.create_study()
    memory.add_trial(
        create_trial(value=1.0, params={"x": 1}, distributions={"x": optuna.distributions.IntDistribution(0, 1)})
    )
    from hpo_core.tracking.optuna_import import _space

    with pytest.raises(SpecError, match="'x' has two kinds of values"):
        _space([*study.trials, *memory.trials])


def test_refused(url: str, home: Home, tmp_path: Path) -> None:
    optuna.create_study(storage=url, study_name="empty")
    with pytest.raises(HpoError, match="no trial with a result"):
        import_study(home, url, "empty")
    with pytest.raises(HpoError, match=r"has no study 'absent'; it has empty"):
        import_study(home, url, "absent")
    with pytest.raises(HpoError, match="no such file"):
        import_study(home, f"sqlite:///{tmp_path / 'nothing.db'}", "x")
    assert not (tmp_path / "nothing.db").exists()
    (tmp_path / "text.log").write_text("no journal\n")
    with pytest.raises(HpoError, match="has no study 'x'"):
        import_study(home, str(tmp_path / "text.log"), "x")
    with pytest.raises(HpoError, match="cannot be read as an Optuna storage") as caught:
        import_study(home, "postgresql+psycopg://me:secret-word@127.0.0.1:1/db", "x")
    assert "secret-word" not in str(caught.value)
    journal = home.open_journal()
    Study.create(make_spec(study="taken"), journal)
    journal.close()
    with pytest.raises(StudyExistsError, match="another name"):
        import_study(home, url, "empty", name="taken")


def test_on_the_command_line(url: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    optimized(url)
    run = CliRunner()
    place = ["--home", str(tmp_path / "home")]
    found = run.invoke(app, ["import", "theirs", "--from-optuna", url, "--metric", "loss", "--json", *place])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["trials"] == 14
    shown = run.invoke(app, ["show", "theirs", *place])
    assert shown.exit_code == 0 and "loss" in shown.output and "Dask workers" not in shown.output
    for wrong in (["import"], ["import", "--from-optuna", url], ["import", "x", "--from-mlflow", "y"]):
        assert run.invoke(app, [*wrong, *place]).exit_code != 0
