"""Training functions that no other process can import: sent by value, kept beside their study."""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hpo_core as hpo
from hpo_core.home import Home
from hpo_core.model.errors import HpoError, ObjectiveError, SpecError
from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import sent_functions
from hpo_core.spec.sent_functions import digest_of, folders_of, function_name, pickled, short_name
from hpo_core.study import Study
from hpo_core.tracking.provenance_files import study_file
from hpo_core.training.objective import load_objective
from hpo_flows.command import app
from hpo_flows.deployed.flows import recorded_study
from hpo_flows.deployed.permissions import NotAllowedError, Permissions

# What cannot be sent.


@pytest.fixture
def made() -> Iterator[types.ModuleType]:
    module = types.ModuleType("made_for_a_test")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def _reads_lock(made: types.ModuleType) -> Callable[..., Any]:
    made.__dict__["lock"] = threading.Lock()
    exec("def helper(): return lock\ndef train(trial): return helper()", vars(made))
    return made.train  # type: ignore[no-any-return]


def _closure_over(value: Any) -> Callable[..., Any]:
    def train(trial: Any) -> Any:
        return value

    return train


@pytest.mark.parametrize(
    "make",
    [
        _reads_lock,
        lambda _: _closure_over(threading.Lock()),
        lambda _: _closure_over(x for x in "ab"),
        lambda _: functools.partial(_closure_over(0), threading.Lock()),
    ],
)
def test_a_value_that_cannot_be_pickled_is_refused_in_words(
    make: Callable[[types.ModuleType], Any], made: types.ModuleType
) -> None:
    words = (
        r"train\(\) cannot be sent to the workers: TypeError: cannot pickle '.*(lock|generator)'.* inside the function"
    )
    with pytest.raises(SpecError, match=words):
        pickled(make(made))


def test_a_large_value_is_refused() -> None:
    table = bytes(sent_functions.MOST_BYTES)
    with pytest.raises(SpecError, match="refers to 16,777,.* from a file"):
        pickled(lambda trial: table)


def test_folders_of_modules_that_it_reads_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_a_script.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    beside = importlib.import_module("beside_a_script")
    assert str(tmp_path) in folders_of([function_name(lambda trial: beside.VALUE)])
    assert folders_of([function_name(lambda trial: os.sep)]) == [str(Path(__file__).parents[2])], "of this module"


# What is kept is what is run.


def _back(name: str, folder: Path) -> Callable[..., Any]:
    sent_functions.keep(name, folder / "study", folder)
    return load_objective(sent_functions.placed(name, folder / "study"))


class _Opens:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_other_content_is_refused_before_it_is_unpickled(tmp_path: Path) -> None:
    name = function_name(lambda trial: 1)
    assert _back(name, tmp_path)(None) == 1
    file = tmp_path / "study" / "code" / f"{digest_of(name)}.pkl"
    file.write_bytes(file.read_bytes().partition(b"\n")[0] + b"\n" + pickle.dumps(_Opens(tmp_path / "opened")))
    with pytest.raises(SpecError, match="is not the function that the study began with"):
        load_objective(sent_functions.placed(name, tmp_path / "study"))
    assert not (tmp_path / "opened").exists()


def test_a_function_of_another_python_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpo_core.spec.sent_functions._PYTHON", b"3.2\n")
    with pytest.raises(ObjectiveError, match=r"sent by value by Python 3\.2, and the workers run Python 3\.1"):
        _back(function_name(lambda trial: 1), tmp_path)


# Never through a deployment, and unpickled by nobody but the training.


