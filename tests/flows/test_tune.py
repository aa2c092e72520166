"""The main job end to end: real Prefect API, Dask cluster, child processes, MLflow on SQLite."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_core.home import Home
from hpo_core.journal.protocol import Owner, started
from hpo_core.journal.sql import current_owner
from hpo_core.model.errors import StudyBusyError, StudyExistsError
from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import load_spec
from hpo_core.spec.sections import TrackingSpec
from hpo_core.study import Study
from hpo_flows.command import app
from hpo_flows.dask.executor import DaskExecutor
from hpo_flows.prefect_api.shared_server import SharedServer
from hpo_flows.study_run.session import Session
from tests.conftest import World, fresh, make_spec
from tests.flows.conftest import LIMIT, Runner
from tests.flows.prefect_api import ask
from tests.flows.test_study_flow import flow_runs, task_runs
from tests.security.test_secrets_in_errors import contents

ONE = {"kind": "local", "workers": 1}
"""A worker costs as much to start as a small study."""


def api(hpo: Runner, path: str, body: Any) -> Any:
    return ask(hpo.environment, path, body)


def shown(hpo: Runner, study: str, count: int) -> list[dict[str, Any]]:
    (flow,) = flow_runs(hpo, f"tune-{study}")
    return task_runs(hpo, flow, count)


@pytest.mark.slow
def test_everything_on(hpo: Runner) -> None:
    facts = hpo.json("tune", hpo.study(study="full", tracking={}, prefect="auto"))
    assert facts["status"] == "finished" and facts["trials"] == 12
    assert Path(facts["checkpoint"]).is_file() and Path(facts["report"]).is_file()
    assert "mlflow" in facts["mlflow"]

    # Prefect: a task run per job and rung, named, in its true final state, and artifacts.
    runs = shown(hpo, "full", facts["jobs"])
    assert len([run for run in runs if run["task_key"].startswith("job")]) == facts["jobs"]
    assert {run["state_name"] for run in runs} == {"Completed"}
    assert "trial 0 -> 1" in {run["name"] for run in runs}
    artifacts = api(hpo, "artifacts/filter", {"artifacts": {"key": {"like_": "full-"}}})
    keys = {item["key"] for item in artifacts}  # other studies of this server are compared with one of this name
    assert {key for key in keys if key.startswith("full-")} == {"full-study"}

    # MLflow: a parent, a child per trial, nothing doubled by projecting again.
    import mlflow

    hpo("project", "full")
    client = mlflow.MlflowClient(f"sqlite:///{hpo.home / 'mlflow.db'}")
    found = client.search_runs([e.experiment_id for e in client.search_experiments()], max_results=100)
    kinds = [run.data.tags["hpo.kind"] for run in found]
    assert kinds.count("study") == 1 and kinds.count("trial") == 12
    parent = next(run for run in found if run.data.tags["hpo.kind"] == "study")
    names = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert "promotions.csv" in names and "best_checkpoint" in names and "report.html" in names

    refused = hpo("tune", hpo.study(study="full"), code=3)
    assert "hpo resume full" in refused and "hpo extend full" in refused
    live = set((hpo.home / "studies/full/checkpoints").glob("*/*"))
    assert 11 <= len(live) <= 24, "superseded checkpoints are removed, paused trials keep theirs"


def metrics(hpo: Runner, study: str) -> dict[tuple[int, int], Any]:
    """(trial, resource) to metrics, from the journal."""
    found = {}
    for line in hpo("export", study).splitlines():
        for event in json.loads(line)["events"]:
            if event["is"] == "JobCompleted":
                found[event["trial"], event["resource"]] = event["metrics"]
    return found


@pytest.mark.slow
def test_task_runs_of_rungs_that_are_over_are_ended(hpo: Runner) -> None:
    """A study may have thousands of brackets."""
    search = {"method": "sha", "configs": 1, "max_resource": 1, "rounds": 40}
    facts = hpo.json("tune", hpo.study(study="rounds", search=search, prefect="rungs"))
    assert facts["status"] == "finished" and facts["jobs"] == 40
    runs = shown(hpo, "rounds", 40)
    assert sorted(run["name"] for run in runs) == sorted(f"rung 0 of bracket {k}, to 1" for k in range(40))
    assert {run["state_name"] for run in runs} == {"Completed"}
    last = max(run["start_time"] for run in runs)
    assert sum(run["end_time"] < last for run in runs) >= 25, "they were ended when the 33rd was opened"


@pytest.mark.slow
def test_mlflow_unreachable_does_not_stop_the_study(hpo: Runner) -> None:
    hpo.environment["MLFLOW_TRACKING_URI"] = "http://me:pl4nted-s3cret@127.0.0.1:9"
    process = hpo.start("tune", hpo.study(tracking={}, prefect="auto"))
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0 and "toy finished" in out
    assert "hpo project toy" in err and "Nothing is lost" in err
    kept = contents(hpo.folder, Path(hpo.environment["PREFECT_HOME"]))
    assert {"journal.db", "mlflow.log", "prefect.db"} <= {path.name for path in kept}
    assert [path for path, content in kept.items() if b"pl4nted" in content] == []
    assert "pl4nted" not in out + err


@pytest.mark.slow
def test_an_objective_that_fails_from_the_start_halts(hpo: Runner) -> None:
    facts = hpo.json("tune", hpo.study("raises", study="fails-raises", prefect="auto", cluster=ONE), code=7)
    assert facts["status"] == "halted"
    assert "5 trials failed before any succeeded" in facts["reason"]
    assert re.search("ValueError: width .* is not what I like", facts["reason"]), facts["reason"]
    (run,) = flow_runs(hpo, "tune-fails-raises")
    assert run["state_type"] == "FAILED" and facts["reason"].rstrip(".") in run["state"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "counts"),
    [
        ("never", "of 2 trials, 2 diverged (NaN or infinite). "),
        ("raises", "of 2 trials, 2 failed, most often with: ValueError: width"),
    ],
)
def test_a_study_without_any_result_is_no_success(hpo: Runner, function: str, counts: str) -> None:
    file = hpo.study(function, search={"method": "random", "configs": 2}, cluster=ONE)
    text = hpo("tune", file, code=1)
    assert "ended without a single result: no trial has a finite value of loss: " + counts in text
    assert f"`hpo try {file}` shows what a trial reports" in text and "hpo extend" not in text
    assert f"next        hpo try {file}   (then: hpo tune {file} --name toy-2; " in text
    assert "It has no result to go on from: `--name toy-2` starts anew." in hpo.here("tune", file, code=3)


@pytest.mark.slow
def test_where_a_search_ends_is_said_on_terminal_in_json_and_report(hpo: Runner) -> None:
    words = "5 configurations bring a trial to 3, and may not bring one to max_resource = 9. Use more configurations"
    search = {"method": "asha", "configs": 5, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}
    process = hpo.start("tune", hpo.study(search=search), "--json")
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out + err
    facts = json.loads(out)
    assert len(facts["notices"]) == 1 and words in facts["notices"][0] and words in " ".join(err.split())
    assert words in Path(facts["report"]).read_text()
    assert hpo.json("extend", "toy", "--configs", 4)["notices"] == [], "nine are enough"


def test_a_rerun_under_a_name_that_is_taken_is_told_its_own_option(tmp_path: Path) -> None:
    home = Home(tmp_path)
    journal = home.open_journal()
    study = fresh(make_spec(), journal, World(2))
    World(2).play(study)
    again = rerun_spec(list(journal.entries(study.name)), "again")
    Study.create(again, journal)
    with pytest.raises(StudyExistsError, match="`--as again-2` starts another study"):
        Session(home, "again", spec=again)


def test_dead_prefect_api_is_said_before_anything_starts(hpo: Runner) -> None:
    hpo.environment["PREFECT_API_URL"] = "http://127.0.0.1:9/api"
    text = hpo.here("tune", hpo.study(prefect="auto"), code=1)
    assert "No Prefect API answers at http://127.0.0.1:9/api" in text and "Traceback" not in text


def test_tune_and_resume_say_who_drives_a_study(tmp_path: Path) -> None:
    """It was said to exist, and to be gone on with by ``hpo resume``, which refuses that."""
    runner = Runner(tmp_path, {})
    file, home = runner.study(), Home(runner.home)
    journal = home.open_journal()
    Study.create(load_spec(file), journal)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as driver:
        journal.claim("toy", Owner(current_owner().host, driver.pid, started(driver.pid)))
        for command, error in (("tune", StudyExistsError), ("resume", StudyBusyError)):
            named = file if command == "tune" else "toy"
            refused = CliRunner().invoke(app, [command, str(named), "--home", str(home.folder)]).exception
            assert isinstance(refused, error), refused
            assert f"is being driven by process {driver.pid} on " in str(refused) and "--force" in str(refused)
            assert command == "tune" or "force=True" in str(refused)
        driver.communicate(b"\n")
    with pytest.raises(StudyExistsError, match=r"`hpo resume toy` goes on .* `--name toy-2` starts another") as refused:
        Session(home, "toy", spec=load_spec(file))
    assert "Python" not in str(refused.value) and "hpo.resume(" not in str(refused.value)
    with pytest.raises(
        StudyExistsError, match=r"resume=True goes on .* name='toy-2' starts another study\."
    ) as refused:
        Session(home, "toy", spec=load_spec(file), in_python=True)
    assert "`" not in str(refused.value)
    journal.close()


def test_a_finished_study_is_resumed_without_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It started Dask, Prefect and MLflow to say that there was nothing to do."""
    for made in (DaskExecutor, SharedServer):
        monkeypatch.setattr(made, "start", lambda _: pytest.fail("nothing is left to train"))
    runner = Runner(tmp_path, {})
    home, world = Home(runner.home), World(1)
    spec = load_spec(runner.study()).model_copy(update={"tracking": TrackingSpec(mlflow="off")})
    world.play(fresh(spec, home.open_journal(), world))
    done = CliRunner().invoke(app, ["resume", "toy", "--home", str(home.folder)])
    assert done.exit_code == 0 and "toy finished" in done.output and "none of them now" in done.output, done.output
    assert "study toy is finished: there is nothing left to train" in done.output
    assert home.report_path("toy").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
@pytest.mark.slow
@pytest.mark.parametrize("full", ["studies", "."], ids=["checkpoints", "journal-too"])
def test_full_disk_halts_and_resume_finishes(hpo: Runner, full: str) -> None:
    disk = hpo.home / full
    disk.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine forbids mounts")
    try:
        process = hpo.start("tune", hpo.study("fills_disk"))
        out, err = process.communicate(timeout=LIMIT)
        # Halted by the journal's word where it could still take one, else by the journal's own failure.
        assert process.returncode == 7 or (process.returncode == 6 and full == "."), out + err
        assert re.search("No space left|disk is full", out + err), out + err
        assert "Traceback" not in err
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        facts = hpo.json("resume", "toy")
        assert facts["status"] == "finished" and facts["trials"] == 12
        assert "clean" in hpo("audit", "toy")
        assert hpo.json("status", "toy")["abandoned"] == 0
    finally:
        gc.collect()  # the journal that the last commands read in this process
        subprocess.run(["umount", str(disk)], check=True)
