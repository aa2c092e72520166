"""Deployments on a real server with a real process worker: registered, started by the API, watched to their end."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from hpo_core.journal.sql import open_journal
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from tests.deployed.deployment_server import PLANTED, TOY, Deployed, deployed, gone
from tests.security.test_secrets_in_errors import contents
from tests.waiting import eventually

__all__ = ["deployed"]

pytestmark = pytest.mark.timeout(1200)
FILLED: dict[str, Any] = {
    "objective": TOY["objective"], "metric": {"name": "loss"}, "search": {"asha": {"configs": 9, "max_resource": 9}},
    "space": {"float": [{"name": "x", "low": -1, "high": 1}]},
}  # fmt: skip


def test_a_study_filled_in_runs_and_shows_itself(deployed: Deployed) -> None:
    run = deployed.start(
        "tune",
        objective="tests.flows.objectives:good",
        metric={"name": "loss", "mode": "min"},
        space={"float": [{"name": "x", "low": -1, "high": 1, "log": False}],
               "categorical": [{"name": "kind", "choices": ["plain", "16"]}]},
        search={"asha": {"configs": 9, "max_resource": 9, "reduction_factor": 3}},
        name="by-form", advanced="{seed: 3}", cluster={"local": {"workers": "1"}},
    )  # fmt: skip
    ended = deployed.ended(run)
    assert ended["state_type"] == "COMPLETED", deployed.logs(run)
    assert ended["name"] == "tune-by-form" and {"hpo", "by-form", "asha"} <= set(ended["tags"])
    assert "best loss" in ended["state"]["message"]

    shown = deployed.artifacts(run)
    assert set(shown) == {"by-form-study"}
    page = shown["by-form-study"]
    assert "| x |" in page and "](data:image/svg+xml;base64," in page
    assert "file://" not in page and "report.html`" in page, "a browser elsewhere opens no file of the worker"
    lines = deployed.logs(run)
    assert any(line.startswith("starting: ") for line in lines) and "writing the report ..." in lines, lines
    decisions = [line for line in lines if "] trial " in line]
    assert len(decisions) == deployed.status("by-form")["jobs"], "a line per decision"
    assert any("promoted to rung 1" in line for line in decisions)

    spec = json.loads(deployed.hpo("export", "by-form").stdout.splitlines()[0])["events"][0]["spec"]
    assert spec["seed"] == 3 and spec["space"]["kind"]["choices"] == ["plain", 16]
    assert_no_secret(deployed, "by-form")


def test_deploy_prints_what_it_registered_and_where_it_is(deployed: Deployed) -> None:
    """It printed the name of the work pool alone."""
    lines = deployed.said.splitlines()
    ui = deployed.environment["PREFECT_API_URL"].removesuffix("/api")
    assert f"Prefect UI: {ui}/deployments" in lines
    listed = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    every = deployed.api("deployments/filter", {"deployments": {"tags": {"all_": ["hpo"]}}})
    assert {one["name"]: one["description"] for one in every} == listed
    assert "tune-file" in listed and "`hpo worker` runs what is started" in lines[-1]


def assert_no_secret(deployed: Deployed, study: str) -> None:
    """The worker's environment holds a planted one; nothing it wrote does."""
    assert deployed.environment["MY_TOKEN"] == PLANTED
    projected = deployed.hpo("project", study)  # on a busy machine the end of a study does not wait for MLflow
    assert projected.returncode == 0, projected.stderr
    written = contents(deployed.folder, Path(deployed.environment["PREFECT_HOME"]))
    assert {"journal.db", "mlflow.db", "prefect.db", "report.html", "worker.log"} <= {path.name for path in written}
    assert [str(path) for path, content in written.items() if PLANTED.encode() in content] == []


def test_a_wrong_value_is_refused_before_a_run_is_made(deployed: Deployed) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("tune", FILLED | {"space": {"float": [{"name": "x", "low": 0}]}}),
        ("tune", FILLED | {"search": {"asha": {"configs": "many"}}}),
        ("tune", {"objective": FILLED["objective"]}),
        ("resume", {"study": "../../elsewhere"}),
    ]
    for flow, parameters in wrong:
        with pytest.raises(urllib.error.HTTPError) as caught:
            deployed.start(flow, **parameters)
        assert caught.value.code in (409, 422), flow


