"""Deployments on a real server with a real process worker: registered, started by the API, watched to their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.workers.process import ProcessWorker as Worker

from hpo_core.journal.sql import open_journal
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from tests.flows.conftest import ROOT

pytestmark = pytest.mark.timeout(400)
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
PLANTED = "pl4nted-s3cret"
TOY: dict[str, Any] = {
    "study": "toy", "objective": "tests.flows.objectives:good", "metric": {"name": "loss", "mode": "min"},
    "space": {"x": {"type": "float", "low": -1.0, "high": 1.0}},
    "search": {"method": "asha", "configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
    "pythonpath": [str(ROOT)],
}  # fmt: skip


class Deployed:
    """A Prefect server with our deployments and a worker, asked as its UI asks it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.home = folder / "home"
        studies = folder / "studies"
        studies.mkdir()
        slow = {"objective": "tests.flows.objectives:slow", "search": {"method": "random", "configs": 24,
                "max_resource": 4}, "tracking": {"mlflow": "off"}}  # fmt: skip
        (studies / "toy.yaml").write_text(json.dumps(TOY))
        (studies / "slow.yaml").write_text(json.dumps(TOY | slow))
        (studies / "evil.yaml").write_text(json.dumps(TOY | {"objective": "os:system"}))
        self.environment = os.environ | environment | {
            "HPO_HOME": str(self.home), "HOME": str(folder), "PREFECT_WORKER_QUERY_SECONDS": "1",
            "HPO_ALLOWED_OBJECTIVES": "tests.flows.objectives", "HPO_STUDY_FOLDER": str(studies),
            "HPO_IMPORT_FOLDERS": str(ROOT), "MLFLOW_TRACKING_PASSWORD": PLANTED, "MY_TOKEN": PLANTED,
        }  # fmt: skip

    def hpo(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hpo_core.cli", *arguments]
        return subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=120
        )

    def api(self, path: str, body: Any = None, method: str | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.environment['PREFECT_API_URL']}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        for tries_left in (4, 3, 2, 1, 0):
            try:
                with urllib.request.urlopen(request, timeout=90) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code != 503 or not tries_left:  # SQLite is locked for the moment
                    raise
                time.sleep(1.0)
        raise AssertionError("unreachable")

    def start(self, flow: str, **parameters: Any) -> str:
        return self.start_with(flow, {}, **parameters)

    def start_with(self, flow: str, more: dict[str, Any], **parameters: Any) -> str:
        """With what else the API takes."""
        found = self.api(f"deployments/name/{flow}/{flow}")
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}} | more
        return str(self.api(f"deployments/{found['id']}/create_flow_run", body)["id"])

    def run(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api(f"flow_runs/{run}")
        return found

    def wait(self, run: str, until: Callable[[dict[str, Any]], bool], seconds: float = 180) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while not until(found := self.run(run)):
            assert time.monotonic() < deadline, (found["state"], self.logs(run)[-5:])
            time.sleep(0.3)
        return found

    def ended(self, run: str) -> dict[str, Any]:
        return self.wait(run, lambda found: found["state_type"] in FINAL)

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
        deadline = time.monotonic() + 120
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
    deadline = time.monotonic() + seconds
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, prefect_api: dict[str, str]) -> Iterator[Deployed]:
    made = Deployed(tmp_path_factory.mktemp("deployed"), prefect_api)
    made.api(
        "work_pools/", {"name": "hpo", "type": "process", "base_job_template": Worker.get_default_base_job_template()}
    )
    refused = made.hpo("worker")
    assert refused.returncode == 2 and "lets a run set command, env, working_dir" in refused.stderr
    done = made.hpo("deploy")
    assert done.returncode == 0, done.stdout + done.stderr
    with (made.folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "hpo_core.cli", "worker"],
            env=made.environment,
            cwd=made.folder,
            stdout=log,
            stderr=log,
        )
    yield made
    worker.terminate()
    try:
        worker.wait(30)
    except subprocess.TimeoutExpired:
        worker.kill()


def test_a_study_filled_in_runs_and_shows_itself(deployed: Deployed) -> None:
    run = deployed.start(
        "tune",
        objective="tests.flows.objectives:good",
        metric={"name": "loss", "mode": "min"},
        numbers=[{"name": "x", "low": -1, "high": 1, "whole": False, "log": False, "step": 0, "grid_points": 0}],
        choices=[{"name": "kind", "values": ["plain", "16"]}],
        method={"method": "asha", "configs": 9, "max_resource": 9, "min_resource": None, "reduction_factor": 3,
                "brackets": None, "noise": None},
        name="by-form", seed=3, cluster={"workers": 2},
    )  # fmt: skip
    ended = deployed.ended(run)
    assert ended["state_type"] == "COMPLETED", deployed.logs(run)
    assert ended["name"] == "tune-by-form" and {"hpo", "by-form", "asha"} <= set(ended["tags"])
    assert "best loss" in ended["state"]["message"]

    shown = deployed.artifacts(run)
    assert {"by-form-progress", "by-form-rungs", "by-form-best", "by-form-report"} <= set(shown)
    assert shown["by-form-progress"] == 100
    assert json.loads(shown["by-form-rungs"])[0]["results"] == "9 of 9"
    assert "| x |" in shown["by-form-best"]
    decisions = [line for line in deployed.logs(run) if line.startswith("trial ")]
    assert len(decisions) == deployed.status("by-form")["jobs"], "a line per decision"
    assert any("promoted to rung 1" in line for line in decisions)

    spec = json.loads(deployed.hpo("export", "by-form").stdout.splitlines()[0])["events"][0]["spec"]
    assert spec["seed"] == 3 and spec["space"]["kind"]["choices"] == ["plain", 16]
    assert_no_secret(deployed, "by-form")


