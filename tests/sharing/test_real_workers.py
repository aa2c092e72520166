"""Studies whose models hop on one Dask cluster with others: real workers, a controller each, judged by the journals."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpo_core.checkpoints.files import load
from hpo_core.model.events import AttemptFailed, JobCompleted
from tests.hopping.test_hopping_workers import Cluster, Hopping, until

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.close()


class Span(NamedTuple):
    """A unit or a job on a worker."""

    study: str
    worker: str
    began: float
    ended: float


def spans_of(study: Hopping) -> list[Span]:
    found = []
    for entry in study.entries():
        for event in entry.events:
            if isinstance(event, JobCompleted | AttemptFailed):
                if isinstance(event.visits, tuple):
                    found += [Span(study.name, one.worker, one.started, one.ended) for one in event.visits]
                elif event.worker:
                    found.append(Span(study.name, event.worker, event.started, event.ended))
    return found


def judge(*studies: Hopping, partitions: int = 4) -> list[Span]:
    """No two at once on a worker; each model saw each partition once an epoch, and remembers so."""
    by_worker: dict[str, list[Span]] = defaultdict(list)
    spans = [span for study in studies for span in spans_of(study)]
    for span in spans:
        by_worker[span.worker].append(span)
    for worker, there in by_worker.items():
        for one, next_one in pairwise(sorted(there, key=lambda span: span.began)):
            assert one.ended <= next_one.began + 0.002, f"{one} and {next_one} on {worker}"
    for study in studies:
        assert study.study().status == "finished"  # and its audit is clean
        folder = study.home.study_folder(study.name)
        for event in study.completed():
            if isinstance(event.visits, tuple) and event.checkpoint and (folder / event.checkpoint.uri).exists():
                seen = load(folder, event.checkpoint)["tracked"]["model"]["seen"]
                for at in range(0, len(seen), partitions):
                    assert sorted(seen[at : at + partitions]) == list(range(partitions))
                assert len(seen) == partitions * event.resource
    return spans


def hopper(
    folder: Path, name: str, address: str, *, seconds: float, configs: int = 0, search: Any = None, **share: Any
) -> Hopping:
    return Hopping(
        folder, name=name, address=address, share=share, objective="tests.sharing.waiting_objective:hop",
        metric={"name": "loss", "mode": "min"}, space={"x": {"type": "float", "low": 0.0, "high": 1.0}},
        constants={"seconds": seconds}, search=search or {"method": "random", "configs": configs, "max_resource": 2},
        data={"partitions": [f"part-{number}.npz" for number in range(4)], "folder": str(folder / "data"),
              "load": "tests.hopping.hopping_objectives:load"},
    )  # fmt: skip


def test_pbt_and_pasha_share_four_workers_and_another_study_of_the_home_goes_on(
    tmp_path: Path, cluster: Cluster
) -> None:
    """A look at the pool never ended, in a transaction: all studies of the home ended with "database is locked"."""
    for number in range(4):
        cluster.worker(f"w{number}", [0, 1, 2, 3])
    pbt = hopper(
        tmp_path, "pbt", cluster.address, seconds=0.5, weight=1.0,
        search={"method": "pbt", "population": 6, "generations": 4, "steps_per_generation": 1},
    )  # fmt: skip
    pasha = hopper(
        tmp_path, "pasha", cluster.address, seconds=0.5, weight=2.0,
        search={"method": "pasha", "configs": 16, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
    )  # fmt: skip
    alone = Hopping(
        tmp_path, name="alone", objective="tests.sharing.waiting_objective:train", data=None,
        cluster={"kind": "local", "workers": 1}, metric={"name": "loss", "mode": "min"},
        space={"x": {"type": "float", "low": 0.0, "high": 1.0}},
        search={"method": "random", "configs": 60, "max_resource": 1},
        constants={"seconds": 0.5, "mark": "alone", "file": str(tmp_path / "jobs.txt")},
    )  # fmt: skip
    studies = (pbt, pasha, alone)
    controllers = {study.name: study.start() for study in studies}
    until(lambda: all(study.completed() for study in studies), controllers["pasha"])
    controllers["pasha"].send_signal(signal.SIGKILL)
    controllers["pasha"].wait()
    counts = {study.name: len(study.completed()) for study in (pbt, alone)}
    until(lambda: all(len(study.completed()) > counts[study.name] + 3 for study in (pbt, alone)), controllers["pbt"])
    controllers["pasha"] = pasha.start()
    for controller in controllers.values():
        said, _ = controller.communicate(timeout=600)
        assert controller.returncode == 0 and "locked" not in said, said
    judge(pbt, pasha)
    assert alone.study().status == "finished"
