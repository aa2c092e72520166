"""The stopping variant: a trial is started once, and its process asks at each rung.

Syne Tune's documentation (`Asynchronous Successive Halving: Early Stopping Variant`): trials are started once and rely
on early stopping. So a trial without checkpoints that reaches R has trained R steps, and not r + r * eta + ... + R.
"""

from __future__ import annotations

import itertools
import os
import queue
import random
import signal
from pathlib import Path
from typing import Any

import pytest

import hpo_core as hpo
from hpo_core.home import Home
from hpo_core.model.devices.inventory import Slot
from hpo_core.model.events import Entry, JobCompleted
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_flows.dask.executor import DaskExecutor
from hpo_flows.study_run.session import Session
from tests.conftest import make_spec
from tests.dask_processes import DaskProcesses
from tests.faults.test_real_study import Real
from tests.python import stopping_objectives
from tests.python.stopping_objectives import noted
from tests.waiting import eventually, gone

ROOT = Path(__file__).parents[2]


class Search:
    """A study of the stopping variant in a folder, and what was trained in it."""

    def __init__(self, folder: Path, *, configs: int = 1) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir(exist_ok=True)
        self.home = folder / "home"
        self.method = hpo.Asha(
            variant="stopping", configs=configs, min_resource=1, max_resource=9, reduction_factor=3, brackets=[0]
        )

    def run(self, function: str, **more: Any) -> hpo.Result:
        given: dict[str, Any] = {
            "space": {"x": hpo.Float(0, 1)}, "metric": "loss", "constants": {"folder": str(self.notes)}, "name": "s",
            "home": self.home, "progress": False, "seed": 5, "workers": 1, "tracking": {"mlflow": "off"},
            "prefect": "off",
        }  # fmt: skip
        return hpo.tune(getattr(stopping_objectives, function), method=self.method, **given | more)

    def entries(self, name: str = "s") -> list[Entry]:
        entries = list(Home(self.home).open_journal().entries(name))
        assert audit(entries).clean
        return entries

    def results(self, name: str = "s") -> dict[int, list[tuple[int, float | None]]]:
        found: dict[int, list[tuple[int, float | None]]] = {}
        for entry in self.entries(name):
            for event in entry.events:
                if isinstance(event, JobCompleted):
                    found.setdefault(event.trial, []).append((event.resource, event.loss))
        return found

    def steps(self) -> dict[int, list[int]]:
        return {trial: [step for _, step in steps] for trial, steps in noted(self.notes).items()}

    def processes(self) -> dict[int, set[int]]:
        return {trial: {process for process, _ in steps} for trial, steps in noted(self.notes).items()}


def only_once(search: Search) -> None:
    """Each trial trained each step up to its last result once, in one process, and has a result at each rung."""
    results = search.results()
    assert {trial: len(each) for trial, each in search.processes().items()} == dict.fromkeys(results, 1)
    for trial, steps in search.steps().items():
        targets = [target for target, _ in results[trial]]
        assert steps == list(range(targets[-1]))
        assert targets == search.method.levels()[: len(targets)]


def test_a_trial_without_checkpoints_trains_each_step_once_in_one_process(tmp_path: Path) -> None:
    search = Search(tmp_path)
    search.run("draws")
    (steps,) = search.steps().values()
    assert steps == list(range(9)), "R steps, not 1 + eta + ... + R = 13"
    only_once(search)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_a_whole_search_has_the_losses_of_trials_that_begin_anew_at_each_rung(tmp_path: Path, workers: int) -> None:
    search = Search(tmp_path, configs=14)
    result = search.run("draws", workers=workers)
    only_once(search)
    results = search.results()
    assert {len(each) for each in results.values()} == {1, 2, 3}, "some went on, some were stopped"
    assert eventually(lambda: all(gone(process) for (process,) in search.processes().values()))
    for trial in result.study.state.trials:
        generator = random.Random(result.spec.training_seed(trial.number))
        losses = list(itertools.accumulate(trial.params["x"] + generator.random() for _ in range(9)))
        assert results[trial.number] == [(target, losses[target - 1]) for target, _ in results[trial.number]]
    for event in (event for entry in search.entries() for event in entry.events if isinstance(event, JobCompleted)):
        assert event.metrics["target"] == event.resource, "the function saw the new target"
        assert event.metrics["reached"] == event.resource - 1
    session = Session(Home(search.home), "again", spec=rerun_spec(search.entries(), "again"))
    session.run()
    session.close()
    assert search.results("again") == results


