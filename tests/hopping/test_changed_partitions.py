"""A partition that is replaced while its worker runs: no unit trains on it unseen. And what is kept of those loaded."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpo_core import Study, StudySpec
from hpo_core.execution.in_process import InProcessExecutor
from hpo_core.execution.loop import Loop
from hpo_core.model.partition_file import PartitionFile
from hpo_core.model.trial import Job, Outcome, Report, Rung, Unit
from hpo_core.partitioning.holdings import Held, Holdings
from hpo_core.partitioning.resolution import with_partitions
from hpo_core.training import partition_data as here
from hpo_core.training.request import JobRequest
from hpo_core.training.worker import train_job, trainers
from tests.hopping.hopping_objectives import write_partitions
from tests.job_requests import changed, make_request
from tests.waiting import eventually

OBJECTIVE, LOAD = "tests.hopping.hopping_objectives:train", "tests.hopping.hopping_objectives:load"


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    trainers.close_idle(OBJECTIVE)
    here.forget_partitions("study")


def request_for(folder: Path, number: int, **more: Any) -> JobRequest:
    unit = Unit("part-0.npz", 0, 0, 1, number, f"hops/trial-00000/attempt-0-unit-{number:06d}.safetensors")
    return make_request(
        study="changes", job=Job(0, 0, Rung(0, 0), 1, {"lr": 0.01}, unit=unit), objective=OBJECTIVE,
        metric="train_loss", seed=1, folder=str(folder), partition_folder=str(folder / "data"),
        partitions=("part-0.npz",), load=LOAD, **more,
    )  # fmt: skip


def test_a_unit_trains_on_no_file_that_nobody_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker says what it holds every few seconds; a file may be replaced in between."""
    monkeypatch.setattr(here, "LOOK_SECONDS", 3600.0)
    write_partitions(tmp_path / "data", [0])
    path = tmp_path / "data" / "part-0.npz"
    content = path.read_bytes()
    file = PartitionFile(name=path.name, bytes=len(content), digest=hashlib.sha256(content).hexdigest())

    def trained(number: int) -> Report:
        return train_job(request_for(tmp_path, number))

    def held() -> list[int]:
        return here.held_partitions()[str(tmp_path)][0]

    here.watch_partitions(str(tmp_path), str(tmp_path / "data"), [file])
    try:
        assert trained(0).outcome is Outcome.COMPLETED
        path.write_bytes(content[:-1] + b"x")
        assert held() == [0], "not known yet"
        report = trained(1)
        assert report.outcome is Outcome.LOST, "the trial is not to blame"
        assert "part-0.npz changed since this worker looked at it" in report.message
        eventually(lambda: here.held_partitions()[str(tmp_path)][1])
        assert held() == [], "it was looked at again at once"
        assert trained(2).outcome is Outcome.LOST, "a unit that was on its way"
        path.write_bytes(content)
        monkeypatch.setattr(here, "LOOK_SECONDS", 0.0)
        eventually(lambda: held() == [0])  # the look for that unit may be going on, at the file before
        assert trained(3).outcome is Outcome.COMPLETED
    finally:
        here.forget_partitions(str(tmp_path))


MISHAPS = "tests.hopping.partition_mishaps"


def looked_at(folder: Path, *, known: bool = True) -> Path:
    """A partition that its worker has looked at; with ``known`` the study knows its size and digest."""
    write_partitions(folder / "data", [0])
    path = folder / "data" / "part-0.npz"
    content = path.read_bytes()
    more = {"bytes": len(content), "digest": hashlib.sha256(content).hexdigest()} if known else {}
    here.watch_partitions(str(folder), str(folder / "data"), [PartitionFile(name=path.name, **more)])
    assert here._watched[str(folder)].known.wait(600)
    return path


def trained_with(folder: Path, objective: str, load: str) -> Report:
    request = changed(
        request_for(folder, 0), objective=f"{MISHAPS}:{objective}", load=f"{MISHAPS}:{load}" if load else "",
        metrics=("train_loss",),
    )  # fmt: skip
    try:
        return train_job(request)
    finally:
        trainers.close_idle(request.setup.objective)
        here.forget_partitions(str(folder))


@pytest.mark.parametrize(
    ("mishap", "known", "objective", "load"),
    [
        ("delete", True, "train", ""), ("replace", True, "train", ""), ("truncate", False, "train", ""),
        ("replace", False, "slow", "load"), ("forbid", True, "slow", "load"), ("blink", True, "slow", "load"),
    ],
)  # fmt: skip
def test_what_happens_to_a_partition_while_it_is_read_is_not_the_trials_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mishap: str, known: bool, objective: str, load: str
) -> None:
    monkeypatch.setattr(here, "LOOK_SECONDS", 3600.0)
    looked_at(tmp_path, known=known)
    (tmp_path / "data" / "mishap").write_text(mishap)
    report = trained_with(tmp_path, objective, load)
    if report.outcome is Outcome.COMPLETED:  # the zygote could not load it, and the child could
        assert mishap == "replace" if not load else mishap in ("blink", "forbid", "replace")
        assert mishap == "blink" or not known, "the study knows what it must be, and it is another file"
    else:
        assert report.outcome is Outcome.LOST, report
        assert "part-0.npz" in report.message
        assert report.doubt is not msgspec.UNSET and report.doubt.partition == "part-0.npz"


