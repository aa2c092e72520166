"""Models that hop between real Dask workers, each with a folder of its own; workers and controllers are killed."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_core.checkpoints.files import load
from hpo_core.checkpoints.storage import exists, hop_files
from hpo_core.home import Home
from hpo_core.model.errors import HpoError
from hpo_core.model.events import Entry, JobCompleted
from hpo_core.model.trial import Outcome
from hpo_core.replay.audit import audit
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from tests.dask_processes import DaskProcesses
from tests.hopping.hopping_objectives import write_partitions
from tests.storage_servers import s3, sftp
from tests.waiting import eventually

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LIMIT = 600
BUSY = 300
"""``training.worker_timeout`` of a computer that does much else."""


class Cluster(DaskProcesses):
    """Workers that hold different partitions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "dask")
        self._partitions = folder
        self.hidden: Path | None = None
        """Folder that is empty for workers that start."""

    def worker(self, name: str, numbers: list[int], *, validation: int = 0) -> Path:
        place = self._partitions / name / "data"
        write_partitions(place, numbers, validation=validation)
        environment = {"HPO_PARTITION_FOLDER": str(place), "HOP_TEST_SECONDS": "0.1"}
        self.add_worker(name, environment=environment, hidden=self.hidden)
        return place


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.close()


@pytest.fixture(params=["folder", "s3", "sftp"])
def checkpoints(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the study file says of them; but for ``folder`` no worker sees the study's folder."""
    with contextlib.ExitStack() as stack:
        found = {}
        if request.param == "s3":
            stack.enter_context(s3())
            found = {"checkpoints": {"folder": "s3://bucket/hpo"}}
        elif request.param == "sftp":
            server = stack.enter_context(sftp(tmp_path / "sshd"))
            found = {"checkpoints": {"folder": f"sftp://127.0.0.1:{server.port}{tmp_path}/served"}}
        cluster = request.getfixturevalue("cluster")
        if request.param != "folder":
            cluster.hidden = tmp_path / "home"
            cluster.hidden.mkdir(mode=0o700)
            mount = ["unshare", "-m", "mount", "-t", "tmpfs", "none", cluster.hidden]
            if subprocess.run(mount, capture_output=True).returncode:
                pytest.skip("this machine forbids mounts")
        yield found


class Hopping:
    """One study in a home of its own."""

    def __init__(self, folder: Path, *, name: str = "hops", address: str | None = None, **changes: Any) -> None:
        self.folder, self.name = folder, name
        self.home = Home(folder / "home")
        plain: dict[str, Any] = {
            "study": name,
            "objective": "tests.hopping.hopping_objectives:train",
            "metric": {"name": "val_loss", "mode": "min"},
            "space": {"lr": {"type": "float", "low": 0.001, "high": 0.05, "log": True}},
            "search": {"method": "asha", "min_resource": 1, "max_resource": 4, "reduction_factor": 2, "configs": 6},
            "data": {
                "partitions": [f"part-{number}.npz" for number in range(4)],
                "validation": ["val-0.npz", "val-1.npz"],
                "folder": str(folder / "data"),
                "load": "tests.hopping.hopping_objectives:load",
            },
            "cluster": {"kind": "local", "workers": 2} if address is None else {"kind": "address", "address": address},
            "training": {"worker_timeout": BUSY},
            "tracking": {"mlflow": "off"},
        }
        self.base = StudySpec.from_plain(plain | changes).checkpoint_base
        self.file = folder / f"{name}.json"
        self.file.write_text(json.dumps(plain | changes))

    def start(self) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "tests.faults.controller", str(self.home.folder), str(self.file)]
        return subprocess.Popen(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self) -> str:
        process = self.start()
        said, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, said
        return said

    def entries(self) -> list[Entry]:
        try:
            journal = self.home.read_journal()
            try:
                return list(journal.entries(self.name))
            finally:
                journal.close()
        except HpoError:
            return []

    def completed(self) -> list[JobCompleted]:
        return [event for entry in self.entries() for event in entry.events if isinstance(event, JobCompleted)]

    def study(self) -> Study:
        journal = self.home.read_journal()
        study = Study.open(self.name, journal, reading=True)
        assert audit(list(journal.entries(self.name))).clean
        journal.close()
        return study

    def states(self) -> dict[tuple[int, int], dict[str, Any]]:
        """By (trial, epochs): the model that was saved, as far as it was kept."""
        folder, base = self.home.study_folder(self.name), self.base
        kept = [one for one in self.completed() if one.checkpoint and exists(folder, one.checkpoint.uri, base)]
        return {
            (event.trial, event.resource): load(folder, event.checkpoint, base)["tracked"]["model"]
            for event in kept
            if event.checkpoint
        }


def judge(hopping: Hopping) -> None:
    """What the models themselves remember agrees with the journal: each partition once an epoch, in its order."""
    order: dict[int, dict[int, list[int]]] = {}
    for event in hopping.completed():
        assert isinstance(event.visits, tuple)
        for visit in event.visits:
            if visit.partition < 4:
                order.setdefault(event.trial, {}).setdefault(visit.epoch, []).append(visit.partition)
    states = hopping.states()
    assert states
    for (trial, epochs), model in states.items():
        seen = [number for epoch in range(epochs) for number in order[trial][epoch]]
        assert model["seen"] == seen
        assert all(sorted(seen[4 * e : 4 * e + 4]) == [0, 1, 2, 3] for e in range(epochs))
    assert not list((hopping.home.study_folder(hopping.name) / "hops").glob("*/*")), "no state is left on its way"
    assert not hop_files(hopping.home.study_folder(hopping.name), hopping.base)


