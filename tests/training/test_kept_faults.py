"""Faults of processes that stay: each ends that process alone, the next attempt goes on, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.trial import Job, Outcome, Report, Rung, Unit
from hpo_core.training.child.processes import TAG_VARIABLE, children
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.request import JobRequest
from hpo_core.training.worker import TrainerPool
from tests.job_requests import changed, make_request
from tests.waiting import eventually, gone

MODULE = """
import importlib, os, sys, time
import numpy as np
from pathlib import Path, PosixPath
main = sys.modules["__main__"]
for name, value in __PATCHES__.items():
    importlib.import_module(name.rpartition(".")[0] or "sys")
    module, _, name = name.rpartition(".")
    setattr(sys.modules[module] if module else main, name, value)

def train(trial):
    do = trial.params.get("do")
    print("process", os.getpid())
    (trial.folder / "pid").write_text(str(os.getpid()))
    if do == "hang":
        time.sleep(3600)
    if do == "take":
        block = np.ones(trial.params["bytes"], np.uint8)
    if do == "leak":
        np.leaked = np.ones(trial.params["bytes"], np.uint8)
    if do == "burn":
        until = time.process_time() + 1.0
        while time.process_time() < until:
            pass
    for step in trial.steps():
        trial.report(loss=0.5)
"""
MB = 1 << 20
KILLED_OR_STOPPED = [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]


class Bench:
    """A trainer of a plain function in a folder of its own."""

    def __init__(self, folder: Path, patches: dict[str, Any] | None = None) -> None:
        (folder / "plain.py").write_text(MODULE.replace("__PATCHES__", repr(patches or {})))
        self.folder = folder
        self.trainer = Trainer("plain:train", (str(folder),))
        self.attempts = 0

    def request(self, do: str = "", *, size: int = 0, **changes: Any) -> JobRequest:
        self.attempts += 1
        job = Job(0, self.attempts, Rung(0, 0), 1, {"do": do, "bytes": size})
        request = make_request(
            job=job, objective="plain:train", folder=str(self.folder),
            pythonpath=(str(self.folder),), process="kept", grace=2.0,
        )  # fmt: skip
        return changed(request, **changes)

    def run(self, do: str = "", **changes: Any) -> Report:
        return self.trainer.run(self.request(do, **changes))

    def stays(self) -> int:
        """Train something that ends well; returns the id of its process, which waits."""
        report = self.run()
        assert report.outcome is Outcome.COMPLETED, report
        assert self.waiting, report.warnings
        return self.waiting

    @property
    def waiting(self) -> int:
        return 0 if self.trainer.waiting is None else self.trainer.waiting.pid

    @property
    def zygote(self) -> int:
        return self.trainer.pid

    @property
    def tag(self) -> str:
        return self.trainer._tag

    def busy(self, **changes: Any) -> tuple[int, Callable[[], Report]]:
        """Hang in the process that waits; returns its id, and how to wait for the report."""
        before, reports = self.stays(), list[Report]()
        (self.folder / "scratch/trial-00000/pid").unlink()
        thread = threading.Thread(target=lambda: reports.append(self.run("hang", **changes)))
        thread.start()
        eventually((self.folder / "scratch/trial-00000/pid").exists)

        def report() -> Report:
            thread.join(300)
            return reports[0]

        return before, report


def waiting_in(pool: TrainerPool) -> list[int]:
    return [one.waiting.pid for one in pool._idle if one.waiting is not None and not gone(one.waiting.pid)]


def left(tag: str) -> list[psutil.Process]:
    """Processes that a zygote, or its children, started."""
    return [
        one for one in psutil.process_iter(["environ"], ad_value={}) if one.info["environ"].get(TAG_VARIABLE) == tag
    ]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.trainer.prepare()
    tag = bench.tag
    yield bench
    bench.trainer.close()
    eventually(lambda: not left(tag))


def test_attempts_run_in_one_process_each_with_a_log_of_its_own(bench: Bench) -> None:
    process = bench.stays()
    assert bench.stays() == process
    for attempt in (1, 2):
        assert (bench.folder / f"logs/trial-00000-attempt-{attempt}.log").read_text() == f"process {process}\n"


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_waits_is_replaced_when_it_is_ended_or_stopped(bench: Bench, what: signal.Signals) -> None:
    process, zygote = bench.stays(), bench.zygote
    os.kill(process, what)
    assert bench.stays() != process
    assert gone(process) and bench.zygote == zygote


def test_a_process_that_is_killed_loses_its_attempt_alone(bench: Bench) -> None:
    process, report = bench.busy()
    os.kill(process, signal.SIGKILL)
    assert report().outcome is Outcome.CRASHED
    assert bench.stays() != process


@pytest.mark.parametrize("what", KILLED_OR_STOPPED)
def test_a_zygote_that_is_ended_or_stopped_takes_the_process_along(bench: Bench, what: signal.Signals) -> None:
    process, report = bench.busy(zygote_timeout=3.0)
    tag = bench.tag
    os.kill(bench.zygote, what)
    lost = report()
    assert lost.outcome is Outcome.LOST and (what is signal.SIGSTOP or "signal 9" in lost.message)
    eventually(lambda: gone(process) and not left(tag))
    assert bench.stays() != process


SCRIPT = """
import sys, threading, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.training.test_kept_faults import Bench
bench = Bench(Path({folder!r}))
bench.stays()
print(bench.tag, flush=True)
if {busy}:
    bench.run("hang")
