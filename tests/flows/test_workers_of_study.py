"""Workers that follow what a study can use, on real Dask clusters of this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dask
import distributed
import pytest

import hpo_core as hpo
from hpo_core.home import Home
from hpo_core.model.events import AttemptFailed, CapacityChanged, JobCompleted, TrialCreated
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_flows.dask.clusters.kind import WorkersOfStudy
from tests.waiting import eventually

SOON = {"distributed.adaptive.interval": "20ms", "distributed.adaptive.wait-count": 2}
"""Dask's own settings of how soon the number of workers follows."""


class Study:
    """What a study could use, as a test says."""

    wanted = 2


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two workers in this process, which come and go at once."""
    with (
        dask.config.set(SOON),
        distributed.LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as made,
    ):
        yield made


def workers(cluster: Any) -> list[Any]:
    return [worker.name for worker in list(cluster.scheduler.workers.values())]


BEGUN, END = threading.Event(), threading.Event()


def train_until_told() -> int:
    BEGUN.set()
    assert END.wait(600)
    return 7


def test_idle_workers_go_and_those_that_train_stay(cluster: Any) -> None:
    study = Study()
    with distributed.Client(cluster, set_as_default=False) as client:  # type: ignore[no-untyped-call]
        cluster.adapt(Adaptive=WorkersOfStudy, minimum=0, maximum=4, kind=study)
        study.wanted = 9
        eventually(lambda: len(workers(cluster)) == 4)  # four come, and no more
        future = client.submit(train_until_told, pure=False)
        assert BEGUN.wait(600)
        study.wanted = 0
        eventually(lambda: len(workers(cluster)) == 1)  # those without a job go
        cluster.sync(cluster._adaptive.scale_down, workers(cluster))  # as if chosen before it had the task
        assert len(workers(cluster)) == 1
        END.set()
        eventually(future.done)  # it ends
        cluster.sync(cluster._adaptive.scale_down, workers(cluster))
        assert len(workers(cluster)) == 1  # its result was not fetched yet
        assert future.result() == 7
        future.release()
        eventually(lambda: not workers(cluster))  # the last one goes
        study.wanted = 1
        assert client.submit(int, pure=False).result(600) == 0  # from no worker at all


def paced(trial: hpo.Trial) -> None:
    """The first trial takes longer than the others, which wait for it at each rung."""
    for step in trial.steps():
        time.sleep(1.2 * (trial.number == 0))
        trial.report(loss=trial.params["x"] + 1 / (step + 1))


@pytest.mark.slow
def test_a_study_on_a_range_of_workers_gives_back_those_that_wait_at_a_rung(tmp_path: Path) -> None:
    """With the results of synchronous halving on any number of workers, and no attempt lost."""
    with dask.config.set(SOON):
        result = hpo.tune(
            paced, {"x": hpo.Float(0, 1)}, metric="loss", seed=3, start_with=[{"x": 0.0}], name="ranged",
            method=hpo.Sha(configs=4, min_resource=1, max_resource=4, reduction_factor=2),
            workers=hpo.WorkerRange(0, 3), home=tmp_path, prefect="off", progress=False,
            tracking=hpo.Tracking(mlflow="off"),
        )  # fmt: skip
    with closing(Home(tmp_path).read_journal()) as journal:
        entries = list(journal.entries(result.name))
    assert audit(entries).clean
    assert rerun_spec(entries, "again").cluster.scales == hpo.WorkerRange(0, 3)
    events = [event for entry in entries for event in entry.events]
    x = {event.trial: float(event.params["x"]) for event in events if isinstance(event, TrialCreated)}
    best = sorted(x, key=x.__getitem__)
    expected = [(trial, 1) for trial in range(4)] + [(trial, 2) for trial in best[:2]] + [(0, 4)]
    assert sorted((e.trial, e.resource) for e in events if isinstance(e, JobCompleted)) == sorted(expected)
    assert not [event for event in events if isinstance(event, AttemptFailed)]
    there = [event.inventory.slots for event in events if isinstance(event, CapacityChanged)]
    assert max(there) <= 3 and min(there[1:]) == 1  # 0 before the start
