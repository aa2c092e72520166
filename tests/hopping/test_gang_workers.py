"""The end of a hopping study in gangs, by a real ``hpo tune`` on Dask workers: exact, repeated, and killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from hpo_core.checkpoints import files
from hpo_core.home import Home
from hpo_core.model.events import JobCompleted
from hpo_core.model.hops import units_of
from tests.dask_processes import DaskProcesses
from tests.gangs import hopping_lab
from tests.gangs.test_gang_runs import Runs

pytestmark = pytest.mark.slow
SIZES = [60, 61, 44, 60, 60]
SHA = {"method": "sha", "configs": 4, "min_resource": 1, "max_resource": 4, "reduction_factor": 4}


class HoppingRuns(Runs):
    """Studies whose models hop over five partitions on four workers, two of which one alone is evaluated on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.names = hopping_lab.write_partitions(folder, SIZES)

    def hopping(self, name: str, function: str = "train", **changes: Any) -> Path:
        data = {"partitions": self.names[:4], "validation": self.names[4:], "folder": str(self.folder)}
        return self.study(
            name,
            "auto",  # type: ignore[arg-type]
            **{
                "objective": f"tests.gangs.hopping_lab:{function}",
                "search": SHA,
                "data": data,
                "scaling": {"efficiency": 0.01},  # two cores for four ranks: no gang is any faster
                **changes,
            },
        )

    def groups(self, name: str) -> dict[tuple[int, int], list[tuple[int, ...]]]:
        """By trial and epoch: the partitions that it trained on, unit by unit."""
        found: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        for event in self.events(name, JobCompleted):
            for unit in units_of(event.visits, event.together):
                if unit[0].partition < 4:
                    workers = {visit.worker for visit in unit}
                    assert len(workers) == len(unit), "each rank on a worker of its own"
                    places = tuple(visit.partition for visit in unit)
                    found.setdefault((event.trial, unit[0].epoch), []).append(places)
        return found

    def judge(self, name: str) -> None:
        """Each result is what one process comes to, that trains on batches composed as the record says."""
        study = self.whole(name)
        groups = self.groups(name)
        folder = Home(self.home).study_folder(name)
        for epochs in groups.values():
            assert sorted(place for group in epochs for place in group) == [0, 1, 2, 3]
        last = max(self.events(name, JobCompleted), key=lambda event: event.resource)
        order = [group for epoch in range(last.resource) for group in groups[last.trial, epoch]]
        named = [[self.names[place] for place in group] for group in order]
        trial = study.state.trials[last.trial]
        *_, judged = hopping_lab.trained_by_one(
            self.folder, named, seed=study.spec.training_seed(last.trial), lr=trial.params["lr"]
        )
        found = files.load(folder, last.checkpoint)["tracked"]["model"]
        for key, value in judged.items():
            torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[HoppingRuns]:
    made = HoppingRuns(tmp_path)
    yield made
    for process in made.seen:
        if process.is_running():
            process.kill()


def digests(runs: HoppingRuns, name: str) -> dict[tuple[int, int], str]:
    return {(one.trial, one.resource): one.checkpoint.digest for one in runs.events(name, JobCompleted)}


def test_what_is_left_of_a_study_trains_in_gangs_and_a_rerun_gives_the_same_bits(runs: HoppingRuns) -> None:
    runs.run("tune", runs.hopping("hops"))
    runs.judge("hops")
    groups = runs.groups("hops")
    assert max(len(group) for (_, epoch), groups in groups.items() for group in groups if epoch) >= 2
    (last,) = {trial for trial, epoch in groups if epoch}
    runs.run("show", "hops", "--trial", last)
    assert " + part-" in runs.log
    runs.run("rerun", "hops", "--as", "again")
    runs.whole("again")
    assert runs.groups("again") == groups
    assert digests(runs, "again") == digests(runs, "hops")


def test_units_grow_from_one_rank_to_two_and_to_four_as_they_are_measured(runs: HoppingRuns) -> None:
    """No speed-up is given: the last model trains on one worker, then on two, and then on all four; gloo on the CPU."""
    runs.run("tune", runs.hopping("grows", "train_as_on_devices"))
    runs.judge("grows")  # its audit is clean, each partition once an epoch, ranks on workers of their own, exact
    groups = runs.groups("grows")
    (last,) = {trial for trial, epoch in groups if epoch}
    sizes = [[len(group) for group in groups[last, epoch]] for epoch in range(4)]
    assert sizes == [[1, 1, 1, 1], [2, 2], [4], [4]]
    (event,) = [one for one in runs.events("grows", JobCompleted) if one.resource == 4]
    assert [together for together in event.together if together > 1] == [2, 2, 4, 4]
    assert runs.whole("grows").state.failed_attempts == 0


def test_a_function_that_knows_nothing_of_gangs_is_trained_without_them(runs: HoppingRuns) -> None:
    metric, constants = {"name": "seen", "mode": "min"}, {"how": "alone"}
    data = {"partitions": runs.names[:4], "folder": str(runs.folder)}
    path = runs.hopping("plain", "train_wrongly", data=data, metric=metric, constants=constants)
    runs.run("tune", path)
    assert runs.whole("plain").state.failed_attempts == 0
    assert {len(group) for groups in runs.groups("plain").values() for group in groups} == {1}
    assert "no model of this study is trained by several workers any more" in runs.log
    assert "trial.batches(order, batch_size)" in runs.log


def test_a_controller_that_is_killed_within_a_gang_goes_on_at_the_end_of_an_epoch(runs: HoppingRuns) -> None:
    process = runs.start("tune", runs.hopping("killed", "train_slowly"))
    gangs = runs.home / "studies" / "killed" / "gangs"
    runs.until(process, lambda: gangs.is_dir() and list(gangs.iterdir()))
    runs.look(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = psutil.wait_procs(list(runs.seen), timeout=600)[1]
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE]
    runs.run("resume", "killed")
    runs.judge("killed")


def test_a_worker_that_dies_with_its_rank_costs_one_unit(runs: HoppingRuns, dask_processes: DaskProcesses) -> None:
    for name in ("one", "two", "three", "four"):
        dask_processes.add_worker(name)
    process = runs.start("tune", runs.hopping("worker", "train_slowly", cluster=dask_processes.cluster))
    scratch = runs.home / "studies" / "worker" / "scratch"
    found = runs.until(process, lambda: list(scratch.glob("*/rank-1.pid")))
    time.sleep(0.2)
    dask_processes.kill(dask_processes.name_of(psutil.Process(int(found[0].read_text()))))
    runs.end(process)
    runs.judge("worker")
    assert runs.whole("worker").state.failed_attempts == 0, "a unit that is lost is repeated, the job goes on"
