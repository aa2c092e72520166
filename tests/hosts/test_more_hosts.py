"""Reboots, gangs, models that hop and studies that share, over several hosts."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from hpo_core.checkpoints.files import load
from hpo_core.model.events import CapacityChanged, JobCompleted
from tests.hopping.hopping_objectives import write_partitions
from tests.hosts.conftest import MakeLab
from tests.hosts.services import PostgreSQLHost
from tests.hosts.studies import LIMIT, Cluster, FarStudy, at_once

pytestmark = pytest.mark.slow


def test_a_study_ends_although_a_host_reboots_every_minute(make_lab: MakeLab, shared: Path) -> None:
    lab = make_lab(4)
    cluster = Cluster(lab, shared, scheduler="h1", workers="h3 h4")
    study = FarStudy(shared, cluster, search={"method": "random", "configs": 14, "max_resource": 20})
    process = study.tune("h2")
    study.until(lambda: study.training("h3"), process)
    reboots = 0
    while process.poll() is None:
        time.sleep(60 if reboots < 10 else 5)
        if process.poll() is None and reboots < 10:
            lab["h3"].reboot()
            reboots += 1
            cluster.start_worker("h3")
    study.end(process)
    done = Counter(event.worker.rpartition(":")[0] for event in study.events(JobCompleted))
    print(f"{reboots} reboots, {study.failures()}, {done}")
    assert reboots >= 2
    study.whole()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_gang_over_hosts_is_one_lost_attempt_when_a_host_is_cut_or_dies(
    make_lab: MakeLab, shared: Path, ranks: int
) -> None:
    lab = make_lab(2 + ranks, delay="5ms", rate="100mbit")
    hosts = [f"h{number}" for number in range(3, 3 + ranks)]
    cluster = Cluster(lab, shared, scheduler="h1", workers=" ".join(hosts))

    def all_train() -> bool:
        return all(study.training(host) for host in hosts)

    study = FarStudy(
        shared, cluster, objective="tests.hosts.gang_objectives:gang", seconds=0.5,
        search={"method": "random", "configs": 3, "max_resource": 40},
        training={"gang": ranks, "worker_timeout": 20},
    )  # fmt: skip
    process = study.tune("h2")
    study.until(all_train, process)
    lab.cut("h3")
    cut = time.monotonic()
    study.until(study.failures, process)
    print(f"cut: {study.failures()} after {time.monotonic() - cut:.0f} s")
    study.until(lambda: not study.training(within=5), process)
    print(f"no rank trains {time.monotonic() - cut:.0f} s after the cut")
    lab.heal()
    study.until(all_train, process)
    lab["h4"].off()
    died = time.monotonic()
    study.until(lambda: len(study.failures()) == 2, process)
    print(f"died: {study.failures()[1]} after {time.monotonic() - died:.0f} s")
    lab["h4"].on()
    cluster.start_worker("h4")
    study.end(process)
    study.whole(lost=2)


def test_models_that_hop_visit_each_partition_once_an_epoch_though_hosts_come_and_go(
    make_lab: MakeLab, shared: Path
) -> None:
    """Four hosts hold two of four partitions each; one is lost, and one with two others joins."""
    lab = make_lab(7)
    cluster = Cluster(lab, shared, scheduler="h1", workers="")

    def worker(name: str, *numbers: int) -> None:
        write_partitions(lab[name].folder / "home/data", list(numbers), validation=0)
        cluster.start_worker(name, HPO_PARTITION_FOLDER="/home/data", HOP_TEST_SECONDS="0.5")

    for place, name in enumerate(("h3", "h4", "h5", "h6")):
        worker(name, place, (place + 1) % 4)
    write_partitions(shared / "data", [0, 1, 2, 3], validation=0)
    study = FarStudy(
        shared, cluster, objective="tests.hopping.hopping_objectives:train",
        metric={"name": "train_loss", "mode": "min"}, constants={},
        space={"lr": {"type": "float", "low": 0.001, "high": 0.05, "log": True}},
        search={"method": "asha", "min_resource": 1, "max_resource": 4, "reduction_factor": 2, "configs": 6},
        data={
            "partitions": "part-*.npz", "folder": str(shared / "data"), "load": "tests.hopping.hopping_objectives:load",
        },
        training={"worker_timeout": 15},
    )  # fmt: skip
    process = study.tune("h2")
    study.until(lambda: len(study.events(JobCompleted)) >= 2, process)
    lab["h4"].off()
    study.until(lambda: len(study.events(JobCompleted)) >= 4, process)
    worker("h7", 3, 0)
    study.end(process)
    study.whole()
    held = study.events(CapacityChanged)[-1].inventory
    print(study.failures(), held)
    folder, looked_at = study.home / "studies" / study.name, 0
    for event in study.events(JobCompleted):
        if event.checkpoint is not None and (folder / event.checkpoint.uri).exists():
            seen = list(load(folder, event.checkpoint)["tracked"]["model"]["seen"])
            looked_at += 1
            assert len(seen) == 4 * event.resource
            assert all(sorted(seen[at : at + 4]) == [0, 1, 2, 3] for at in range(0, len(seen), 4)), seen
    assert looked_at


@pytest.mark.postgresql
def test_three_controllers_on_three_hosts_never_use_more_slots_than_there_are_also_when_one_is_cut(
    make_lab: MakeLab, shared: Path
) -> None:
    lab = make_lab(8)
    database = PostgreSQLHost(lab["h5"])
    cluster = Cluster(lab, shared, scheduler="h1", workers="h3 h4 h8")
    studies = {
        host: FarStudy(
            shared, cluster, database=database, name=f"on-{host}", share=True,
            search={"method": "random", "configs": 400, "max_resource": 5},
        )
        for host in ("h2", "h6", "h7")
    }  # fmt: skip
    processes = {host: study.tune(host) for host, study in studies.items()}
    for host, study in studies.items():
        study.until(lambda study=study: study.events(JobCompleted), processes[host])  # type: ignore[misc]
    lab.cut("h2")
    cut = time.clock_gettime(time.CLOCK_BOOTTIME)
    time.sleep(120)
    lab.heal("h2")
    print(f"the one that was cut: {processes['h2'].poll()} {processes['h2'].said[-500:]}")
    for process in processes.values():
        process.terminate()
    for process in processes.values():
        process.wait(LIMIT)
    spans = {host: study.trained() for host, study in studies.items()}
    most = max(count for _, count in at_once([span for each in spans.values() for span in each]))
    freed = [moment - cut for moment, count in at_once(spans["h6"] + spans["h7"]) if count == 3 and moment > cut]
    print(f"at most {most} jobs on 3 slots; the others had all slots after {min(freed, default=None)} s")
    assert most <= 3 and freed
    for study in studies.values():
        study.clean()
