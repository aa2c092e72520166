"""Processes that stand still (SIGSTOP): a study goes on without them, loses nothing and ends when it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo_core import Study
from hpo_core.model.events import AttemptFailed, JobGranted
from tests.dask_processes import DaskProcesses, trainings_of
from tests.faults.test_real_study import Real, descendants
from tests.flows.conftest import at_load

ENDLESS = {"method": "random", "configs": 4, "max_resource": 20_000}


def zygotes_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [zygote for zygote in descendants(process, "hpo_core.training.child.zygote") if trainings_of(zygote)]


def children_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [child for zygote in zygotes_of(process) for child in trainings_of(zygote)]


def outcomes(real: Real) -> Counter[str]:
    entries = real.home.open_journal().entries("real")
    return Counter(str(e.outcome) for entry in entries for e in entry.events if isinstance(e, AttemptFailed))


def messages(real: Real) -> list[str]:
    entries = real.home.open_journal().entries("real")
    return [e.message for entry in entries for e in entry.events if isinstance(e, AttemptFailed)]


def granted(real: Real) -> int:
    entries = real.home.open_journal().entries("real")
    return sum(isinstance(e, JobGranted) for entry in entries for e in entry.events)


def all_below(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def assert_gone(processes: list[psutil.Process], seconds: float = 30) -> None:
    _, alive = psutil.wait_procs(processes, timeout=at_load(seconds))
    left = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not left, [(p.pid, p.status(), p.cmdline()) for p in left]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Real]]:
    """Studies whose stopped processes are killed at the end, whatever a test found."""
    stopped: list[psutil.Process] = []
    started: list[subprocess.Popen[bytes]] = []

    def make_real(function: str = "slow", *, workers: int = 2, timeout: float = 5, **changes: Any) -> Real:
        changes.setdefault("cluster", {"kind": "local", "workers": workers})
        changes["training"] = {"worker_timeout": timeout} | changes.get("training", {})
        real = Real(tmp_path, function, **changes)
        start = real.start

        def start_and_note() -> subprocess.Popen[bytes]:
            process = start()
            started.append(process)
            return process

        real.start = start_and_note  # type: ignore[method-assign]
        return real

    yield make_real
    for process in started:
        if process.poll() is None:
            stopped += all_below(process)
            process.kill()
            process.wait()
    for left in stopped:
        if left.is_running():
            left.kill()


@pytest.fixture
def pair(dask_processes: DaskProcesses) -> DaskProcesses:
    for name in ("one", "two"):
        dask_processes.add_worker(name)
    return dask_processes


def with_children(workers: list[psutil.Process]) -> list[psutil.Process]:
    return [one for worker in workers for one in (worker, *worker.children(recursive=True))]


STANDING: dict[str, Callable[[subprocess.Popen[bytes], DaskProcesses | None], list[psutil.Process]]] = {
    "zygote": lambda process, _: zygotes_of(process)[:1],
    "everything": lambda process, _: [*zygotes_of(process), *children_of(process)],
    "one worker": lambda _, pair: with_children(pair.training()[:1]),  # type: ignore[union-attr]
    "both workers": lambda _, pair: with_children(pair.training()),  # type: ignore[union-attr]
}


@pytest.mark.slow
@pytest.mark.parametrize("which", STANDING)
def test_sigterm_ends_a_study_whose_processes_are_stopped(
    make: Callable[..., Real], request: pytest.FixtureRequest, which: str
) -> None:
    """With the default of a minute, so that nothing is noticed before the signal comes."""
    pair = request.getfixturevalue("pair") if "worker" in which else None
    real = make(timeout=60, search=ENDLESS, **({"cluster": pair.cluster} if pair else {}))
    process = real.start()
    real.wait_for_entries(3, process)
    real.until(lambda: len(pair.training() if pair else children_of(process)) == 2, process)
    below = all_below(process)
    for stopped in STANDING[which](process, pair):
        stopped.suspend()
    time.sleep(1.5)  # the driver has looked at its cluster meanwhile
    process.send_signal(signal.SIGTERM)
    process.wait(at_load(120))
    assert_gone(below)
    assert Study.open("real", real.home.open_journal(), reading=True).state.halted.reason == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("told", ["sigterm", "nothing"])
def test_a_scheduler_that_does_not_answer_ends_the_study(
    make: Callable[..., Real], pair: DaskProcesses, told: str
) -> None:
    timeout = 60 if told == "sigterm" else 5
    real = make(search=ENDLESS, cluster=pair.cluster, timeout=timeout)
    process = real.start()
    real.wait_for_entries(3, process)
    real.until(lambda: len(pair.training()) == 2, process)
    pair.scheduler.suspend()
    time.sleep(1.5)
    if told == "sigterm":
        process.send_signal(signal.SIGTERM)
    assert process.wait(at_load(150)) != 0
    if told == "nothing":
        assert "has not answered for 5 s" in real.log.read_text()


@pytest.mark.slow
def test_a_silent_worker_of_an_address_is_not_used_until_its_next_heartbeat(
    make: Callable[..., Real], pair: DaskProcesses
) -> None:
    """It is the user's: it is not killed, and what it trained meanwhile is ended when it comes back."""
    real = make(search={"method": "random", "configs": 24, "max_resource": 40}, cluster=pair.cluster)
    process = real.start()
    real.until(lambda: len(pair.training()) == 2, process)
    worker, other = pair.workers.values()
    worker.suspend()
    real.until(lambda: outcomes(real)["lost"] == 1, process)
    before = granted(real)
    real.until(lambda: granted(real) >= before + 2, process)  # by the other worker
    assert outcomes(real) == {"lost": 1}, messages(real)
    assert "gave no sign of life for 5 s" in messages(real)[0]
    worker.resume()
    real.until(lambda: len(pair.training()) == 2, process)  # it is given jobs again
    process.send_signal(signal.SIGTERM)
    process.wait(at_load(120))
    assert worker.is_running() and other.is_running()
    assert outcomes(real)["lost"] == 1, messages(real)
    os.kill(worker.pid, 0)


@pytest.mark.slow
def test_sigterm_ends_a_start_that_hangs(make: Callable[..., Real], tmp_path: Path) -> None:
    """The objective's module does not come to the end of its import."""
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(3600)\ndef train(trial): ...\n")
    real = make(timeout=60, search=ENDLESS, objective="hangs:train", pythonpath=[str(tmp_path)])
    process = real.start()
    real.until(lambda: descendants(process, "hpo_core.training.child.zygote"), process)
    below = all_below(process)
    process.send_signal(signal.SIGTERM)
    process.wait(at_load(120))
    assert_gone(below)
