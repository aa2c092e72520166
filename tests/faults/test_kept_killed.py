"""Studies whose processes stay, in every mode: whatever is killed or stopped, they end whole and leave no process."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import psutil
import pytest

from hpo_core.model.events import AttemptFailed, JobCompleted
from tests.dask_processes import DaskProcesses
from tests.gangs.test_gang_runs import Runs, runs

__all__ = ["runs"]
pytestmark = pytest.mark.slow
LIMIT = 900.0
ASHA = {"method": "asha", "configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}
PLAIN = {"metric": {"name": "loss"}, "search": ASHA, "cluster": {"kind": "local", "workers": 2}}
MODES: dict[str, dict[str, Any]] = {
    "packed": {
        **PLAIN,
        "packing": {
            "devices": "cpu",
            "memory": {"CPU": "900MB"},
            "demand": {"memory": "200MB", "compute": 5, "cores": 0.1},
        },
    },
    "hopping": {**PLAIN, "data": {"partitions": ["a", "b", "c"], "load": "tests.faults.kept_objectives:load"}},
    "gang": {**PLAIN, "training": {"gang": 2}},
    "population": {**PLAIN, "search": {"method": "pbt", "population": 4, "generations": 4, "steps_per_generation": 2}},
}
KILLS = [
    ("process", signal.SIGKILL), ("process", signal.SIGSTOP), ("zygote", signal.SIGKILL), ("process", signal.SIGKILL),
    ("process", signal.SIGSTOP), ("worker", signal.SIGKILL), ("zygote", signal.SIGSTOP),
]  # fmt: skip


def zygotes(roots: Iterable[psutil.Process], runs: Runs) -> list[psutil.Process]:
    """Those of workers, which are threads of the command or processes."""
    found = []
    for root in roots:
        try:
            runs.seen.update(root.children(recursive=True))
            found += [one for one in root.children() if is_zygote(one)]
        except psutil.Error:
            continue
    return found


def is_zygote(process: psutil.Process) -> bool:
    return "hpo_core.training.child.zygote" in process.cmdline()


def chosen(what: str, roots: Iterable[psutil.Process], runs: Runs) -> psutil.Process | None:
    """A process of that kind, if there is one now: one that trains or waits for a job; for a worker its zygote."""
    for zygote in zygotes(roots, runs):
        try:
            children = [one for one in zygote.children() if is_zygote(one)]
            if children:
                return children[0] if what == "process" else zygote
        except psutil.Error:
            continue
    return None


@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize("mode", MODES)
def test_a_study_whose_processes_are_killed_and_stopped_ends_whole(
    runs: Runs, mode: str, workers: str, request: pytest.FixtureRequest
) -> None:
    """A worker that is a thread is killed with its study; that is ``test_real_study``."""
    described = dict(MODES[mode])
    dask: DaskProcesses | None = None
    if workers == "processes":
        dask = request.getfixturevalue("dask_processes")
        dask.add_worker("one")
        dask.add_worker("two")
        described["cluster"] = dask.cluster
    for name in "abc":
        (runs.folder / name).write_text(str(ord(name)))
    function = "train_on_partition" if "data" in described else "train"
    if "data" in described:
        described["data"] = {**described["data"], "folder": str(runs.folder)}
    training = {"process": "kept", "stall_timeout": 6, "worker_timeout": 5} | described.pop("training", {})
    training |= {"retries": {"crashed": 20, "hung": 20, "lost": 20}}
    path = runs.study(mode, 1, space={"lr": {"type": "float", "low": 0.1, "high": 0.9}}, training=training,
                      objective=f"tests.faults.kept_objectives:{function}", **described)  # fmt: skip
    process = runs.start("tune", path)
    done: list[tuple[str, signal.Signals]] = []
    for what, how in KILLS:
        if what == "worker" and dask is None:
            continue
        target, until = None, time.monotonic() + 30
        while target is None and process.poll() is None and time.monotonic() < until:
            roots = [psutil.Process(process.pid)] if dask is None else dask.workers.values()
            target = chosen(what, roots, runs)
            time.sleep(0.01)
        if target is not None:
            try:
                if what == "worker" and dask is not None:
                    dask.kill(dask.name_of(target))
                    dask.add_worker("three")
                else:
                    target.send_signal(how)
            except psutil.NoSuchProcess:
                continue
            done.append((what, how))
            time.sleep(0.5)
    runs.end(process)
    assert len(done) >= 5, done
    study = runs.whole(mode)
    completed = runs.events(mode, JobCompleted)
    each = Counter((event.trial, event.resource) for event in completed)
    assert completed and set(each.values()) == {1}, "nothing counts twice"
    assert all(trial.abandoned is None for trial in study.state.trials)
    assert runs.events(mode, AttemptFailed) or mode == "hopping"