@pytest.mark.parametrize(
    ("mishap", "objective", "load", "outcome", "says"),
    [
        # nobody knows when a function that gets the path has read it: it may have seen half of the old file
        ("truncate", "train_and_then", "", Outcome.LOST, "part-0.npz"),
        ("replace", "train_and_then", "", Outcome.LOST, "part-0.npz"),
        ("", "train_mapped", "", Outcome.LOST, "SIGBUS"),
        ("bug", "train", "", Outcome.ERROR, "a bug of the user"),
        ("network", "slow", "load", Outcome.ERROR, "Connection timed out"),
    ],
)
def test_a_trial_is_to_blame_where_its_partition_is_intact_and_else_the_unit_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mishap: str, objective: str, load: str, outcome: Outcome, says: str
) -> None:
    monkeypatch.setattr(here, "LOOK_SECONDS", 3600.0)
    looked_at(tmp_path)
    (tmp_path / "data" / "mishap").write_text(mishap)
    report = trained_with(tmp_path, objective, load)
    assert report.outcome is outcome and says in report.message, report
    assert (report.doubt is msgspec.UNSET) == (outcome is Outcome.ERROR)
    assert not list((tmp_path / "hops").rglob("*.safetensors")), "no state of it is left"


@pytest.mark.parametrize(("mishap", "objective", "load"), [("delete", "slow", "load"), ("blink", "train", "")])
def test_a_study_in_the_users_own_process_halts_without_its_partition(
    tmp_path: Path, mishap: str, objective: str, load: str
) -> None:
    """No other worker may have it, and each trial would meet the same."""
    write_partitions(tmp_path / "data", [0, 1])
    (tmp_path / "data" / "mishap").write_text(mishap)
    data = {"partitions": "part-*.npz", "folder": str(tmp_path / "data")}
    spec = StudySpec.from_plain(
        {
            "study": "own",
            "objective": f"{MISHAPS}:{objective}",
            "metric": {"name": "train_loss", "mode": "min"},
            "space": {"lr": {"type": "float", "low": 0.0, "high": 1.0}},
            "search": {"method": "random", "max_resource": 2, "configs": 3},
            "data": data | ({"load": f"{MISHAPS}:{load}"} if load else {}),
        }
    )
    study = Study.create(with_partitions(spec))
    Loop(study, InProcessExecutor(study.spec, tmp_path / "runs")).run()
    assert study.status == "halted" and study.state.halted is not None
    assert "part-0.npz" in study.state.halted.reason
    assert not any(trial.abandoned for trial in study.state.trials)
    assert {failure.outcome for trial in study.state.trials for failure in trial.failures} == {Outcome.STORAGE}


@pytest.mark.parametrize(("small", "stay"), [(here.SMALL_BYTES, 3), (0, 2)])
def test_small_partitions_stay_in_memory_beside_those_of_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, stay: int
) -> None:
    monkeypatch.setattr(here, "SMALL_BYTES", small)
    here._loaded.clear()
    write_partitions(tmp_path, [0, 1, 2])
    for number in range(3):
        unit = Unit(f"part-{number}.npz", number, number, 3, number, cached=2)
        request = make_request(
            study="s", job=Job(0, 0, Rung(0, 0), 1, {}, unit=unit), objective="a:b", metric="loss", seed=1,
            folder=str(tmp_path), partition_folder=str(tmp_path), partitions=(unit.partition,), load=LOAD,
        )  # fmt: skip
        here.partition_data(request, unit.partition)
        assert here.is_loaded(request, unit.partition)
    assert len(here._loaded) == stay


FILES = [PartitionFile(name="part-0.npz"), PartitionFile(name="part-1.npz")]


def test_digests_that_take_long_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller asks again when a worker does not answer in time; each would read all data once more."""
    (tmp_path / "part-1.npz").write_bytes(b"data")
    began, go_on, original, looks = threading.Event(), threading.Event(), Holdings.look, []

    def look(self: Holdings) -> Held:
        looks.append(self)
        began.set()
        assert go_on.wait(600)
        return original(self)

    monkeypatch.setattr(Holdings, "look", look)
    monkeypatch.setattr(here, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(here, "LOOK_SECONDS", 3600.0)
    for _ in range(3):
        here.watch_partitions("study", str(tmp_path), FILES)
    assert began.wait(600)
    assert len(looks) == 1
    assert "study" not in here.held_partitions(), "what is not known yet is not said to be nothing"
    go_on.set()
    assert here._watched["study"].known.wait(600)
    assert here.held_partitions()["study"][:2] == ([1], {})
    here.watch_partitions("study", str(tmp_path), FILES)
    assert len(looks) == 1
