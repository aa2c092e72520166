"""Libraries that a training function imports itself are seeded then, as those at the top of its module are."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hpo_core.model.trial import Job, Rung
from hpo_core.training import saved_state
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.request import JobRequest
from hpo_core.training.resume_check import check_resume
from hpo_core.training.saved_state import seed_all
from tests.job_requests import make_request

INSIDE = """
import hpo_core


def train(trial):
    import torch

    total = hpo_core.State(value=0.0)
    trial.track(total=total)
    for _ in trial.steps():
        total.value += float(torch.rand(1))
        trial.report(loss=total.value)
"""
AT_TOP = "import torch\n" + INSIDE.replace("    import torch\n", "")
IN_THE_SECOND_STEP = """
import hpo_core


def train(trial):
    total = hpo_core.State(value=0.0)
    trial.track(total=total)
    for step in trial.steps():
        if step:
            import torch

            total.value += float(torch.rand(1))
        trial.report(loss=total.value)
"""


def _request(folder: Path, text: str) -> JobRequest:
    module = f"late_{folder.name}"
    (folder / f"{module}.py").write_text(text)
    return make_request(
        study="late", job=Job(0, 0, Rung(0, 0), 3, {}), objective=f"{module}:train", required="all",
        seed=11, folder=str(folder), pythonpath=(str(folder),),
    )  # fmt: skip


def _loss(folder: Path, text: str) -> float:
    folder.mkdir()
    request = _request(folder, text)
    trainer = Trainer(request.setup.objective, request.setup.pythonpath)
    try:
        return trainer.run(request).metrics["loss"]
    finally:
        trainer.close()


@pytest.mark.slow
def test_a_rerun_has_the_same_losses_wherever_the_import_stands(tmp_path: Path) -> None:
    assert _loss(tmp_path / "inside", INSIDE) == _loss(tmp_path / "top", AT_TOP)


@pytest.mark.slow
@pytest.mark.parametrize("text", [INSIDE, IN_THE_SECOND_STEP])
def test_a_resume_is_exact(text: str, tmp_path: Path) -> None:
    found = check_resume(_request(tmp_path, text), tmp_path / "check", steps=4)
    assert found.exact, found


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A library that is not imported yet; it lists the seeds that it gets."""
    (tmp_path / "late_library.py").write_text("seeds = globals().get('seeds', [])\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "late_library", raising=False)
    seeds = {"late_library": lambda module, seed: module.seeds.append(seed)}
    monkeypatch.setattr(saved_state, "_SEEDS", saved_state._SEEDS | seeds)
    return "late_library"


def test_a_look_for_a_library_does_not_import_it_and_a_reload_does_not_seed_it(library: str) -> None:
    seed_all(1)
    seed_all(2)
    assert (spec := find_spec(library)) is not None and spec.origin is not None
    assert library not in sys.modules
    module = importlib.import_module(library)
    assert module.seeds == [2] and module.__spec__ is not None
    assert "exec_module" not in vars(module.__spec__.loader)
    assert importlib.reload(module).seeds == [2]
    seed_all(3)
    assert module.seeds == [2, 3]
