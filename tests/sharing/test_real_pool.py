"""Studies that share slots, each with a controller process of its own.

Three studies with weights 1, 1, 2 on one Dask cluster of 8 slots: one is killed, a fourth joins. Two studies with local
workers in a named pool: one gets a slot as a job ends, the other one's controller is stopped and goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from hpo_core.home import Home
from hpo_core.journal.sql import is_alive
from hpo_core.pool.seat import LEASE_SECONDS
from hpo_core.pool.store import live_rows
from hpo_core.pool.words import standings
from hpo_core.replay.audit import audit
from hpo_core.state import StudyState
from hpo_core.study import Study
from tests.dask_processes import DaskProcesses
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
LIMIT = 600.0
JOB_SECONDS = 4.0
SHORT = 8.0
"""Seconds for a slot to change hands: a job, two exchanges, and a busy machine."""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[bytes]] = []

    def run(name: str, measured: Measured, seconds: float, **changes: object) -> subprocess.Popen[bytes]:
        described = {
            "study": name,
            "objective": "tests.sharing.waiting_objective:train",
            "metric": {"name": "loss"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "constants": {"mark": name, "seconds": seconds, "file": str(measured.file)},
            "search": {"method": "random", "configs": 10_000, "max_resource": 1},
            "tracking": {"mlflow": "off"},
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(described | changes))
        command = [sys.executable, "-m", "hpo_flows", "tune", f"{name}.yaml", "--no-prefect"]
        with (tmp_path / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"PYTHONPATH": str(ROOT), "HPO_HOME": str(tmp_path / "home")},
            )  # fmt: skip
        running.append(process)
        return process

    yield run
    for process in reversed(running):
        process.terminate()
    for process in reversed(running):
        try:
            process.wait(600)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Measured:
    def __init__(self, file: Path) -> None:
        self.file = file

    def spans(self) -> list[tuple[str, float, float]]:
        open_jobs: dict[tuple[str, str], float] = {}
        found = []
        for line in self.file.read_text().splitlines() if self.file.exists() else []:
            mark, what, pid, moment = line.split()
            if what == "begins":
                open_jobs[mark, pid] = float(moment)
            else:
                found.append((mark, open_jobs.pop((mark, pid)), float(moment)))
        return [*found, *((mark, began, time.time()) for (mark, _), began in open_jobs.items())]

    def slot_seconds(self, since: float, until: float) -> dict[str, float]:
        found: dict[str, float] = {}
        for mark, begin, end in self.spans():
            found[mark] = found.get(mark, 0.0) + max(0.0, min(end, until) - max(begin, since))
        return found

    def most_at_once(self, since: float, until: float) -> int:
        spans = [(begin, end) for _, begin, end in self.spans() if end > since and begin < until]
        return max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans)


@pytest.mark.slow
def test_studies_on_one_cluster_have_their_shares_also_when_one_dies_and_another_comes(
    tmp_path: Path, dask_processes: DaskProcesses, start: Start
) -> None:
    for number in range(4):
        dask_processes.add_worker(f"worker-{number}", threads=2)
    measured = Measured(tmp_path / "jobs.txt")

    def study(name: str, weight: float) -> subprocess.Popen[bytes]:
        return start(name, measured, JOB_SECONDS, cluster=dask_processes.cluster, share={"weight": weight})

    def running(*names: str) -> Callable[[], bool]:
        def all_do() -> bool:
            now = time.time()
            return all(measured.slot_seconds(now - 3.0, now).get(name, 0.0) > 0 for name in names)

        return all_do

    controllers = {name: study(name, weight) for name, weight in (("a", 1.0), ("b", 1.0), ("c", 2.0))}
    eventually(running("a", "b", "c"))
    time.sleep(2 * SHORT)
    began = time.time()
    time.sleep(60.0)
    ended = time.time()
    found = measured.slot_seconds(began, ended)
    total = sum(found.values())
    shares = {name: seconds / total for name, seconds in sorted(found.items())}
    assert shares == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.5}, rel=0.1)
    assert measured.most_at_once(began, ended) <= 8
    source = Home(str(tmp_path / "home")).read_journal()
    seen = standings(live_rows(source, is_alive))
    assert [seen[name].share for name in "abc"] == [1, 1, 2]  # of four workers with two slots each

    os.killpg(controllers["c"].pid, signal.SIGKILL)
    eventually(
        lambda: sum(measured.slot_seconds(time.time() - 1.0, time.time()).get(name, 0.0) for name in "ab") > 6.5,
        seconds=LEASE_SECONDS + 2 * SHORT,
    )

    controllers["d"] = study("d", 2.0)
    eventually(running("d"))
    time.sleep(2 * SHORT)
    began = time.time()
    time.sleep(40.0)
    ended = time.time()
    found = measured.slot_seconds(began, ended)
    total = sum(found.values())
    shares = {name: found[name] / total for name in "abd"}
    assert shares == pytest.approx({"a": 0.25, "b": 0.25, "d": 0.5}, rel=0.1)
    for name in ("a", "b", "d"):
        controllers[name].send_signal(signal.SIGINT)
    for name in ("a", "b", "d"):
        assert controllers[name].wait(LIMIT) == 130, (tmp_path / f"{name}.log").read_text()[-3000:]
    assert standings(live_rows(source, is_alive)) == {}


@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "stopped"])
def test_local_clusters_in_one_pool_use_no_more_slots_than_one_of_them_has(
    tmp_path: Path, start: Start, stopped: bool
) -> None:
    measured = Measured(tmp_path / "jobs.txt")

    def study(name: str, seconds: float) -> subprocess.Popen[bytes]:
        return start(name, measured, seconds, cluster={"kind": "local", "workers": 2}, share={"pool": "cpu"})

    source = Home(str(tmp_path / "home")).open_journal()

    def state(name: str) -> StudyState:
        return Study.open(name, source, reading=True).state

    def begun(name: str) -> int:
        lines = measured.file.read_text().splitlines() if measured.file.exists() else []
        return sum(line.startswith(f"{name} begins") for line in lines)

    first = study("first", seconds=25.0)
    eventually(lambda: begun("first") == 2)
    second = study("second", seconds=3600.0)
    eventually(lambda: begun("second") == 1)  # on the slot of a job that ended
    eventually(lambda: begun("first") == 3)  # on the other one
    assert not any(trial.failures for trial in state("first").trials), "no job is ended for a share"

    if stopped:
        first.send_signal(signal.SIGSTOP)
        eventually(lambda: begun("second") == 2)
        first.send_signal(signal.SIGCONT)
        time.sleep(SHORT)
        assert (begun("first"), begun("second")) == (3, 2), "it goes on, and begins none"
        assert first.poll() is None and second.poll() is None
    for name, controller in (("second", second), ("first", first)):
        controller.send_signal(signal.SIGINT)
        assert controller.wait(LIMIT) == 130, (tmp_path / f"{name}.log").read_text()[-3000:]
    assert audit(source.entries("first")).clean and audit(source.entries("second")).clean
