"""The best model of a study and registered versions load as their pages in MLflow say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch

from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Job, Report
from hpo_core.retraining.model_registry import KEY, ModelCard, ModelRegistry, Repeat
from hpo_core.study import Study
from hpo_core.tracking.run_artifacts import BuildRequest, Trained, build_model
from tests.checkpoints.saving import save
from tests.mlflow.test_mlflow import Clock, Tracker, entries_of, good, play, start, tracker  # noqa: F401 - a fixture

CODE = """
import torch
from my_blocks import block

def build(params):
    return torch.nn.Sequential(block(params["width"]), torch.nn.Linear(params["width"], 1))

def wrong(params):
    return torch.nn.Linear(1, 1)

def other(params):
    return params

def broken(params):
    raise ValueError("not today")
"""
BLOCKS = """
import torch

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(4, width)

    def forward(self, x):
        return torch.relu(self.inner(x))

def block(width):
    return Block(width)
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "my_net.py").write_text(CODE)
    (folder / "my_blocks.py").write_text(BLOCKS)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("my_net", "my_blocks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


def module_of(width: int) -> torch.nn.Module:
    import my_net

    torch.manual_seed(width)
    built: torch.nn.Module = my_net.build({"width": width})
    return built


def trained_study(tracker: Tracker, **more: Any) -> Study:  # noqa: F811
    def train(job: Job, clock: Clock) -> Report:
        report = good(job, clock)
        tree = {"tracked": {"model": module_of(job.params["width"]).state_dict(), "step": {"count": 3}}}
        made = save(tracker.folder / "study", f"checkpoints/{job.trial}-{job.target}", tree, resource=job.target)
        return Report(
            trial=job.trial, attempt=job.attempt, outcome=report.outcome, metrics=report.metrics, curve=report.curve,
            checkpoint=made, started=report.started, ended=report.ended,
        )  # fmt: skip

    study = play(*start(MemoryJournal(), configs=2, top=1, **more), train)
    projection = tracker.projection()
    projection.project(entries_of(study))
    projection.finish()
    projection.close()
    return study


def assert_is_trained(model: torch.nn.Module, width: int) -> None:
    expected = module_of(width).state_dict()
    assert {key: bool(torch.equal(value, expected[key])) for key, value in model.state_dict().items()} == dict.fromkeys(
        expected, True
    )


def test_the_lines_on_the_page_of_a_study_load_its_best_weights(
    tracker: Tracker,  # noqa: F811
    code: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = trained_study(tracker)
    best = study.best
    assert best is not None
    monkeypatch.setattr(mlflow.tracking, "_tracking_uri", None, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.uri)
    import my_net

    found: dict[str, Any] = {"build": my_net.build}
    (lines,) = re.findall(r"```python\n(.*?)```", tracker.parent().data.tags["mlflow.note.content"], re.DOTALL)
    exec(lines, found)
    assert_is_trained(found["model"], study.state.trials[best.trial].params["width"])
    assert tracker.parent().data.tags["hpo.best_weights"] == "best_checkpoint/weights.safetensors"


def request(code: Path, folder: Path, build: str) -> BuildRequest:
    tree = {"tracked": {"model": module_of(6).state_dict()}}
    made = save(folder, "c", tree, resource=1)
    return BuildRequest(
        build, (str(code),), Trained({"width": 6}, made, str(folder)), tracked="model", target=str(folder / "model")
    )


def test_a_built_model_is_one_of_mlflows(code: Path, tmp_path: Path) -> None:
    build_model(request(code, tmp_path, "my_net:build"))
    assert sorted(path.name for path in (tmp_path / "model" / "code").iterdir()) == ["my_blocks.py", "my_net.py"]
    assert_is_trained(mlflow.pytorch.load_model(str(tmp_path / "model")), 6)
    needed = (tmp_path / "model" / "requirements.txt").read_text()
    assert "torch==" in needed and "hpo" not in needed


@pytest.mark.parametrize(
    ("build", "words"),
    [("my_net:wrong", "does not fit"), ("my_net:other", "returned a dict"), ("my_net:broken", "not today")],
)
def test_a_build_function_that_makes_something_else(code: Path, tmp_path: Path, build: str, words: str) -> None:
    with pytest.raises((ObjectiveError, ValueError), match=words):
        build_model(request(code, tmp_path, build))
    assert not (tmp_path / "model").exists()


LOAD = """
import mlflow, torch
from mlflow import MlflowClient
client = MlflowClient()
page = client.get_model_version_by_alias("line", "champion").description
lines = page.split("```python")[1].split("```")[0]
exec(lines)
assert isinstance(model, torch.nn.Module), model
champion = mlflow.pytorch.load_model("models:/line@champion")
x = torch.ones(3, 4)
assert torch.equal(champion(x), model(x))
predicted = mlflow.pyfunc.load_model("models:/line@champion").predict(x.numpy())
assert abs(predicted - model(x).detach().numpy()).max() < 1e-6
import sys
assert not [name for name in sys.modules if name.startswith("hpo_")]
print(float(model(x).detach().sum()))
"""


@pytest.mark.slow
def test_a_champion_loads_in_a_process_that_has_mlflow_and_torch_alone(
    empty_store: Path, tmp_path: Path, code: Path
) -> None:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    registry = ModelRegistry("line", uri, "retrain-line")
    made = save(tmp_path, "checkpoints/1", {"tracked": {"model": module_of(6).state_dict()}}, resource=1)
    card = ModelCard(
        "m",
        "min",
        "s",
        (),
        data="",
        fingerprint="",
        evaluate="my_net:evaluate",
        repeats=(Repeat(1, 2.0),),
        reference=(),
    )
    run = registry.begin("fingerprint", "first", "")
    registry.upload(run, card, Trained({"width": 6}, made, str(tmp_path)), "my_net:build", [str(code)])
    registry.promote(registry.register(run, {}, "The first."))
    shutil.move(code, tmp_path / "gone")
    (tmp_path / "clean").mkdir()
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOAD],
        cwd=tmp_path / "clean",
        env={"MLFLOW_TRACKING_URI": uri, "PATH": "/usr/bin", "HOME": str(tmp_path / "clean")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) == pytest.approx(
        float(module_of(6)(torch.ones(3, 4)).detach().sum()), abs=1e-5
    )
    assert registry.card(1) == card, "the next retraining reads it"


@pytest.fixture
def registry(empty_store: Path, tmp_path: Path) -> ModelRegistry:
    store = tmp_path / "mlflow.db"
    store.write_bytes(empty_store.read_bytes())
    return ModelRegistry("line", f"sqlite:///{store}", "retrain-line")


def test_a_run_that_failed_is_begun_anew_and_an_interrupted_one_goes_on(registry: ModelRegistry) -> None:
    first = registry.begin("abcdefghij", "retrain line", "may.json")
    assert re.fullmatch(r"abcdefgh-20\d{6}", first.tags[KEY])
    registry.fail(first, ValueError("no"))
    second = registry.begin("abcdefghij", "retrain line", "may.json")
    assert second.tags[KEY] == first.tags[KEY] + "-2", "its studies have other names"
    registry.fail(second, KeyboardInterrupt())
    again = registry.begin("abcdefghij", "retrain line", "may.json")
    assert (again.run_id, again.status) == (second.run_id, "RUNNING")
    elsewhere = registry.begin("abcdefghij", "retrain line", "copy.json")
    assert elsewhere.tags[KEY] == first.tags[KEY] + "-3", "the studies of the other name the other place"
    other = registry.begin("zyxwvutsrq", "retrain line", "june.json")
    assert other.tags[KEY].startswith("zyxwvuts-")


def test_the_work_for_some_data_is_done_once_until_its_run_is_deleted(registry: ModelRegistry) -> None:
    run = registry.begin("abcdefghij", "retrain line", "may.json")
    registry.finish(run)
    again = registry.begin("abcdefghij", "retrain line", "copy.json")
    assert (again.run_id, again.status) == (run.run_id, "FINISHED")
    registry._client.delete_run(run.run_id)
    anew = registry.begin("abcdefghij", "retrain line", "may.json")
    assert anew.tags[KEY] == run.tags[KEY] + "-2"
