from pathlib import Path

import pytest
import yaml

from hpo_core import StudySpec
from hpo_core.cli.app import app
from hpo_core.model.errors import ObjectiveError
from hpo_core.optuna.optuna_space import CALLS, find_space

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
    assert {name: description.get("when") for name, description in space.items()} == {
        "model": None, "rate": None, "layers": {"model": "net"}, "units_0": {"model": "net"},
        "optimizer": {"model": "net"}, "units_1": {"layers": [2, 3]}, "units_2": {"layers": 3},
        "momentum": {"optimizer": "sgd"},
    }  # fmt: skip


def either(trial):
    a, b = (trial.suggest_categorical(name, [0, 1]) for name in "ab")
    if a or b:
        trial.suggest_float("x", 0, 1)
    return 0.0


def both(trial):
    a, b = (trial.suggest_categorical(name, [False, True]) for name in "ab")
    if a and b:
        trial.suggest_float("x", 0, 1)


def seen_in_few_draws(trial):
    """Ten parameters that nothing decides on, and a few calls with x: some of them might agree with that by chance."""
    rate = trial.suggest_float("rate", 0, 1)
    model = trial.suggest_categorical("model", ["a", "b", "c", "d"])
    for k in range(8):
        choice = trial.suggest_categorical(f"c{k}", [0, 1, 2])
        if k == 0 and choice and rate > 0.5 and model == "b":
            trial.suggest_float("x", 0, 1)


def threshold(trial):
    if trial.suggest_float("rate", 1e-4, 1, log=True) > 0.5:
        trial.suggest_float("x", 0, 1)


@pytest.mark.parametrize("objective", [either, both, seen_in_few_draws, threshold])
def test_a_parameter_without_a_condition_on_one_other_is_refused(objective):
    refused = r"suggests x in some calls only, .*Suggest it in every call, or write the space by hand.*x: \{type: float"
    with pytest.raises(ObjectiveError, match=refused):
        find_space(objective)


def test_all_values_of_an_integer_with_a_condition_are_tried():
    def objective(trial):
        trial.suggest_int("width", 1, 1000)
        for layer in range(trial.suggest_int("n", 1, 12)):
            trial.suggest_float(f"u{layer}", 0, 1)

    found = find_space(objective)
    assert set(found.space) == {"width", "n", *(f"u{k}" for k in range(12))}
    assert found.space["u5"]["when"] == {"n": list(range(6, 13))} and found.space["u11"]["when"] == {"n": 12}
    assert found.calls == CALLS and not found.gaps


def test_none_is_a_value_of_a_condition():
    def objective(trial):
        trial.suggest_categorical("depth", [3, None])
        if trial.suggest_categorical("prune", [True, False, None]) is None:
            trial.suggest_float("x", 0, 1)

    asked = []
    found = find_space(lambda trial: (objective(trial), asked.append(dict(trial.params))))
    assert asked[0] == {"depth": 3, "prune": True}
    assert found.space["x"]["when"] == {"prune": None}


def test_optional_calls_end_at_the_time_limit(monkeypatch):
    monkeypatch.setattr("hpo_core.optuna.optuna_space.MAX_SECONDS", 0.0)
    found = find_space(layers)
    assert list(found.space) == ["model", "rate"] and found.gaps == ["in a branch that no call of the first 0 s took"]


def test_an_error_in_a_later_call_is_a_gap():
    def objective(trial):
        a, b = (trial.suggest_categorical(name, [0, 1]) for name in "ab")
        if a and b:
            raise ValueError("a and b do not go together")

    found = find_space(objective)
    assert list(found.space) == ["a", "b"]
    (gap,) = found.gaps
    assert gap.startswith("after an error (") and gap.endswith("a and b do not go together)")


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
    assert "What is suggested only elsewhere is missing." in said
