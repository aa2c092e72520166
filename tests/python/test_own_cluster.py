"""Studies on one's own Dask cluster: it is used, and left as it was."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import distributed
import psutil
import pytest
from distributed.security import Security

import hpo_core as hpo
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.result import Result
from tests.python.training import patient, train

LIMIT = 600
SETTLED_SECONDS = 600.0


def run(function: Any = train, **changes: Any) -> Result:
    given = {"method": hpo.Asha(configs=4, max_resource=3), "progress": False, "home": None, "prefect": "off"}
    if changes.get("home"):
        given["tracking"] = hpo.Tracking(mlflow="off")
    return hpo.tune(function, {"x": hpo.Float(0, 1)}, metric="loss", **(given | changes))


@pytest.fixture(scope="module")
def secured() -> Iterator[distributed.LocalCluster]:
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        security=Security.temporary(),
        dashboard_address="127.0.0.1:0",
        host="127.0.0.1",
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(secured: distributed.LocalCluster) -> Iterator[distributed.Client]:
    with distributed.Client(secured) as client:
        yield client


def scheduler_state(dask_scheduler: Any = None) -> dict[str, Any]:
    """Runs on the scheduler: all of it that a study could change, or leave there."""
    return {
        "plugins": sorted(dask_scheduler.plugins),
        "worker_plugins": sorted(dask_scheduler.worker_plugins),
        "extensions": sorted(dask_scheduler.extensions),
        "tasks": sorted(map(str, dask_scheduler.tasks)),
        "clients": sorted(set(dask_scheduler.clients) - {"fire-and-forget"}),
        "workers": sorted(dask_scheduler.workers),
        "topics": sorted(name for name in dask_scheduler._broker._topics if "/" in name and "://" not in name),
        "datasets": sorted(map(str, dask_scheduler.extensions["publish"].datasets)),
        "allowed_failures": dask_scheduler.allowed_failures,
        "stealing": dask_scheduler.extensions["stealing"].metrics is not None,
        "config": repr(dask.config.config),
    }


def worker_state(dask_worker: Any) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "children": [process.pid for process in psutil.Process().children(recursive=True)],
        "metrics": sorted(dask_worker.metrics),
        "plugins": sorted(dask_worker.plugins),
        "data": sorted(map(str, dask_worker.data)),
        "threads": dask_worker.state.nthreads,
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("KMP_")},  # sklearn's
        "config": repr(dask.config.config),
        "folder": str(Path.cwd()),
    }


def state_of(cluster: distributed.LocalCluster, like: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a study may not change: scheduler, workers, and settings of this process; waits until it is as ``like``."""
    with distributed.Client(cluster, set_as_default=False, name="looks") as client:
        deadline = time.monotonic() + SETTLED_SECONDS
        while True:  # the scheduler notices the end of a client, or of a task, a moment later
            found = {
                "scheduler": client.run_on_scheduler(scheduler_state),
                "workers": client.run(worker_state),
                "here": repr(dask.config.config),
                "levels": {name: logging.getLogger(name).level for name in ("distributed", "distributed.client")},
            }
            found["scheduler"]["clients"] = [name for name in found["scheduler"]["clients"] if name != client.id]
            if like in (None, found) or time.monotonic() > deadline:
                return found
            time.sleep(0.05)


def test_a_client_is_used_and_left_as_it_was(
    secured: distributed.LocalCluster, client: distributed.Client, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    own = client.submit(_wait_for, str(gate), key="someone's own", pure=False)  # somebody's task, on one of the threads
    held = client.scatter({"somebody": "else"})
    before = state_of(secured)
    result = run(cluster=client)
    assert state_of(secured, before) == before
    assert result.status == "finished" and {job.worker for job in result.jobs.itertuples()} <= set(before["workers"])
    assert not own.done() and client.gather(held) == {"somebody": "else"}
    gate.touch()
    assert own.result(LIMIT) == "done"
    assert client.submit(int, 7).result(LIMIT) == 7


def _wait_for(file: str) -> str:
    while not Path(file).exists():
        time.sleep(0.02)
    return "done"


@pytest.mark.slow
def test_cluster_objects_addresses_and_clients_of_all_kinds(secured: distributed.LocalCluster, tmp_path: Path) -> None:
    assert run(cluster=secured).status == "finished"
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0"
    ) as threads:  # workers that are threads of this process, at inproc://
        before = state_of(threads)
        result = run(cluster=threads)
        assert result.status == "finished" and result.spec.cluster.address.startswith("inproc://")
        assert max_at_once(result) <= 2
        assert state_of(threads, before) == before
        assert run(cluster=threads.scheduler_address).status == "finished"


def max_at_once(result: Result) -> int:
    edges = sorted((at, step) for job in result.jobs.itertuples() for at, step in ((job.start, 1), (job.end, -1)))
    running = most = 0
    for _, step in edges:
        running += step
        most = max(most, running)
    return most


def test_what_cannot_be_used_is_refused_in_words(secured: distributed.LocalCluster) -> None:
    closed = distributed.Client(secured, set_as_default=False)
    closed.close()
    with pytest.raises(SpecError, match=r"Client\(\.\.\.\) is closed"):
        run(cluster=closed)

    async def inside() -> Result:
        async with distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, asynchronous=True, dashboard_address="127.0.0.1:0"
        ) as cluster:
            with pytest.raises(SpecError, match=r"asyncio\.to_thread\(hpo\.tune"):
                run(cluster=cluster)
            async with distributed.Client(cluster, asynchronous=True, set_as_default=False) as client:
                with pytest.raises(SpecError, match=r"asyncio\.to_thread\(hpo\.tune"):
                    run(cluster=client)
                return await asyncio.to_thread(run, cluster=client)

    assert asyncio.run(inside()).status == "finished"


@pytest.mark.slow
def test_a_cluster_that_is_closed_halts_the_study_which_goes_on_on_another(
    secured: distributed.LocalCluster, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    theirs = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    )
    began = threading.Event()

    def close() -> None:
        assert began.wait(LIMIT)
        theirs.close()
        gate.touch()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(HpoError, match="is gone"):
        run(
            patient,
            cluster=theirs,
            home=tmp_path / "home",
            name="moved",
            method=hpo.Asha(configs=4, max_resource=3),
            constants={"gate": str(gate)},
            callbacks=[lambda report: began.set()],
        )
    closing.join(LIMIT)
    result = hpo.resume("moved", home=tmp_path / "home", cluster=secured, progress=False)
    assert result.status == "finished"
    assert result.spec.cluster.address.startswith("inproc://"), "what the study names is recorded once"
    workers = set(result.jobs["worker"])
    assert any(str(worker).startswith("tls://") for worker in workers)


def test_a_task_of_the_cluster_may_search_on_it(client: distributed.Client) -> None:
    assert client.submit(_search_with_worker_client, pure=False).result(LIMIT) == "finished"


def _search_with_worker_client() -> str:
    with distributed.worker_client() as client:
        return run(cluster=client).status
