"""Jobs that wait for a concurrency limit of a real Prefect server, and task runs that are read back from it."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import LIMIT, Runner, at_load, wait_for_entries
from tests.flows.prefect_api import ask
from tests.flows.prefect_front import PrefectFront
from tests.flows.test_prefect_away import SEARCH, begun, front
from tests.flows.test_study_flow import flow_runs, running_at_once, task_runs
from tests.waiting import eventually

__all__ = ["front"]


@pytest.fixture
def tag(hpo: Runner) -> Iterator[str]:
    name, environment = f"gpu-{uuid.uuid4().hex[:8]}", dict(hpo.environment)
    made = ask(environment, "concurrency_limits/", {"tag": name, "concurrency_limit": 1})
    yield name
    ask(environment, f"concurrency_limits/{made['id']}", method="DELETE")


def limited(hpo: Runner, study: str, tag: str, configs: int = 3) -> Path:
    """A study of as many workers, whose jobs wait for ``gate``."""
    gate = hpo.folder / "gate"
    gate.write_text("0")
    return hpo.study(
        "held",
        study=study,
        search={"method": "random", "configs": configs, "max_resource": 1},
        constants={"gate": str(gate)},
        cluster={"kind": "local", "workers": configs},
        prefect={"tags": [tag]},
    )


def jobs_of(hpo: Runner, run: dict[str, Any]) -> list[dict[str, Any]]:
    wanted = {"flow_runs": {"id": {"any_": [run["id"]]}}, "limit": 200}
    return [one for one in ask(hpo.environment, "task_runs/filter", wanted) if one["task_key"].startswith("job")]


def moment(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def states_of(hpo: Runner, name: str) -> list[str]:
    found = flow_runs(hpo, name)
    return sorted(one["state_type"] for one in jobs_of(hpo, found[-1])) if found else []


def end(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == code and "Traceback" not in out + err, out + err
    return out + err


@pytest.mark.slow
def test_jobs_that_wait_are_pending_under_their_own_name_and_all_end(hpo: Runner, tag: str) -> None:
    process = hpo.start("tune", limited(hpo, "queue", tag))
    eventually(lambda: states_of(hpo, "tune-queue") == ["PENDING", "PENDING", "RUNNING"] or process.poll() is not None)
    (run,) = flow_runs(hpo, "tune-queue")
    waiting = [one for one in jobs_of(hpo, run) if one["state_type"] == "PENDING"]
    assert process.poll() is None and len(waiting) == 2
    assert all(one["name"].startswith(("trial 0 -> 1", "trial 1 -> 1", "trial 2 -> 1")) for one in waiting), waiting
    (hpo.folder / "gate").unlink()
    assert "queue finished: 3 trials, 3 jobs" in end(process)
    jobs = [one for one in task_runs(hpo, run) if one["task_key"].startswith("job")]
    assert [one["state_type"] for one in jobs] == ["COMPLETED"] * 3
    assert sorted(one["name"].partition(",")[0] for one in jobs) == ["trial 0 -> 1", "trial 1 -> 1", "trial 2 -> 1"]
    assert running_at_once(jobs) == 1


@pytest.mark.slow
def test_a_killed_study_gives_back_its_slots_when_it_is_resumed(hpo: Runner, tag: str) -> None:
    process = hpo.start("tune", limited(hpo, "lost", tag))
    eventually(lambda: "RUNNING" in states_of(hpo, "tune-lost"))
    process.kill()
    process.communicate()
    (hpo.folder / "gate").unlink()
    end(hpo.start("resume", "lost"))
    (first,), (second,) = flow_runs(hpo, "tune-lost"), flow_runs(hpo, "resume-lost")
    assert (first["state_type"], second["state_type"]) == ("CRASHED", "COMPLETED")
    assert {one["state_type"] for one in jobs_of(hpo, first)} == {"CRASHED"}
    assert {one["state_type"] for one in jobs_of(hpo, second)} == {"COMPLETED"}
    given_back = max(moment(one["end_time"]) for one in jobs_of(hpo, first))
    begins = min(moment(one["start_time"]) for one in jobs_of(hpo, second))
    assert begins - given_back < at_load(30), "not by the lease, which ends after 60 s"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Cancelling", "Suspended"])
def test_a_run_that_is_cancelled_or_paused_ends_its_tasks_and_frees_the_limit(hpo: Runner, tag: str, way: str) -> None:
    study = f"ended-{way.lower()}"
    command = ["bash", "-c", 'trap "" INT; exec "$@"', "-", sys.executable, "-m", "hpo_flows", "tune"]  # as with `&`
    process = subprocess.Popen(
        [*command, limited(hpo, study, tag)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=hpo.environment, cwd=hpo.folder,
    )  # fmt: skip
    eventually(lambda: states_of(hpo, f"tune-{study}") == ["PENDING", "PENDING", "RUNNING"])
    (run,) = flow_runs(hpo, f"tune-{study}")
    state = {"type": "CANCELLING" if way == "Cancelling" else "PAUSED", "name": way}
    ask(hpo.environment, f"flow_runs/{run['id']}/set_state", {"state": state, "force": True})
    assert f"hpo resume {study}" in end(process, 130)
    assert states_of(hpo, f"tune-{study}") == ["CANCELLED"] * 3
    (run,) = flow_runs(hpo, f"tune-{study}")
    assert run["state_type"] == "CANCELLED" and f"hpo resume {study}" in run["state"]["message"]
    status = hpo("status", study)
    assert "running" not in status, status
    limit = ask(hpo.environment, f"concurrency_limits/tag/{tag}")
    assert limit["active_slots"] == []
    (hpo.folder / "gate").unlink()
    assert hpo.json("resume", study)["status"] == "finished"


@pytest.mark.slow
def test_what_was_lost_while_the_server_was_away_is_set_at_the_end(hpo: Runner, front: PrefectFront) -> None:
    process = begun(hpo, front, "outage")
    front.become("503")
    (hpo.folder / "gate").write_text("8")
    wait_for_entries(hpo, "outage", 10, process)
    front.become("there")
    (hpo.folder / "gate").unlink()
    assert "does not show" not in end(process)
    (run,) = flow_runs(hpo, "tune-outage")
    assert run["state_type"] == "COMPLETED"
    assert states_of(hpo, "tune-outage") == ["COMPLETED"] * SEARCH["configs"]
    assert len({one["name"] for one in jobs_of(hpo, run)}) == SEARCH["configs"]


@pytest.mark.slow
def test_jobs_that_wait_for_a_limit_begin_without_it_where_the_server_stays_away(
    hpo: Runner, tag: str, front: PrefectFront
) -> None:
    hpo.environment["PREFECT_API_URL"] = f"{front.url}/api"
    process = hpo.start("tune", limited(hpo, "alone", tag))
    eventually(lambda: states_of(hpo, "tune-alone") == ["PENDING", "PENDING", "RUNNING"])
    front.become("gone")
    (hpo.folder / "gate").unlink()
    assert process.stderr is not None
    said = ""
    while said.count("without its concurrency limits") < 2:
        line = process.stderr.readline()
        assert line, (said, process.communicate())
        said += line
    front.become("there")
    assert "alone finished: 3 trials, 3 jobs" in end(process)
    (run,) = flow_runs(hpo, "tune-alone")
    jobs = jobs_of(hpo, run)
    assert [one["state_type"] for one in jobs] == ["COMPLETED"] * 3, "each is shown once, as what it came to"
