"""Processes that stay: settings are put back, globals of modules stay as the training function left them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.training.child.trainer import Trainer
from tests.conftest import make_spec
from tests.job_requests import make_request
from tests.training.kept_objectives import CHANGES, LEFT
from tests.training.test_resume_check import run_check
from tests.waiting import eventually, gone

HERE = str(Path(__file__).parent)


class Bench:
    """Attempts of one trainer, each of them alike but for what it does."""

    def __init__(self, folder: Path, objective: str = "kept_objectives:train") -> None:
        self.folder = folder
        self.objective = objective
        self.trainer = Trainer(objective, (HERE,))
        self.attempts = 0

    def run(self, do: str, process: Any = "kept") -> Report:
        self.attempts += 1
        request = make_request(
            job=Job(0, self.attempts, Rung(0, 0), 2, {"do": do}), objective=self.objective, required="none",
            folder=str(self.folder), pythonpath=(HERE,), process=process, grace=5.0,
        )  # fmt: skip
        report = self.trainer.run(request)
        assert report.outcome is Outcome.COMPLETED, f"{report.message}\n{report.detail}"
        return report

    def saw(self, do: str, process: Any = "kept") -> str:
        report = self.run(do, process)
        return (self.folder / f"logs/trial-{report.trial:05d}-attempt-{report.attempt}.log").read_text()

    @property
    def waiting(self) -> int:
        return 0 if self.trainer.waiting is None else self.trainer.waiting.pid


@contextlib.contextmanager
def bench(folder: Path, objective: str = "kept_objectives:train") -> Iterator[Bench]:
    made = Bench(folder, objective)
    with contextlib.closing(made.trainer):
        made.trainer.prepare()
        yield made


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("kept")) as made:
        yield made


def test_an_attempt_finds_the_settings_of_a_fresh_process(kept: Bench) -> None:
    fresh, processes, before = kept.saw("nothing", "fresh"), set(), "nothing"
    for do in (*CHANGES, "nothing"):
        assert kept.saw(do) == fresh, f"after {before}"
        processes.add(kept.waiting)
        before = do
    assert len(processes) == 1 and 0 not in processes, "it stays, whatever the function changed in its own modules"


def test_globals_stay_as_the_function_left_them(kept: Bench) -> None:
    first, second, third = (kept.run("globals").metrics["loss"] for _ in range(3))
    assert (second, third) == (first + 1, first + 2)


@pytest.mark.parametrize("do", LEFT)
def test_what_is_left_running_ends_the_process(kept: Bench, do: str) -> None:
    kept.run("nothing")
    before = kept.waiting
    kept.run(do)
    assert kept.waiting == 0
    eventually(lambda: gone(before))


COUNTS = """
counter = 0
def count(trial):
    global counter
    counter += 1
    for _ in trial.steps():
        trial.report(loss=float(counter))
"""


def test_the_command_compares_a_process_that_stayed_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        json.dumps(make_spec().plain() | {"objective": "checked:count", "pythonpath": ["."]})
    )
    said = run_check(tmp_path, "study.yaml", "--steps", "2", "--process", "kept", code=1, text=COUNTS)
    assert "in a process that stayed: differs in" in said and "Keep it inside the function" in said
