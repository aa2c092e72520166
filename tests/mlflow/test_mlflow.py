"""The MLflow projection against the real MLflow: content, repetition, crashes, deletions, odd values."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from hpo_core.journal.memory import MemoryJournal
from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import JournalError
from hpo_core.model.events import Entry
from hpo_core.model.trial import Checkpoint, Job, Outcome, Point, Report
from hpo_core.study import Study
from hpo_core.tracking.mlflow_client import open_client
from hpo_core.tracking.mlflow_projection import MlflowProjection, ProjectionBusyError

NAME = "digits"
START = 1_767_225_600.0


class Clock:
    def __init__(self, now: float = START) -> None:
        self.time = now

    def __call__(self) -> float:
        return self.time


def loss_of(job: Job, resource: int) -> float:
    return round((math.log10(job.params["lr"]) + 2) ** 2 + job.params["width"] / 100 + 3 / resource, 6)


def good(job: Job, clock: Clock) -> Report:
    """A completed attempt of one second per unit, with a curve."""
    first = job.checkpoint.resource if job.checkpoint else 0
    started = clock.time
    clock.time += job.target - first
    curve = tuple(
        Point(step, {"val_loss": loss_of(job, step), "acc": step / 10}) for step in range(first + 1, job.target + 1)
    )
    return Report(
        trial=job.trial,
        attempt=job.attempt,
        outcome=Outcome.COMPLETED,
        metrics={"val_loss": loss_of(job, job.target), "acc": job.target / 10},
        curve=curve,
        checkpoint=Checkpoint(f"checkpoints/{job.trial}-{job.target}.bin", f"d{job.trial}", job.target, 3),
        worker="w1",
        started=started,
        ended=clock.time,
    )


def bad(job: Job, clock: Clock, outcome: Outcome) -> Report:
    clock.time += 0.5
    return Report(
        trial=job.trial, attempt=job.attempt, outcome=outcome, message="it broke", worker="w2", ended=clock.time,
        curve=(Point(1, {"val_loss": 99.0}),),
    )  # fmt: skip


Train = Callable[[Job, Clock], Report]


def start(journal: Journal, *, configs: int = 4, top: int = 4, **more: Any) -> tuple[Study, Clock]:
    clock = Clock()
    spec = {
        "study": NAME,
        "metric": {"name": "val_loss"},
        "space": {
            "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
            "width": {"type": "int", "low": 8, "high": 64},
        },
        "search": {"method": "asha", "configs": configs, "max_resource": top, "reduction_factor": 2},
        "seed": 3,
        **more,
    }
    return Study.create(spec, journal, clock=clock), clock


def play(study: Study, clock: Clock, train: Train = good, *, jobs: int = 10**6) -> Study:
    queue = deque(study.set_capacity(2) or study.state.wanted())
    while queue and jobs:
        queue.extend(study.tell_report(train(queue.popleft(), clock)))
        jobs -= 1
    return study


def entries_of(study: Study) -> list[Entry]:
    return list(study.journal.entries(study.name))


class Tracker:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        self.client = open_client(self.uri)

    def projection(self, experiment: str = "hpo", client: Any = None) -> MlflowProjection:
        return MlflowProjection(NAME, self.uri, experiment, self.folder / "study", client=client or self.client)

    def runs(self, experiment: str = "hpo", kind: str = "trial") -> list[Any]:
        found = self.client.get_experiment_by_name(experiment)
        runs = self.client.search_runs([found.experiment_id], f"tags.`hpo.kind` = '{kind}'", max_results=1000)
        return sorted(runs, key=lambda run: int(run.data.tags.get("hpo.trial", -1)))

    def parent(self, experiment: str = "hpo") -> Any:
        (run,) = self.runs(experiment, "study")
        return run

    def history(self, run: Any, key: str) -> list[tuple[int, float, int]]:
        points = self.client.get_metric_history(run.info.run_id, key)
        return sorted((p.step, repr(p.value), p.timestamp) for p in points)  # type: ignore[misc]

    def text(self, run: Any, name: str) -> str:
        return Path(self.client.download_artifacts(run.info.run_id, name, str(self.folder))).read_text()

    def picture(self, experiment: str = "hpo") -> list[Any]:
        """Everything a user can see, without the ids MLflow draws."""
        names = {}
        runs = [*self.runs(experiment, "study"), *self.runs(experiment)]
        for run in runs:
            names[run.info.run_id] = run.info.run_name
        seen: list[Any] = []
        for run in runs:
            info = run.info
            tags = {key: names.get(value, value) for key, value in run.data.tags.items()}
            curves = {key: self.history(run, key) for key in run.data.metrics}
            files = {
                item.path: self.text(run, item.path)
                for item in (self.client.list_artifacts(info.run_id) if tags["hpo.kind"] == "study" else ())
                if not item.is_dir
            }
            seen.append(
                (info.run_name, info.status, info.start_time, info.end_time, run.data.params, tags, curves, files)
            )
        return seen


def _careless(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous=OFF")  # thousands of commits, and no power loss is tested here


@pytest.fixture
def tracker(empty_store: Path, tmp_path: Path) -> Iterator[Tracker]:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", _careless)
    yield Tracker(tmp_path)
    sqlalchemy.event.remove(sqlalchemy.Engine, "connect", _careless)


def test_a_study_is_a_run_and_a_trial_is_a_child(tracker: Tracker) -> None:
    study = play(*start(MemoryJournal(), configs=8))
    best = study.best
    assert best is not None
    folder = tracker.folder / "study" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / f"{best.trial}-{best.resource}.bin").write_text("abc")
    (tracker.folder / "study" / "report.html").write_text("<html>")
    projection = tracker.projection()
    assert projection.project(entries_of(study)) == study.seq
    projection.finish()

    parent = tracker.parent()
    tags = parent.data.tags
    assert (parent.info.run_name, parent.info.status) == (NAME, "FINISHED")
    assert tags["hpo.status"] == "finished"
    assert tags["hpo.best_trial"] == str(best.trial)
    assert tags["hpo.projected_seq"] == str(study.seq - 1)
    assert "Study digits" in tags["mlflow.note.content"]
    assert (tags["mlflow.source.name"], tags["mlflow.source.type"]) == ("driven by hand", "LOCAL")
    assert tags["mlflow.user"]
    assert parent.data.params["search.configs"] == "8"
    assert parent.data.params["seed"] == "3"
    assert parent.data.metrics["best_val_loss"] == best.loss
    promotions = list(csv.DictReader(io.StringIO(tracker.text(parent, "promotions.csv"))))
    assert len(promotions) == 6
    assert all(int(p["place"]) <= int(p["among"]) // 2 and p["val_loss"] for p in promotions)
    assert tracker.text(parent, f"best_checkpoint/{best.trial}-{best.resource}.bin") == "abc"
    assert tracker.text(parent, "report.html") == "<html>"

    runs = tracker.runs()
    assert [run.info.run_name for run in runs] == [f"digits/trial-{k}" for k in range(8)]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {run.data.tags["mlflow.parentRunId"] for run in runs} == {parent.info.run_id}
    run, trial = runs[best.trial], study.state.trials[best.trial]
    assert run.data.params["lr"] == str(trial.params["lr"])
    assert float(run.data.params["log10_lr"]) == pytest.approx(math.log10(trial.params["lr"]), abs=1e-6)
    steps = [step for step, _, _ in tracker.history(run, "val_loss")]
    assert steps == list(range(1, trial.resource + 1))
    assert run.data.metrics["final_val_loss"] == trial.loss
    assert run.data.metrics["trained_to"] == trial.resource and run.data.params["study"] == NAME
    for key in ("final_val_loss", "trained_to", "param/lr"):  # MLflow draws a line for each step above 0
        assert {step for step, _, _ in tracker.history(run, key)} == {0}, key
    assert run.data.tags["hpo.rung"] == str(trial.rung)
    assert run.data.tags["hpo.state"] == "winner"
    assert run.info.end_time == round(trial.results[-1].ended * 1000)
    projection.close()


def test_twice_is_once_and_in_pieces_is_at_once(tracker: Tracker) -> None:
    study = play(*start(MemoryJournal(), configs=6))
    entries = entries_of(study)
    whole = tracker.projection("whole")
    whole.project(entries)
    whole.finish()
    expected = tracker.picture("whole")
    assert whole.project(entries) == 0
    whole.close()
    again = tracker.projection("whole")
    assert again.project(entries) == 0
    again.finish()
    assert tracker.picture("whole") == expected

    pieces = tracker.projection("pieces")
    assert [pieces.project([entry]) for entry in entries[:2]] == [1, 1]
    with pytest.raises(JournalError, match="entry 3 was given where entry 2 is next"):
        pieces.project(entries[3:])
    with pytest.raises(ProjectionBusyError):
        tracker.projection("pieces").project(entries)
    assert [pieces.project([entry]) for entry in entries[2:]] == [1] * (len(entries) - 2)
    assert pieces.next_seq == len(entries)
    pieces.finish()
    assert tracker.picture("pieces") == expected

    again.project(entries, rebuild=True)
    again.finish()
    assert tracker.picture("whole") == expected


class Crash(Exception):
    pass


class CrashingClient:
    """Raises after call number ``at`` took place."""

    def __init__(self, client: Any, at: int) -> None:
        self._client, self._at, self.calls = client, at, 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            self.calls += 1
            if self.calls == self._at:
                raise Crash(name)
            return result

        return call


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_after_any_call_changes_nothing(tracker: Tracker, every: int) -> None:
    def train(job: Job, clock: Clock) -> Report:
        return bad(job, clock, Outcome.ERROR) if job.trial == 1 else good(job, clock)

    study = play(*start(MemoryJournal(), configs=2, top=2), train)
    entries = entries_of(study)
    half = len(entries) // 2
    counted = CrashingClient(tracker.client, 0)
    once = tracker.projection("once", counted)
    for part in (entries[:half], entries):
        once.project(part)
    once.finish()
    once.close()
    expected = tracker.picture("once")
    assert counted.calls > 15
    failed = tracker.runs("once")[1]
    assert failed.info.status == "FAILED" and failed.data.metrics["val_loss"] == 99.0, "how it failed is to be seen"
    assert "error once: it broke" in failed.data.tags["mlflow.note.content"]
    for at in range(1, counted.calls + 1, every):
        client = CrashingClient(tracker.client, at)
        projection = tracker.projection(f"crash-{at}", client)
        crashed = False
        for _ in range(2):
            try:
                for part in (entries[:half], entries):
                    projection.project(part)
                projection.finish()
            except Crash:
                crashed = True
                if at % 2:  # the process died; else it lived on and tries again
                    projection.close()
                    projection = tracker.projection(f"crash-{at}", client)
        projection.close()
        assert crashed or client.calls >= at  # tables on the way are allowed to fail
        assert tracker.picture(f"crash-{at}") == expected, f"after call {at}"


def test_deleted_runs_stay_deleted_until_rebuilt(tracker: Tracker) -> None:
    study, clock = start(MemoryJournal(), configs=6)
    play(study, clock, jobs=4)
    projection = tracker.projection()
    projection.project(entries_of(study))
    play(study, clock)
    entries = entries_of(study)
    gone = max(study.state.trials, key=lambda trial: trial.resource).number
    tracker.client.delete_run(tracker.runs()[gone].info.run_id)
    with pytest.raises(Exception, match="must be in the 'active' state"):
        projection.project(entries)
    projection.project(entries)  # after an error it looks again, and finds the deletion
    projection.finish()
    assert [int(run.data.tags["hpo.trial"]) for run in tracker.runs()] == [k for k in range(6) if k != gone]
    projection.close()

    tracker.client.delete_run(tracker.parent().info.run_id)
    fresh = tracker.projection()
    fresh.project(entries)
    assert tracker.runs(kind="study") == []
    fresh.project(entries, rebuild=True)
    fresh.finish()
    fresh.close()
    reference = tracker.projection("reference")
    reference.project(entries)
    reference.finish()
    assert tracker.picture() == tracker.picture("reference")


def test_values_mlflow_cannot_hold(tracker: Tracker) -> None:
    def train(job: Job, clock: Clock) -> Report:
        report = good(job, clock)
        value = {0: math.nan, 1: math.inf}.get(job.trial)
        if value is None:
            return report
        metrics = {"val_loss": value, "f1@5": 0.5, "../up": 1.0, "f1#5": 0.25}
        return Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.DIVERGED, metrics=metrics, ended=clock.time)

    study = play(*start(MemoryJournal(), configs=3, top=1), train)
    projection = tracker.projection()
    projection.project(entries_of(study))
    nan, infinite, fine = tracker.runs()
    assert math.isnan(nan.data.metrics["val_loss"]) and math.isnan(infinite.data.metrics["val_loss"])
    assert infinite.data.tags["hpo.state"] == "diverged"
    assert sorted(value for key, value in nan.data.metrics.items() if key.startswith("f1_5-")) == [0.25, 0.5]
    assert fine.data.metrics["val_loss"] < 1e9
    assert tracker.parent().data.tags["hpo.best_trial"] == "2"


def test_many_metrics_and_parameters_are_split(tracker: Tracker) -> None:
    def train(job: Job, clock: Clock) -> Report:
        report = good(job, clock)
        curve = tuple(Point(step, {f"m{k}": step + k for k in range(30)}) for step in range(1, job.target + 1))
        return Report(
            trial=job.trial, attempt=job.attempt, outcome=report.outcome, metrics=report.metrics, curve=curve,
            started=report.started, ended=report.ended,
        )  # fmt: skip

    space = {f"p{k}": {"type": "float", "low": 0, "high": 1} for k in range(130)} | {
        "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "width": {"type": "int", "low": 8, "high": 64},
    }
    search = {"method": "random", "configs": 1, "max_resource": 60}
    study = play(*start(MemoryJournal(), search=search, space=space), train)
    tracker.projection().project(entries_of(study))
    (run,) = tracker.runs()
    assert len(run.data.params) == 134
    assert len(tracker.history(run, "m29")) == 60
    assert len(tracker.parent().data.params) > 133


def test_halted_study_and_its_second_life(tracker: Tracker) -> None:
    def train(job: Job, clock: Clock) -> Report:
        return bad(job, clock, Outcome.PREEMPTED)

    study, clock = start(MemoryJournal(), configs=4)
    play(study, clock, jobs=1)
    study.stop("enough for today")
    for job in study.state.wanted():
        study.tell_report(train(job, clock))
    projection = tracker.projection()
    projection.project(entries_of(study))
    projection.finish()
    parent = tracker.parent()
    assert (parent.info.status, parent.data.tags["hpo.status"]) == ("KILLED", "halted")
    assert parent.data.tags["hpo.halted"] == "enough for today"
    states = [(run.info.status, run.data.tags["hpo.state"]) for run in tracker.runs()]
    assert states[0][0] == "FINISHED" and states[0][1] in ("paused", "winner")
    assert ("KILLED", "waiting") in states
    assert tracker.runs()[1].data.tags["hpo.failure"] == "attempt 0 (training to 1): preempted: it broke"

    study.recover("again")
    play(study, clock, jobs=1)
    projection.project(study.journal.entries(NAME, projection.next_seq))
    assert tracker.parent().info.status == "RUNNING"
    assert "RUNNING" in {run.info.status for run in tracker.runs()}
    play(study, clock)
    projection.project(study.journal.entries(NAME, projection.next_seq))
    projection.finish()
    assert tracker.parent().info.status == "FINISHED"
    assert tracker.parent().data.tags["hpo.halted"] == ""
    assert {run.info.status for run in tracker.runs()} == {"FINISHED"}


def test_the_best_of_several_objectives_is_a_file_of_the_front(tracker: Tracker) -> None:
    def train(job: Job, clock: Clock) -> Report:
        report = good(job, clock)
        report.metrics["size"] = float(-job.params["width"])
        return report

    metrics = [{"name": "val_loss"}, {"name": "size", "mode": "max"}]
    study = play(*start(MemoryJournal(), configs=6, metrics=metrics, metric={"name": "val_loss"}), train)
    projection = tracker.projection()
    projection.project(entries_of(study))
    projection.finish()
    front = json.loads(tracker.text(tracker.parent(), "front.json"))["front"]
    assert [row["trial"] for row in front] == [member.trial for member in study.front] and len(front) > 1
    assert f"the Pareto front of {len(front)} results" in tracker.parent().data.tags["mlflow.note.content"]


def test_importing_the_tracking_package_imports_no_tracker() -> None:
    code = (
        "import sys, hpo_core.tracking, hpo_core.tracking.mlflow_projection; "
        "assert 'mlflow' not in sys.modules and 'optuna' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
