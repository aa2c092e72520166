"""Reboots and gangs over several hosts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.hosts.conftest import MakeLab
from tests.hosts.studies import Cluster, FarStudy

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
    study.until(study.failures, process)
    study.until(lambda: not study.training(within=5), process)
    lab.heal()
    study.until(all_train, process)
    lab["h4"].off()
    study.until(lambda: len(study.failures()) == 2, process)
    lab["h4"].on()
    cluster.start_worker("h4")
    study.end(process)
    study.whole(lost=2)
