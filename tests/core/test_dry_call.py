"""The space of an Optuna objective, written by calling it."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from hpo_core import StudySpec
from hpo_core.cli import app
from hpo_core.errors import ObjectiveError, SpecError
from hpo_core.training.dry_call import find_space

ROOT = Path(__file__).parents[2]


def layers(trial):
    """Conditions on a choice, on a choice below it, and on an integer; ends at its first report."""
    if trial.suggest_categorical("model", ["linear", "net", "forest"]) == "net":
        for layer in range(trial.suggest_int("layers", 1, 3)):
            trial.suggest_int(f"units_{layer}", 4, 128, log=True)
        if trial.suggest_categorical("optimizer", ["adam", "sgd"]) == "sgd":
            trial.suggest_float("momentum", 0, 0.9)
    trial.suggest_float("rate", 1e-4, 1, log=True)
    trial.report(0.0, 0)
    raise AssertionError("trained on")


def test_conditions_are_found():
    space, unclear = find_space(layers)
    assert unclear == []
    assert list(space) == ["model", "rate", "layers", "units_0", "optimizer", "units_1", "units_2", "momentum"]
    assert {name: description.get("when") for name, description in space.items()} == {
        "model": None, "rate": None, "layers": {"model": "net"}, "units_0": {"model": "net"},
        "optimizer": {"model": "net"}, "units_1": {"layers": [2, 3]}, "units_2": {"layers": 3},
        "momentum": {"optimizer": "sgd"},
    }  # fmt: skip


def test_what_one_parameter_does_not_explain_is_named():
    def objective(trial):
        a, b = (trial.suggest_categorical(name, [0, 1]) for name in "ab")
        if a or b:
            trial.suggest_float("x", 0, 1)
        return 0.0

    space, unclear = find_space(objective)
    assert unclear == ["x"] and "when" not in space["x"]


def test_one_name_with_two_ranges_is_refused():
    def objective(trial):
        trial.suggest_float("x", 0, 1 if trial.suggest_categorical("c", ["a", "b"]) == "a" else 2)

    with pytest.raises(ObjectiveError, match=r"'x' is suggested as .*high: 1.0}.*high: 2.0}"):
        find_space(objective)


def test_the_command_writes_what_a_study_takes(monkeypatch):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, ["space", "tests.flows.optuna_objectives:conditional"])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "space:"
    spec = StudySpec.from_plain(
        {"study": "s", "metric": {"name": "loss"}, "search": {"method": "random", "configs": 1}}
        | yaml.safe_load(done.stdout)
    )
    assert spec.space["momentum"].when == {"optimizer": "sgd"}


def test_the_command_says_what_it_cannot_find():
    result = CliRunner().invoke(app, ["space", "no.such.module:f"])
    assert isinstance(result.exception, SpecError)
