"""The space of an Optuna objective, written by calling it."""

from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter
from typer.testing import CliRunner

from hpo_core import StudySpec
from hpo_core.cli.app import app
from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.model.space import Parameter, SearchSpace
from hpo_core.training.optuna.space_discovery import MAX_CALLS, find_space

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


def test_conditions_on_one_parameter_are_found():
    found = find_space(layers)
    space = found.space
    assert found.unclear == []
    assert list(space) == ["model", "rate", "layers", "units_0", "optimizer", "units_1", "units_2", "momentum"]
    assert {name: description.get("when") for name, description in space.items()} == {
        "model": None, "rate": None, "layers": {"model": "net"}, "units_0": {"model": "net"},
        "optimizer": {"model": "net"}, "units_1": {"layers": [2, 3]}, "units_2": {"layers": 3},
        "momentum": {"optimizer": "sgd"},
    }  # fmt: skip


def test_a_parameter_without_a_simple_condition_is_unclear():
    def objective(trial):
        a, b = (trial.suggest_categorical(name, [0, 1]) for name in "ab")
        if a or b:
            trial.suggest_float("x", 0, 1)
        return 0.0

    found = find_space(objective)
    assert found.unclear == ["x"] and "when" not in found.space["x"]


def test_a_condition_on_two_parameters_is_found():
    def objective(trial):
        a, b = (trial.suggest_categorical(name, [False, True]) for name in "ab")
        if a and b:
            trial.suggest_float("x", 0, 1)

    found = find_space(objective)
    assert found.space["x"]["when"] == {"a": True, "b": True} and found.unclear == []


def test_a_condition_seen_in_few_draws_is_checked():
    """Ten parameters that nothing decides on, and a few calls with x: some two of them agree with that by chance."""

    def objective(trial):
        rate = trial.suggest_float("rate", 0, 1)
        model = trial.suggest_categorical("model", ["a", "b", "c", "d"])
        for k in range(8):
            choice = trial.suggest_categorical(f"c{k}", [0, 1, 2])
            if choice and rate > 0.5 and model == "b":
                trial.suggest_float(f"x{k}", 0, 1)

    found = find_space(objective)
    names = [name for name in found.space if name.startswith("x")]
    assert len(names) > 4 and found.unclear == names and found.calls <= MAX_CALLS


def test_a_parameter_that_depends_on_three_is_found_and_unclear():
    def objective(trial):
        if all(trial.suggest_categorical(name, [0, 1]) for name in "abc"):  # asks for b only where a is 1
            trial.suggest_float("x", 0, 1)
        if [trial.suggest_categorical(name, [0, 1]) for name in "def"] == [1, 1, 1]:
            trial.suggest_categorical("y", [1, 2])

    found = find_space(objective)
    assert found.space["x"]["when"] == {"c": 1} and found.unclear == ["y"]
    assert any("combinations of three or more parameters but for 30 random draws" in gap for gap in found.gaps)


def test_all_values_of_an_integer_with_a_condition_are_tried():
    def objective(trial):
        trial.suggest_int("width", 1, 1000)
        for layer in range(trial.suggest_int("n", 1, 12)):
            trial.suggest_float(f"u{layer}", 0, 1)

    found = find_space(objective)
    assert found.unclear == [] and list(found.space) == ["width", "n", *(f"u{k}" for k in range(12))]
    assert found.space["u5"]["when"] == {"n": list(range(6, 13))} and found.space["u11"]["when"] == {"n": 12}
    assert found.calls <= 200
    assert found.gaps[0].startswith("values between the ends of width, u0") and "n," not in found.gaps[0]


def test_none_is_a_value_of_a_condition():
    def objective(trial):
        depth = trial.suggest_categorical("depth", [3, None])
        if trial.suggest_categorical("prune", [True, False, None]) is None and depth is None:
            trial.suggest_float("x", 0, 1)

    asked = []
    found = find_space(lambda trial: (objective(trial), asked.append(dict(trial.params))))
    assert asked[0] == {"depth": 3, "prune": True}
    assert found.space["x"]["when"] == {"depth": None, "prune": None}


def test_a_parameter_that_depends_on_a_float_threshold_is_unclear():
    def objective(trial):
        if trial.suggest_float("rate", 1e-4, 1, log=True) > 0.5 or trial.suggest_int("size", 1, 10**6) > 10**5:
            trial.suggest_float("decay", 0, 1)

    found = find_space(objective)
    assert set(found.space) == {"rate", "size", "decay"} and {"decay"} <= set(found.unclear)


def test_parameters_suggested_together_do_not_condition_each_other():
    def objective(trial):
        if trial.suggest_float("rate", 0, 1) > 0.5:
            trial.suggest_categorical("x", [0, 1])
            trial.suggest_categorical("y", [0, 1])

    found = find_space(objective)
    assert found.unclear == ["x"] and found.space["y"]["when"] == {"x": [0, 1]}
    space = {name: TypeAdapter(Parameter).validate_python(item) for name, item in found.space.items()}
    SearchSpace(space)  # conditions make no circle


def test_the_limit_of_calls_is_kept_and_gaps_are_listed():
    def objective(trial):
        for k in range(30):
            trial.suggest_categorical(f"c{k}", list(range(20)))

    found = find_space(objective)
    assert 150 <= found.calls <= MAX_CALLS and len(found.space) == 30
    assert any(gap.startswith("some values of c") for gap in found.gaps)
    assert any("pairs of values" in gap for gap in found.gaps)


def test_optional_calls_end_at_the_time_limit(monkeypatch):
    monkeypatch.setattr("hpo_core.training.optuna.space_discovery.MAX_SECONDS", 0.0)
    found = find_space(layers)
    assert len(found.space) == 8 and "anything more after 0 s" in found.gaps


def test_an_error_in_a_later_call_is_a_gap():
    def objective(trial):
        a, b = (trial.suggest_categorical(name, [0, 1]) for name in "ab")
        if a and b:
            raise ValueError("a and b do not go together")

    found = find_space(objective)
    assert list(found.space) == ["a", "b"]
    assert found.gaps == ["what follows where the objective raised (1 calls; ValueError: a and b do not go together)"]


def test_one_name_with_two_ranges_is_refused():
    def objective(trial):
        trial.suggest_float("x", 0, 1 if trial.suggest_categorical("c", ["a", "b"]) == "a" else 2)

    with pytest.raises(ObjectiveError, match=r"'x' is suggested as .*high: 1.0}.*high: 2.0}"):
        find_space(objective)


def test_hpo_space_writes_a_space_that_a_study_accepts(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    app(["space", "tests.flows.optuna_objectives:conditional"], standalone_mode=False)
    written, said = capsys.readouterr()
    assert written.splitlines()[0] == "space:"
    spec = StudySpec.from_plain(
        {"study": "s", "metric": {"name": "loss"}, "search": {"method": "random", "configs": 1}}
        | yaml.safe_load(written)
    )
    assert spec.space["momentum"].when == {"optimizer": "sgd"}
    assert "Not gone through: values between the ends of x, momentum but for 30 random draws" in said


def test_hpo_space_reports_an_unknown_module():
    result = CliRunner().invoke(app, ["space", "no.such.module:f"])
    assert isinstance(result.exception, SpecError)