def test_an_optuna_objective_is_called_once_for_each_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(tmp_path, configs=9)
    monkeypatch.setenv("NOTES", str(search.notes))
    search.run("suggests", metric="value", style="optuna", constants=None, workers=2)
    only_once(search)
    assert len({len(each) for each in search.results().values()}) > 1, "some were pruned, some went on"


@pytest.mark.slow
def test_a_trial_that_reports_after_its_loop_begins_anew_at_each_rung(tmp_path: Path) -> None:
    search = Search(tmp_path)
    search.run("after_the_loop")
    assert search.steps() == {0: [*range(1), *range(3), *range(9)]}
    assert [target for target, _ in search.results()[0]] == [1, 3, 9]


@pytest.mark.slow
def test_a_trial_that_diverges_is_stopped_and_one_that_raises_begins_anew(tmp_path: Path) -> None:
    search = Search(tmp_path)
    search.run("diverges")
    assert search.steps() == {0: [0, 1, 2]}
    assert search.results() == {0: [(1, search.results()[0][0][1]), (3, None)]}
    other = Search(tmp_path / "notes")
    other.run("fails_once", training={"retries": {"error": 1}})
    assert other.steps() == {0: [0, 1, 2, 3, 4, *range(9)]}
    assert [target for target, _ in other.results()[0]] == [1, 3, 9]


@pytest.mark.parametrize("process", ["fresh", pytest.param("kept", marks=pytest.mark.slow)])
def test_what_a_function_does_at_its_end_is_done_where_its_trial_is_stopped(tmp_path: Path, process: str) -> None:
    search = Search(tmp_path, configs=9)
    search.run("cleans_up", training={"process": process})
    results = search.results()
    assert len({len(each) for each in results.values()}) > 1
    assert {trial for trial in results if (search.notes / f"left-{trial}").exists()} == set(results)
    for trial, steps in search.steps().items():
        assert steps == list(range(results[trial][-1][0]))


@pytest.mark.slow
def test_a_controller_killed_while_trials_go_on_leaves_no_process_and_a_resume_ends_the_study(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    ladder = {"min_resource": 1, "max_resource": 9, "reduction_factor": 3, "brackets": [0]}
    real = Real(
        tmp_path, objective="tests.python.stopping_objectives:slow", constants={"folder": str(notes)},
        search={"method": "asha", "variant": "stopping", "configs": 6, **ladder},
    )  # fmt: skip
    for entries in (6, 14):
        controller = real.start()
        real.wait_for_entries(entries, controller)
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
        processes = {process for steps in noted(notes).values() for process, _ in steps}
        assert processes
        eventually(lambda those=processes: all(map(gone, those)))
    real.finish(6)


@pytest.mark.slow
@pytest.mark.usefixtures("dask_processes")
@pytest.mark.parametrize("stopped", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_new_trial_goes_to_the_worker_of_the_one_that_was_stopped(
    tmp_path: Path, dask_processes: DaskProcesses, stopped: int
) -> None:
    for name in ("one", "two"):
        dask_processes.add_worker(name)
    notes = tmp_path / "notes"
    notes.mkdir()
    spec = make_spec(
        objective="tests.python.stopping_objectives:draws", pythonpath=[str(ROOT)], cluster=dask_processes.cluster,
        search={"method": "asha", "variant": "stopping", "configs": 3, "min_resource": 1, "max_resource": 9,
                "reduction_factor": 3},
    )  # fmt: skip
    executor, reports = DaskExecutor(spec, str(tmp_path)), queue.SimpleQueue[Report]()

    def run(trial: int, rung: int) -> str:
        params = {"x": 0.5, "folder": str(notes)}
        job = Job(trial, rung, Rung(0, rung), (1, 3, 9)[rung], params)
        executor.submit(job, Slot(0, 0, "dask"), lambda _, report: reports.put(report))
        report = reports.get(timeout=600)
        assert (report.trial, report.attempt, report.outcome) == (trial, rung, Outcome.COMPLETED)
        return report.worker

    try:
        executor.start()
        eventually(lambda: executor.inventory().slots == 2)
        workers = [run(0, 0), run(1, 0)]
        assert len(set(workers)) == 2, "where a process waits for the answer is no free slot"
        executor.cancel([(stopped, 0)])
        assert run(2, 0) == workers[stopped]
        assert run(1 - stopped, 1) == workers[1 - stopped]
        assert len({process for process, _ in noted(notes)[1 - stopped]}) == 1
        assert gone(noted(notes)[stopped][0][0])
    finally:
        executor.close()