time.sleep(600)
"""


@pytest.mark.parametrize("busy", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("what", KILLED_OR_STOPPED)
def test_no_process_outlives_its_worker(tmp_path: Path, busy: bool, what: signal.Signals) -> None:
    root = str(Path(__file__).parents[2])
    script = SCRIPT.format(root=root, folder=str(tmp_path), busy=busy)
    worker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        tag = worker.stdout.readline().strip()
        assert len(left(tag)) == 2, "zygote and child"
        if busy:
            eventually((tmp_path / "logs/trial-00000-attempt-2.log").exists)
        worker.send_signal(what)
        if what is signal.SIGSTOP:
            assert len(left(tag)) == 2
    finally:
        worker.kill()
        worker.wait()
    eventually(lambda: not left(tag))


def test_a_process_is_forked_ahead_of_its_attempt_and_serves_it_alone(bench: Bench) -> None:
    def ahead() -> int:
        return eventually(lambda: children(bench.zygote))[0]

    def trained() -> int:
        assert bench.run(process="fresh").outcome is Outcome.COMPLETED
        return int((bench.folder / "scratch/trial-00000/pid").read_text())

    first = trained()
    second = ahead()
    assert trained() == second != first and gone(second)
    third = ahead()
    os.kill(third, signal.SIGKILL)
    assert trained() not in (first, second, third)


def share(capacity: int, **changes: Any) -> Portion:
    given = {"device": "node", "architecture": "CPU", "compute": 1000, "cores": 1000, **changes}
    return Portion(memory=capacity, capacity=capacity, **given)


def test_what_an_attempt_used_is_its_own(bench: Bench) -> None:
    big = bench.run("take", size=200 * MB)
    busy = bench.run("burn")
    small = bench.run()
    assert big.usage and busy.usage and small.usage
    assert big.usage.memory > 150 * MB > 100 * MB > small.usage.memory
    assert busy.usage.memory < 100 * MB
    assert busy.usage.cores > small.usage.cores or small.seconds < 0.1
    assert bench.waiting


def test_another_demand_gets_another_process(bench: Bench) -> None:
    first = bench.stays()
    for changes in ({"threads": 2}, {"portion": share(10**9)}, {"study": "t"}, {"process": "fresh"}):
        bench.run(**changes)
        assert bench.waiting != first or not bench.waiting, changes
        first = bench.stays()


def test_a_process_that_grew_is_replaced(bench: Bench) -> None:
    process = bench.stays()
    report = bench.run("leak", size=300 * MB)
    assert (report.outcome, bench.waiting) == (Outcome.COMPLETED, 0) and not report.warnings
    assert gone(process)


def test_a_process_serves_so_many_attempts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"hpo_core.training.child.attempt_process.MOST_ATTEMPTS": 2})
    assert bench.stays()
    assert bench.run().outcome is Outcome.COMPLETED and not bench.waiting
    assert bench.stays()
    bench.trainer.close()


@pytest.mark.slow
def test_a_process_does_not_wait_for_ever(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"IDLE_SECONDS": 0.1})
    process = bench.stays()
    eventually(lambda: gone(process))
    assert bench.stays() != process
    bench.trainer.close()


LOADER = """
import numpy as np
def load(path):
    print("load", path.name)
    return {"x": np.full(500_000, float(path.read_text()))}

def train(trial):
    trial.track(state=hpo_core.State(a=1))
    for step in trial.steps():
        data = trial.partition
        trial.report(loss=float(data["x"].sum()))
import hpo_core
"""


def test_a_partition_that_lies_in_the_process_serves_the_next_attempt(tmp_path: Path) -> None:
    (tmp_path / "hopping.py").write_text(LOADER)
    for name in ("a", "b"):
        (tmp_path / name).write_text("1" if name == "a" else "2")
    trainer = Trainer("hopping:train", (str(tmp_path),))

    def run(partition: str, number: int) -> tuple[float, int]:
        unit = Unit(partition, "ab".index(partition), 0, 2, number, state=f"hops/state-{number}")
        job = Job(0, 0, Rung(0, 0), 1, {}, unit=unit)
        report = trainer.run(
            make_request(
                job=job, objective="hopping:train", folder=str(tmp_path / "study"),
                pythonpath=(str(tmp_path),), process="kept", load="hopping:load", partition_folder=str(tmp_path),
                partitions=(partition,), required="none",
            )
        )  # fmt: skip
        assert report.outcome is Outcome.COMPLETED, report
        return report.curve[-1].metrics["loss"], 0 if trainer.waiting is None else trainer.waiting.pid

    first = run("a", 1)
    assert first[0] == 500_000.0 and first[1]
    assert run("a", 2) == first, "the same process, with the same data"
    second = run("b", 3)
    assert second[0] == 1_000_000.0 and second[1] not in (0, first[1])
    trainer.close()


def test_the_pool_ends_processes_of_an_older_version_of_the_code(tmp_path: Path) -> None:
    bench, pool = Bench(tmp_path), TrainerPool()
    try:
        pool.run(bench.request())
        (process,) = waiting_in(pool)
        pool.prepare("plain:train", (str(tmp_path),))
        assert gone(process) and not waiting_in(pool)
    finally:
        pool.close_all()