def _study(home: Home, name: str, objective: str) -> hpo.StudySpec:
    plain = {
        "study": name,
        "objective": objective,
        "metric": {"name": "loss"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "search": {"method": "random", "configs": 2},
        "tracking": {"mlflow": "off"},
        "prefect": "off",
    }
    spec = hpo.StudySpec.from_plain(plain)
    journal = home.open_journal()
    hpo.Study.create(spec, journal)
    journal.close()
    home.study_folder(name, create=True)
    return spec


def test_deployments_take_no_function_by_value(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    name = function_name(lambda trial: 1)
    spec = _study(home, "mine", name)
    sent_functions.keep(name, home.study_folder("mine"), home.folder / "studies")
    module = name.partition(":")[0]
    for allowed in (name, module, "by_value", f"{module}:function"):
        permissions = Permissions(objectives=(allowed,))
        with pytest.raises(NotAllowedError, match="deployments take no function by value"):
            permissions.check(spec)
    file = tmp_path / "files" / "study.yaml"
    file.parent.mkdir()
    file.write_text(study_file(spec))
    here = file.parent.resolve()
    with pytest.raises(NotAllowedError, match="deployments take no function by value"):
        Permissions(objectives=(name,), folder=here, import_folders=(here, Path.cwd())).load("study.yaml")


def test_only_the_training_unpickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that read a study, and those that refuse to go on with it, leave its pickle alone."""
    home = Home(tmp_path / "home")
    name = function_name(_closure_over(_Opens(tmp_path / "opened")))
    _study(home, "mine", name)
    sent_functions.keep(name, home.study_folder("mine"), home.folder / "studies")
    for command in (["status", "mine"], ["report", "mine"], ["audit", "mine"], ["list"]):
        done = CliRunner().invoke(app, [*command, "--home", str(home.folder)])
        assert done.exit_code == 0, (command, done.output)
    assert short_name(name) in CliRunner().invoke(app, ["show", "mine", "--home", str(home.folder)]).output
    assert hpo.load("mine", home.folder).spec.objective == name
    file = home.study_folder("mine") / "code" / f"{digest_of(name)}.pkl"
    file.write_bytes(b"other")
    _as_in_another_process(monkeypatch)
    done = CliRunner().invoke(app, ["resume", "mine", "--home", str(home.folder)])
    assert done.exit_code != 0 and "is not the function that the study began with" in str(done.exception)
    assert not (tmp_path / "opened").exists()


def test_a_study_whose_function_is_not_here_is_refused_before_a_cluster_starts(tmp_path: Path) -> None:
    home = Home(tmp_path)
    _study(home, "imported", f"by_value.s{'0' * 16}.d{'1' * 64}:train")
    done = CliRunner().invoke(app, ["resume", "imported", "--home", str(tmp_path)])
    assert "was sent by value, and no study in" in str(done.exception) and "module:function" in str(done.exception)


def _as_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_functions, "given", lambda name: None)


# Whole studies.


def _trained(factor: float) -> Callable[..., Any]:
    def train(trial: Any) -> None:
        for step in trial.steps():
            trial.report(loss=trial.params["x"] * factor + step)

    return train


SPACE = {"x": hpo.Float(0.0, 1.0)}
OFF = {"tracking": {"mlflow": "off"}, "prefect": "off", "progress": False, "metric": "loss", "workers": 1}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A finished study of a function by value."""
    home = Home(tmp_path_factory.mktemp("studies"))
    result = hpo.tune(_trained(2.0), SPACE, name="mine", home=home.folder, max_trials=2, **OFF)
    assert result.status == "finished"
    return home


@pytest.mark.slow
def test_a_study_goes_on_with_the_function_that_it_keeps_until_another_one_is_given(tmp_path: Path) -> None:
    home = {"home": tmp_path, "progress": False, "prefect": "off"}
    search = hpo.Random(configs=1, max_resource=1)
    given = {"name": "mine", "home": tmp_path, "method": search} | OFF
    hpo.tune(_trained(2.0), SPACE, **given)
    assert hpo.tune(_trained(3.0), SPACE, resume=True, **given).status == "finished"
    hpo.resume("mine", configs=1, **home)
    result = hpo.resume("mine", objective=_trained(3.0), configs=1, **home)
    factors = [loss / x for loss, x in zip(result.trials["loss"], result.trials["params.x"], strict=True)]
    assert factors == pytest.approx([2.0, 2.0, 3.0])
    journal = Home(tmp_path).read_journal()
    assert hpo.load("mine", tmp_path).spec.objective == Study.current_spec("mine", journal).objective
    assert rerun_spec(list(journal.entries("mine")), "again").objective == result.spec.objective
    journal.close()
    assert CliRunner().invoke(app, ["audit", "mine", "--home", str(tmp_path)]).exit_code == 0
    assert len(list((result.folder / "code").glob("*.pkl"))) == 2, "both are kept"


def test_a_function_that_replaced_an_allowed_one_is_not_allowed_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    _study(home, "mine", "tests.python.training:train")
    monkeypatch.setenv("HPO_HOME", str(home.folder))
    monkeypatch.setenv("HPO_ALLOWED_OBJECTIVES", "tests.python.training")
    monkeypatch.setenv("HPO_IMPORT_FOLDERS", str(Path(__file__).parents[2]))
    assert recorded_study("mine").name == "mine"
    journal = home.open_journal()
    Study.open("mine", journal).recover("elsewhere", objective="os:system")
    journal.close()
    with pytest.raises(NotAllowedError, match="os:system"):
        recorded_study("mine")


def test_its_study_file_runs_in_the_same_home(study: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _as_in_another_process(monkeypatch)
    file = tmp_path / "study.yaml"
    file.write_text(study_file(hpo.load("mine", study.folder).spec))
    done = CliRunner().invoke(app, ["try", str(file), "--params", "x=0.5", "--home", str(study.folder)])
    assert done.exit_code == 0 and "loss = 1" in done.output, done.output
    done = CliRunner().invoke(app, ["try", str(file), "--params", "x=0.5", "--home", str(tmp_path / "other")])
    assert isinstance(done.exception, HpoError) and "no study in" in str(done.exception)


def test_a_function_by_value_and_its_loader_train_models_that_hop(tmp_path: Path) -> None:
    class Steps:
        done = 0

        def state_dict(self) -> dict[str, int]:
            return {"done": self.done}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.done = state["done"]

    def hop(trial: Any) -> None:
        model = Steps()
        trial.track(model=model)
        for _ in trial.steps():
            model.done += len(trial.partition)
            trial.report(loss=trial.params["x"] - model.done)

    def load(path: str) -> str:
        return Path(path).read_text()

    folder = tmp_path / "parts"
    folder.mkdir()
    for name, text in {"part-0": "abc", "part-1": "defgh"}.items():
        (folder / name).write_text(text)
    data = hpo.Data(partitions="part-*", folder=str(folder), load=load)
    assert digest_of(data.load)
    method = hpo.Random(configs=2, max_resource=2)
    result = hpo.tune(hop, SPACE, method=method, data=data, home=tmp_path / "home", seed=3, **OFF)
    assert result.status == "finished", result
    assert result.best.value == pytest.approx(result.best.params["x"] - 16)
    assert len(list((result.folder / "code").glob("*.pkl"))) == len(result.spec.functions)
