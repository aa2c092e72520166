"""The jobs of deployments/slurm as they stand, submitted to a real Slurm, with studies started from the deployments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpo_core.home import Home
from hpo_core.replay.audit import audit
from tests.flows.prefect_api import ask
from tests.slurm.conftest import ROOT, wait_for
from tests.slurm.one_node import OneNodeSlurm, free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
PROFILE = ROOT / "deployments" / "slurm"
SMALL = ["--mem=1G", "--cpus-per-task=1"]


def end_of(run: str, environment: dict[str, str]) -> dict[str, Any]:
    """The state that a flow run ended in."""
    deadline = time.monotonic() + 600
    while True:
        state: dict[str, Any] = ask(environment, f"flow_runs/{run}")["state"]
        if state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
            return state
        assert time.monotonic() < deadline, state
        time.sleep(1)


def test_the_profile_runs_studies_from_the_deployments(
    slurm: OneNodeSlurm, tmp_path: Path, deployments_api: dict[str, str]
) -> None:
    """One on the profile's Dask scheduler, one of ``kind: slurm`` in the process that Prefect's worker starts."""
    (port,) = free_ports(1)
    studies = tmp_path / "studies"
    studies.mkdir()
    home = tmp_path / "home"
    environment = os.environ | deployments_api | slurm.environment | {
        "HPO_HOME": str(home), "HPO_VENV": sys.prefix, "HPO_INTERFACE": "lo", "HPO_PORT": str(port),
        "HPO_ALLOWED_OBJECTIVES": "tests", "HPO_STUDY_FOLDER": str(studies), "HPO_IMPORT_FOLDERS": str(ROOT),
        "HPO_ALLOWED_CLUSTERS": "slurm",
        "PREFECT_HOME": str(tmp_path / "prefect"), "PYTHONPATH": str(ROOT),
    }  # fmt: skip

    def submit(*command: str) -> str:
        done = subprocess.run(
            ["sbatch", "--parsable", f"--chdir={tmp_path}", *command], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    submit(*SMALL, str(PROFILE / "scheduler.sbatch"))
    workers = submit(*SMALL, "--array=0-1", str(PROFILE / "workers.sbatch"))
    controller = submit("--mem=2G", "--cpus-per-task=1", str(PROFILE / "controller.sbatch"))
    log = tmp_path / f"hpo-controller-{controller}.log"

    def is_online() -> bool:
        assert controller in slurm.jobs(), f"the controller ended:\n{log.read_text()[-3000:]}"
        if not log.exists() or " started!" not in log.read_text():  # of workers of other tests Prefect says it as well
            return False
        try:
            found = ask(environment, "work_pools/hpo/workers/filter", {})
        except OSError:  # there is no such pool yet
            return False
        return any(worker["status"] == "ONLINE" for worker in found)

    wait_for(is_online, "the Prefect worker runs", 300)
    address = json.loads((home / "dask-scheduler.json").read_text())["address"]
    wait_for(lambda: len(slurm.jobs("RUNNING")) == 4, "scheduler, two workers and controller run")
    joined, jobs = {"kind": "address", "address": address}, {"kind": "slurm", "workers": 1, "memory": "1GB"}
    for name, cluster in (("joined", joined), ("jobs", jobs)):
        study = {
            "study": name,
            "objective": "tests.slurm.objectives:paced",
            "pythonpath": [str(ROOT)],
            "metric": {"name": "loss"},
            "space": {
                "x": {"type": "float", "low": -1.0, "high": 1.0},
                "pause": {"type": "categorical", "choices": [0.2]},
            },
            "search": {"method": "asha", "configs": 6, "max_resource": 3, "reduction_factor": 3},
            "tracking": {"mlflow": "off"},
            "cluster": cluster,
        }
        (studies / f"{name}.yaml").write_text(json.dumps(study))
        deployment = ask(environment, "deployments/name/tune-file/tune-file")
        asked = {"parameters": {"file": f"{name}.yaml", "name": name}, "state": {"type": "SCHEDULED"}}
        run = ask(environment, f"deployments/{deployment['id']}/create_flow_run", asked)
        if name == "joined":
            slurm.call("scancel", f"{workers}_1")  # fewer while it runs, or before it began
        state = end_of(run["id"], environment)
        assert state["type"] == "COMPLETED", (state, log.read_text()[-3000:])
        journal = Home(home).read_journal()
        assert audit(list(journal.entries(name))).clean
        journal.close()
    slurm.call("scancel", controller)
    wait_for(lambda: controller not in slurm.jobs(), "the worker ends when its job does", 120)
