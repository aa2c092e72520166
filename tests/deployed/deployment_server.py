"""A real Prefect server with our deployments and a process worker, asked as its UI asks it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.workers.process import ProcessWorker as Worker
from typer.testing import CliRunner

from hpo_flows.command import app
from tests.flows.conftest import LIMIT, READING, ROOT, at_load
from tests.flows.prefect_api import ask
from tests.waiting import eventually

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
PLANTED = "pl4nted-s3cret"
TOY: dict[str, Any] = {
    "study": "toy", "objective": "tests.flows.objectives:good", "metric": {"name": "loss", "mode": "min"},
    "space": {"x": {"type": "float", "low": -1.0, "high": 1.0}},
    "search": {"method": "asha", "configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
    "pythonpath": [str(ROOT)],
}  # fmt: skip
LINE: dict[str, Any] = {
    "objective": "tests.retraining.retrain_objectives:train",
    "space": {"offset": {"type": "float", "low": -1.0, "high": 1.0},
              "rate": {"type": "float", "low": 0.1, "high": 1.0}},
    "search": {"method": "asha", "configs": 8, "min_resource": 2, "max_resource": 8, "reduction_factor": 2},
}  # fmt: skip


class Deployed:
    """A Prefect server with our deployments and a worker, asked as its UI asks it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.home = folder / "home"
        studies = folder / "studies"
        studies.mkdir()
        self._gate = studies / "gate"  # a deployed study names files of the folders of data and studies alone
        slow = {
            "study": "slow",
            "objective": "tests.flows.objectives:held",
            "search": {"method": "random", "configs": 24, "max_resource": 4},
            "tracking": {"mlflow": "off"},
            "constants": {"gate": str(self._gate)},
        }
        (studies / "toy.yaml").write_text(json.dumps(TOY))
        (studies / "slow.yaml").write_text(json.dumps(TOY | slow))
        failing = {"objective": "tests.flows.objectives:raises", "tracking": {"mlflow": "off"}}
        (studies / "failing.yaml").write_text(json.dumps(TOY | failing))
        (studies / "evil.yaml").write_text(json.dumps(TOY | {"objective": "os:system"}))
        (studies / "line.yaml").write_text(json.dumps(TOY | LINE))
        self.said = ""
        """What `hpo deploy` printed."""
        self.data = folder / "data"
        self.data.mkdir()
        self.environment = os.environ | environment | {
            "HPO_HOME": str(self.home), "HOME": str(folder), "PREFECT_WORKER_QUERY_SECONDS": "1",
            "HPO_ALLOWED_OBJECTIVES": "tests.flows.objectives, tests.retraining.retrain_objectives, "
            "tests.hopping.hopping_objectives, tests.hopping.hopping_objectives:train",
            "HPO_STUDY_FOLDER": str(studies), "HPO_DATA_FOLDER": str(self.data),
            "HPO_IMPORT_FOLDERS": str(ROOT), "MLFLOW_TRACKING_PASSWORD": PLANTED, "MY_TOKEN": PLANTED,
        }  # fmt: skip

    def hpo(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command; one that only reads in this process, as a process imports for seconds."""
        command = [sys.executable, "-m", "hpo_flows", *arguments]
        if arguments[0] in READING:
            done = CliRunner().invoke(app, list(arguments), env=self.environment)
            return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.output)
        return subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT
        )

    def api(self, path: str, body: Any = None, method: str | None = None) -> Any:
        return ask(self.environment, path, body, method, timeout=90)

    def hold(self, trial: int = 8) -> None:
        """From this trial on, those of slow.yaml wait: on a busy machine the study would end before it is looked at."""
        new = self._gate.with_suffix(".new")
        new.write_text(str(trial))
        new.replace(self._gate)

    def release(self) -> None:
        self._gate.unlink(missing_ok=True)

    def start(self, flow: str, **parameters: Any) -> str:
        return self.start_with(flow, {}, **parameters)

    def start_with(self, flow: str, more: dict[str, Any], **parameters: Any) -> str:
        found = self.api(f"deployments/name/{flow}/{flow}")
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}} | more
        return str(self.api(f"deployments/{found['id']}/create_flow_run", body)["id"])

    def run(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api(f"flow_runs/{run}")
        return found

    def wait(self, run: str, until: Callable[[dict[str, Any]], bool], seconds: float = LIMIT) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while not until(found := self.run(run)):
            assert time.monotonic() < deadline, (found["state"], self.logs(run)[-5:])
            time.sleep(0.3)
        return found

    def ended(self, run: str) -> dict[str, Any]:
        return self.wait(run, lambda found: found["state_type"] in FINAL)

    def completed(self, flow: str, **parameters: Any) -> dict[str, Any]:
        run = self.start(flow, **parameters)
        ended = self.ended(run)
        assert ended["state_type"] == "COMPLETED", (ended["state"], self.logs(run))
        return ended

    def crashed(self, run: str) -> None:
        """Wait until both who watch a process in Prefect have said so: its runner, and then its worker.

        A run started again between the two would be called crashed once more. The worker's call changes nothing that
        can be seen, but what it logs afterwards can.
        """
        self.wait(run, lambda found: found["state_type"] == "CRASHED")
        self.wait(run, lambda _: any("memory allocation" in line for line in self.logs(run)))

    def logs(self, run: str) -> list[str]:
        wanted = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        return [line["message"] for line in self.api("logs/filter", wanted)]

    def artifacts(self, run: str) -> dict[str, Any]:
        wanted = {"artifacts": {"flow_run_id": {"any_": [run]}}, "limit": 200}
        return {item["key"]: item["data"] for item in self.api("artifacts/filter", wanted)}

    def status(self, study: str) -> dict[str, Any]:
        done = self.hpo("status", study, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {"jobs": 0, "status": "absent"}

    def begun(self, run: str, jobs: int) -> tuple[str, list[psutil.Process]]:
        """Wait until the run's study has so many jobs done; its name, and every process of the flow run."""
        found = self.wait(run, lambda found: found["state_type"] == "RUNNING" and found["name"].startswith("tune-"))
        study = found["name"].removeprefix("tune-")
        deadline = time.monotonic() + LIMIT
        while self.status(study)["jobs"] < jobs:
            assert time.monotonic() < deadline, self.logs(run)
        mine = [
            process
            for process in psutil.process_iter(["environ"])
            if (process.info["environ"] or {}).get("PREFECT__FLOW_RUN_ID") == run
        ]
        assert mine
        return study, mine


def gone(processes: list[psutil.Process], seconds: float = 60) -> bool:
    """Whether they end within so many seconds of an idle machine."""
    began = time.monotonic()
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        if time.monotonic() > began + at_load(seconds):
            return False
        time.sleep(0.2)
    return True


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, deployments_api: dict[str, str]) -> Iterator[Deployed]:
    with serving(Deployed(tmp_path_factory.mktemp("deployed"), deployments_api)) as made:
        yield made


@contextlib.contextmanager
def serving(made: Deployed) -> Iterator[Deployed]:
    """Register the deployments, and have a worker serve them."""
    done = made.hpo("deploy")
    assert done.returncode == 0, done.stdout + done.stderr
    made.said = done.stdout
    ours = made.api("work_pools/hpo")["base_job_template"]
    made.api("work_pools/hpo", {"base_job_template": Worker.get_default_base_job_template()}, method="PATCH")
    with (made.folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "hpo_flows", "worker"],
            env=made.environment,
            cwd=made.folder,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as a script's `hpo worker &` has it
        )
    # whoever starts a run would choose its command
    assert eventually(lambda: made.api("work_pools/hpo")["base_job_template"] == ours)
    yield made
    worker.terminate()
    try:
        worker.wait(LIMIT)
    except subprocess.TimeoutExpired:
        worker.kill()
        raise