def test_partitions_stay_in_the_workers_own_folders(cluster: Cluster, tmp_path: Path) -> None:
    """One worker is killed and one joins in the middle; each partition is read where it lies."""
    places = {name: cluster.worker(name, numbers, validation=v) for name, numbers, v in
              (("a", [0, 1], 1), ("b", [2, 3], 2), ("c", [1, 2], 0))}  # fmt: skip
    hopping = Hopping(tmp_path, address=cluster.address)
    process = hopping.start()
    eventually(lambda: len(hopping.completed()) >= 2, process=process)
    cluster.kill("c")
    eventually(lambda: len(hopping.completed()) >= 4, process=process)
    places["d"] = cluster.worker("d", [0, 3])
    said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said
    assert hopping.study().status == "finished"
    judge(hopping)
    holds = {"a": {0, 1}, "b": {2, 3}, "c": {1, 2}, "d": {0, 3}}
    folders = {str(place): holds[name] for name, place in places.items()}
    for model in hopping.states().values():
        assert all(number in folders[place] for number, place in zip(model["seen"], model["folders"], strict=True))


def test_a_killed_controller_repeats_no_epoch_that_ended(
    checkpoints: dict[str, Any], cluster: Cluster, tmp_path: Path
) -> None:
    """kill -9 at random moments: every model still saw each partition once an epoch."""
    cluster.worker("a", [0, 1, 2, 3], validation=2)
    cluster.worker("b", [0, 1, 2, 3], validation=2)
    long = {"method": "random", "max_resource": 5, "configs": 4}
    hopping = Hopping(tmp_path, address=cluster.address, search=long, **checkpoints)
    draw = random.Random(7)
    progressed = hopping.home.folder / "studies" / "hops" / "hops"
    for _ in range(3):
        process = hopping.start()
        eventually(lambda: any(progressed.glob("*/progress.msgpack")) or len(hopping.completed()) == 4, process=process)
        time.sleep(draw.uniform(0.0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
    hopping.run()
    assert hopping.study().status == "finished"
    judge(hopping)
    began = [visit.started for event in hopping.completed() for visit in event.visits if visit.epoch == 0]
    ended = [event.ended for event in hopping.completed()]
    assert len(ended) == 4 and min(began) < min(ended)


def test_a_worker_that_stood_still_counts_no_unit_twice(cluster: Cluster, tmp_path: Path) -> None:
    """SIGSTOP for longer than ``worker_timeout``: its unit is repeated, and what it says later is not heard."""
    for name in ("a", "b"):
        cluster.worker(name, [0, 1, 2, 3], validation=2)
    hopping = Hopping(
        tmp_path,
        address=cluster.address,
        cluster={"kind": "address", "address": cluster.address},
        training={"worker_timeout": 5},
        search={"method": "random", "max_resource": 6, "configs": 6},
    )
    process = hopping.start()
    hops = hopping.home.study_folder(hopping.name) / "hops"
    # While all six still have units for both workers:
    eventually(lambda: any(hops.glob("*/progress.msgpack")), process=process)
    cluster.workers["b"].send_signal(signal.SIGSTOP)
    assert process.stdout is not None
    said = ""
    while "counts as gone" not in said:  # the study cannot end before: a unit of it lies on the one that stands still
        line = process.stdout.readline()
        assert line, said
        said += line
    cluster.workers["b"].send_signal(signal.SIGCONT)
    said += process.stdout.read()
    process.wait(LIMIT)
    assert process.returncode == 0, said
    assert hopping.study().status == "finished"
    judge(hopping)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("never_looks", "did not read trial.partition"),
        ("tracks_nothing", "nothing is tracked, so nothing would travel"),
        ("says_nothing_of_evaluation", r"Call trial\.evaluate_with\(function\) before the loop"),
        ("fails_on_the_second", r"epoch 1, part-1\.npz: .*this shard is odd"),
        ("reports_nothing", "Metric 'val_loss' was not reported at the target"),
    ],
)
def test_a_training_function_that_cannot_hop_is_told_so(tmp_path: Path, function: str, words: str) -> None:
    write_partitions(tmp_path / "data", [0, 1, 2, 3], validation=2)
    data = {"partitions": "part-*.npz", "folder": str(tmp_path / "data")}
    data["load"] = "tests.hopping.hopping_objectives:load"
    if function == "says_nothing_of_evaluation":
        data["validation"] = "val-*.npz"
    hopping = Hopping(
        tmp_path,
        objective=f"tests.hopping.hopping_objectives:{function}",
        data=data,
        search={"method": "random", "max_resource": 1, "configs": 2},
        training={"retries": {"error": 0}},
    )
    process = hopping.start()
    said, _ = process.communicate(timeout=LIMIT)
    failures = [failure for trial in hopping.study().state.trials for failure in trial.failures]
    assert failures, said
    assert all(failure.outcome is Outcome.ERROR and re.search(words, failure.message) for failure in failures)
