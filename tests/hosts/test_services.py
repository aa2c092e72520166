"""PostgreSQL, MLflow and Prefect on hosts of their own, which are cut while a study runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpo_core.model.events import JobCompleted
from tests.hosts.conftest import MakeLab
from tests.hosts.services import PostgreSQLHost, web_service
from tests.hosts.studies import LIMIT, Cluster, FarStudy

pytestmark = pytest.mark.slow
SEARCH = {"method": "random", "configs": 12, "max_resource": 12}


@pytest.mark.postgresql
def test_a_journals_host_that_is_cut_for_30_s_costs_nothing_and_for_longer_ends_the_study_with_code_6(
    make_lab: MakeLab, shared: Path
) -> None:
    """A journal is tried again for 60 s, and the driver itself takes up to 30 s to give a call up."""
    lab = make_lab(5)
    database = PostgreSQLHost(lab["h5"])
    cluster = Cluster(lab, shared, scheduler="h1", workers="h3 h4")
    study = FarStudy(shared, cluster, database=database, search=SEARCH)
    first = study.tune("h2")
    study.until(lambda: len(study.events(JobCompleted)) >= 2, first)
    lab.cut("h5")
    time.sleep(30)
    lab.heal("h5")
    healed, before = time.monotonic(), len(study.entries())
    study.until(lambda: len(study.entries()) > before, first)
    print(f"goes on {time.monotonic() - healed:.0f} s after 30 s without the journal")
    study.until(lambda: len(study.events(JobCompleted)) >= 6, first)
    assert not study.failures()
    lab.cut("h5")
    cut = time.monotonic()
    assert first.wait(LIMIT) == 6, first.said
    print(f"ended {time.monotonic() - cut:.0f} s after the journal was cut for good")
    lab.heal("h5")
    study.until(lambda: not study.training(), None)
    second = study.resume("h2")
    study.end(second)
    study.whole()


@pytest.mark.parametrize("service", ["mlflow", "prefect"])
def test_a_study_does_not_wait_for_an_mlflow_or_a_prefect_that_is_cut(
    make_lab: MakeLab, shared: Path, service: str
) -> None:
    lab = make_lab(5)
    there = lab["h5"]
    changes = {"mlflow": {"tracking": {}}, "prefect": {"prefect": "jobs"}}[service]
    if service == "mlflow":
        web_service(
            there, 5000, "mlflow", "server", "--host", "0.0.0.0", "--port", "5000", "--workers", "1",
            "--allowed-hosts", "*", "--backend-store-uri", "sqlite:////tmp/mlflow.db", "--artifacts-destination",
            "/tmp/artifacts", MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
        )  # fmt: skip
        env = {"MLFLOW_TRACKING_URI": "http://h5:5000"}
    else:
        web_service(
            there,
            4200,
            "prefect",
            "server",
            "start",
            "--host",
            "0.0.0.0",
            "--port",
            "4200",
            PREFECT_HOME="/tmp/prefect",
        )
        env = {"PREFECT_API_URL": "http://h5:4200/api", "PREFECT_HOME": "/home/prefect"}
    cluster = Cluster(lab, shared, scheduler="h1", workers="h3 h4")
    study = FarStudy(shared, cluster, env=env, search=SEARCH, **changes)
    process = study.tune("h2")
    study.until(lambda: len(study.events(JobCompleted)) >= 2, process)
    lab.cut("h5")
    cut = time.monotonic()
    study.until(lambda: len(study.events(JobCompleted)) == 12, process)
    print(f"all trained while {service} was cut, {time.monotonic() - cut:.0f} s")
    ended = time.monotonic()
    study.end(process)
    print(f"ended {time.monotonic() - ended:.0f} s after the last job: {process.said[-700:]}")
    study.whole(lost=0)
    lab.heal()
    if service == "mlflow":
        project = study.hpo("h2", "project", study.name)
        study.end(project)
        print(project.said[-300:])