def assert_no_secret(deployed: Deployed, study: str) -> None:
    """The worker's environment holds a planted one; nothing it wrote does."""
    assert deployed.environment["MY_TOKEN"] == PLANTED
    files = [path for path in deployed.folder.rglob("*") if path.is_file()]
    files += Path(deployed.environment["PREFECT_HOME"]).glob("*.db*")
    assert {"journal.db", "mlflow.db", "prefect.db", "report.html", "worker.log"} <= {path.name for path in files}
    assert [str(path) for path in files if PLANTED.encode() in path.read_bytes()] == []


def test_a_wrong_value_is_refused_before_a_run_is_made(deployed: Deployed) -> None:
    good = TOY["objective"]
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("tune-file", {"file": "../toy.yaml"}),
        ("tune", {"objective": "os:system"}),
        ("tune", {"objective": good, "numbers": [{"name": "x", "low": 0}]}),
        ("tune", {"objective": good, "method": {"method": "asha", "variant": "other"}}),
        ("resume", {"study": "../../elsewhere"}),
    ]
    for flow, parameters in wrong:
        with pytest.raises(urllib.error.HTTPError) as caught:
            deployed.start(flow, **parameters)
        assert caught.value.code in (409, 422), flow


def test_what_the_form_cannot_see_is_refused_at_once(deployed: Deployed) -> None:
    """Objectives of study files and of recorded studies are looked at as well: every door leads to a worker."""
    recorded = TOY | {"study": "elsewhere", "objective": "os:system"}
    Study.create(StudySpec.from_plain(recorded), open_journal(deployed.home / "journal.db"))
    rows = [{"name": "x", "low": 2, "high": 1}]
    grabbed = deployed.folder / "grabbed"
    grab = {"env": {"HPO_ALLOWED_OBJECTIVES": "os"}, "command": f"touch {grabbed}", "working_dir": "/"}
    not_allowed = "objective = 'os:system' is not allowed here. Allowed: tests.flows.objectives"
    refused = {
        deployed.start_with("tune-file", {"job_variables": grab}, file="evil.yaml"): not_allowed,
        deployed.start("tune", objective=TOY["objective"], numbers=rows): "form: space.x: low = 2.0 is larger",
        deployed.start("resume", study="elsewhere"): not_allowed,
        deployed.start("rerun", study="elsewhere"): not_allowed,
        deployed.start_with("resume", {"enforce_parameter_schema": False}, study="../../out"): "should match pattern",
    }
    for run, says in refused.items():
        ended = deployed.ended(run)
        assert ended["state_type"] == "FAILED" and says in ended["state"]["message"], ended["state"]
        assert ended["total_run_time"] < 15, "a second on an idle machine"
    assert not grabbed.exists(), "the work pool takes no command from a run"


@pytest.mark.slow
def test_cancel_ends_children_and_resume_finishes(deployed: Deployed) -> None:
    run = deployed.start("tune-file", file="slow.yaml", name="cancelled")
    study, processes = deployed.begun(run, 3)
    shown = deployed.artifacts(run)
    assert 0 <= shown["cancelled-progress"] < 100, "artifacts are there, and change, while it runs"
    deployed.api(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}, "force": True})
    assert deployed.ended(run)["state_type"] == "CANCELLED"
    assert gone(processes), processes
    before = deployed.status(study)
    assert before["status"] == "halted" and before["reason"] == "interrupted"
    again = deployed.start("resume", study=study)
    assert deployed.ended(again)["state_type"] == "COMPLETED", deployed.logs(again)
    after = deployed.status(study)
    assert after["status"] == "finished" and after["trials"] == 24 and after["jobs"] > before["jobs"]
    assert "clean" in deployed.hpo("audit", study).stdout


@pytest.mark.slow
def test_suspended_and_crashed_runs_go_on_with_their_study(deployed: Deployed) -> None:
    run = deployed.start("tune-file", file="slow.yaml")
    study, processes = deployed.begun(run, 2)
    assert study.startswith("slow-20"), "named by file, date and time"
    details = {
        "pause_reschedule": True,
        "pause_timeout": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 300)),
    }
    suspended = {"type": "PAUSED", "name": "Suspended", "state_details": details}
    deployed.api(f"flow_runs/{run}/set_state", {"state": suspended, "force": True})
    assert gone(processes), "a suspended run holds no worker"
    assert deployed.run(run)["state_name"] == "Suspended"
    halted = deployed.status(study)
    assert halted["status"] == "halted"

    deployed.api(f"flow_runs/{run}/resume", {})
    same, processes = deployed.begun(run, halted["jobs"] + 2)
    assert same == study
    for process in processes:
        if "prefect.engine" in " ".join(process.cmdline()):
            process.send_signal(signal.SIGKILL)
    assert deployed.ended(run)["state_type"] == "CRASHED"
    assert gone(processes), "workers and children end with a killed flow"
    deployed.api(f"flow_runs/{run}/set_state", {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True})
    deployed.wait(run, lambda found: found["state_type"] in ("RUNNING", "COMPLETED"))
    assert deployed.ended(run)["state_type"] == "COMPLETED", deployed.logs(run)
    assert deployed.status(study)["status"] == "finished"
    assert "clean" in deployed.hpo("audit", study).stdout