@pytest.mark.slow
def test_what_the_form_cannot_see_is_refused_at_once(deployed: Deployed) -> None:
    """Objectives of study files and of recorded studies are looked at as well: every door leads to a worker."""
    recorded = TOY | {"study": "elsewhere", "objective": "os:system"}
    Study.create(StudySpec.from_plain(recorded), open_journal(deployed.home / "journal.db"))
    rows = {"float": [{"name": "x", "low": 2, "high": 1}]}
    data = {"categorical": [{"name": "data", "choices": ["/etc/passwd"]}]}
    grabbed = deployed.folder / "grabbed"
    grab = {"env": {"HPO_ALLOWED_OBJECTIVES": "os"}, "command": f"touch {grabbed}", "working_dir": "/"}
    not_allowed = "objective = 'os:system' is not allowed here. Allowed: tests.flows.objectives"
    keep = {"model": "m", "data": "may.json"}
    (deployed.data / "may.json").write_text("{}")
    refused = {
        deployed.start_with("tune-file", {"job_variables": grab}, file="evil.yaml"): not_allowed,
        deployed.start("tune", **FILLED | {"space": rows}): "form: space.x: low = 2.0 is larger",
        deployed.start("tune", **FILLED | {"space": data}): "names files of the deployment's folder of data",
        deployed.start("tune", **FILLED | {"advanced": "{packing: {most: 0}}"}): "form: packing.most: ",
        deployed.start("tune", **FILLED | {"objective": "os:system"}): not_allowed,
        deployed.start("tune-file", file="../toy.yaml"): "does not lie in the deployment's folder of studies",
        deployed.start("resume", study="elsewhere"): not_allowed,
        deployed.start("rerun", study="elsewhere"): not_allowed,
        deployed.start_with("resume", {"enforce_parameter_schema": False}, study="../../out"): "is no name",
        deployed.start("retrain", **keep, evaluate="os:system"): "evaluate = 'os:system' is not allowed here",
        deployed.start("retrain", **keep | {"data": "/etc/passwd"}): "names files of the deployment's folder of data",
        deployed.start("compare", studies=["../../out"]): "../../out",
    }
    for run, says in refused.items():
        ended = deployed.ended(run)
        assert ended["state_type"] == "FAILED" and says in ended["state"]["message"], ended["state"]
        if "should match pattern" not in says:  # that Prefect says itself
            assert "Error" not in ended["state"]["message"].partition(":")[0], "a sentence, not a class, comes first"
            assert not any("Traceback" in line for line in deployed.logs(run)), deployed.logs(run)
    assert not grabbed.exists(), "the work pool takes no command from a run"


@pytest.mark.slow
def test_cancel_ends_children_and_resume_finishes(deployed: Deployed) -> None:
    deployed.hold()
    run = deployed.start("tune-file", file="slow.yaml", name="cancelled")
    study, processes = deployed.begun(run, 3)
    shown = deployed.artifacts(run)
    assert " jobs done, " in shown["cancelled-study"], "it is there, and changes, while the study runs"
    deployed.api(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}, "force": True})
    assert deployed.ended(run)["state_type"] == "CANCELLED"
    assert gone(processes), processes
    before = deployed.status(study)
    assert before["status"] == "halted" and before["reason"] == "interrupted"
    deployed.release()
    again = deployed.start("resume", study=study)
    assert deployed.ended(again)["state_type"] == "COMPLETED", deployed.logs(again)
    after = deployed.status(study)
    assert after["status"] == "finished" and after["trials"] == 24 and after["jobs"] > before["jobs"]
    assert "clean" in deployed.hpo("audit", study).stdout


@pytest.mark.slow
def test_a_run_cancelled_before_its_first_job_can_be_resumed(deployed: Deployed) -> None:
    """It left no study, and `resume` said that there is none of that name."""
    run = deployed.start("tune-file", file="toy.yaml", name="early")
    deployed.wait(run, lambda found: found["name"] == "tune-early")  # its cluster is starting
    deployed.api(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}, "force": True})
    assert deployed.ended(run)["state_type"] == "CANCELLED"
    left = deployed.status("early")
    assert left["status"] != "absent", deployed.logs(run)
    again = deployed.start("resume", study="early")
    assert deployed.ended(again)["state_type"] == "COMPLETED", deployed.logs(again)
    assert deployed.status("early")["trials"] == 9


@pytest.mark.slow
def test_the_state_and_the_page_of_a_failed_run_begin_with_the_reason(deployed: Deployed) -> None:
    halted = deployed.start("tune-file", file="failing.yaml", name="failing")
    refused = deployed.start("resume", study="no-such-study")
    for run, reason in {
        halted: "5 trials failed before any succeeded",
        refused: "Study 'no-such-study' is not in",
    }.items():
        ended = deployed.ended(run)
        message = ended["state"]["message"]
        assert ended["state_type"] == "FAILED" and message.startswith(reason) and ".." not in message
        told = f'Finished in state Failed("{reason}' if "'" in reason else f"Finished in state Failed('{reason}"
        eventually(lambda run=run, told=told: any(line.startswith(told) for line in deployed.logs(run)))
    shown = deployed.artifacts(halted)["failing-study"]
    assert shown.partition("\n\n")[2].startswith("**Halted: 5 trials failed before any succeeded"), shown
    described = {
        item["key"]: item["description"]
        for item in deployed.api("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [halted]}}})
    }
    assert all(words.startswith("Halted: 5 trials failed") and " running" not in words for words in described.values())


@pytest.mark.slow
def test_suspended_and_crashed_runs_go_on_with_their_study(deployed: Deployed) -> None:
    deployed.hold()
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

    deployed.hold(halted["jobs"] + 8)
    deployed.api(f"flow_runs/{run}/resume", {})
    same, processes = deployed.begun(run, halted["jobs"] + 2)
    assert same == study
    for process in processes:
        if "prefect.engine" in " ".join(process.cmdline()):
            process.send_signal(signal.SIGKILL)
    deployed.crashed(run)
    assert gone(processes), "workers and children end with a killed flow"
    deployed.release()
    deployed.api(f"flow_runs/{run}/set_state", {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True})
    deployed.wait(run, lambda found: found["state_type"] in ("RUNNING", "COMPLETED"))
    assert deployed.ended(run)["state_type"] == "COMPLETED", deployed.logs(run)
    assert deployed.status(study)["status"] == "finished"
    assert "clean" in deployed.hpo("audit", study).stdout
