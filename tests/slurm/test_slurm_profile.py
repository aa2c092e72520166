"""Scheduler and workers of deployments/slurm as they stand, submitted to a real Slurm; a study joins them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpo_core.home import Home
from hpo_core.replay.audit import audit
from tests.slurm.conftest import ROOT, wait_for
from tests.slurm.one_node import OneNodeSlurm, free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PROFILE = ROOT / "deployments" / "slurm"
SMALL = ["--mem=1G", "--cpus-per-task=1"]


def test_a_study_joins_the_profiles_scheduler(slurm: OneNodeSlurm, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    home = tmp_path / "home"
    study = {
        "study": "joined",
        "objective": "tests.slurm.objectives:paced",
        "pythonpath": [str(ROOT)],
        "metric": {"name": "loss"},
        "space": {"x": {"type": "float", "low": -1.0, "high": 1.0}, "pause": {"type": "categorical", "choices": [0.2]}},
        "search": {"method": "asha", "configs": 6, "max_resource": 3, "reduction_factor": 3},
        "cluster": {"kind": "address", "address": f"tcp://127.0.0.1:{port}"},
        "tracking": {"mlflow": "off"},
    }
    file = tmp_path / "joined.yaml"
    file.write_text(json.dumps(study))
    environment = os.environ | slurm.environment | {
        "HPO_HOME": str(home), "HPO_VENV": sys.prefix, "HPO_INTERFACE": "lo", "HPO_PORT": str(port),
    }  # fmt: skip

    def submit(*command: str) -> None:
        asked = ["sbatch", f"--chdir={tmp_path}", *SMALL, *command]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    submit(str(PROFILE / "scheduler.sbatch"))
    submit("--array=0-1", str(PROFILE / "workers.sbatch"))
    wait_for(lambda: len(slurm.jobs("RUNNING")) == 3, "scheduler and two workers run")
    wait_for(lambda: (home / "dask-scheduler.json").exists(), "the scheduler listens")
    done = subprocess.run(
        [sys.executable, "-m", "hpo_flows", "tune", str(file), "--no-prefect"],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    journal = Home(home).read_journal()
    assert audit(list(journal.entries("joined"))).clean
    journal.close()
    assert len(slurm.jobs("RUNNING")) == 3, "they belong to others"
