"""Flow runs whose process is gone, on a real Prefect server: who calls them Crashed, and who must not."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Completed, Paused, Running, State

from hpo_core.model.errors import StorageError
from hpo_core.security.private_files import LockFile
from hpo_flows.deployed.register import AUTOMATION, NO_HEARTBEAT, report_silent_runs
from hpo_flows.prefect_pages.read_back import KILLED, TAG, end_killed_runs, process_words
from tests.waiting import eventually


@flow(name="shown")
def shown() -> None:
    """A flow to make runs of."""


@task(name="job")
def job() -> None:
    """A task to make runs of."""


@pytest.fixture
def client(deployments_api: dict[str, str]) -> Iterator[SyncPrefectClient]:
    with SyncPrefectClient(
        deployments_api["PREFECT_API_URL"], auth_string=deployments_api["PREFECT_API_AUTH_STRING"]
    ) as opened:
        yield opened


def state_of(client: SyncPrefectClient, run: UUID) -> State:
    state = client.read_flow_run(run).state
    assert state is not None
    return state


def shown_by(client: SyncPrefectClient, process: str) -> UUID:
    """A running flow run that says which process shows it."""
    run = client.create_flow_run(shown, state=Running(), tags=[TAG]).id
    client.update_flow_run(run, infrastructure_pid=process)
    return run


@pytest.mark.slow
def test_a_run_whose_process_was_killed_is_crashed_with_its_task_runs(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    killed = f"{socket.gethostname()}:{os.getpid()}:1.0:{tmp_path}"  # its pid is another process's now
    run = shown_by(client, killed)
    open_task = client.create_task_run(job, flow_run_id=run, dynamic_key="0", state=Running()).id
    ended = shown_by(client, killed)
    client.set_flow_run_state(ended, Completed(), force=True)
    others = [
        client.create_flow_run(shown, state=Running(), tags=[TAG]).id,  # of a worker, say
        *(shown_by(client, words) for words in ("42", process_words(tmp_path), f"{killed}-of-others", f"not-{killed}")),
    ]
    assert end_killed_runs(client, tmp_path) == 1
    assert state_of(client, run).is_crashed() and state_of(client, run).message == KILLED
    of_task = client.read_task_run(open_task).state
    assert of_task is not None and of_task.is_crashed()
    assert state_of(client, ended).is_completed(), "a terminal state is never left"
    assert all(state_of(client, one).is_running() for one in others)
    assert end_killed_runs(client, tmp_path) == 0


@pytest.mark.slow
def test_the_automation_calls_silent_runs_of_our_deployments_crashed_and_no_others(client: SyncPrefectClient) -> None:
    """Heartbeats as Prefect's engine sends them, of runs that then end, wait, or vanish."""
    flow_id = client.create_flow(shown)
    ours, other = (client.create_deployment(flow_id, name) for name in ("ours", "of-another-team"))
    before = client.read_automations_by_name(AUTOMATION)
    try:
        for _ in range(2):  # twice changes nothing
            report_silent_runs(client, [ours], seconds=10)
        assert len(client.read_automations_by_name(AUTOMATION)) == 1
        runs = {}
        for name in ("vanished", "ended", "suspended", "elsewhere"):
            of = other if name == "elsewhere" else ours
            runs[name] = client.create_flow_run_from_deployment(of, state=Running()).id
            heartbeat = {
                "id": str(uuid4()), "occurred": datetime.now(UTC).isoformat(), "event": "prefect.flow-run.heartbeat",
                "resource": {"prefect.resource.id": f"prefect.flow-run.{runs[name]}"},
                "related": [{"prefect.resource.id": f"prefect.deployment.{of}", "prefect.resource.role": "deployment"}],
            }  # fmt: skip
            client.request("POST", "/events", json=[heartbeat]).raise_for_status()
        client.set_flow_run_state(runs["ended"], Completed(), force=True)
        client.set_flow_run_state(runs["suspended"], Paused(name="Suspended"), force=True)
        eventually(lambda: state_of(client, runs["vanished"]).is_crashed())
        assert state_of(client, runs["vanished"]).message == NO_HEARTBEAT
        assert state_of(client, runs["ended"]).is_completed()
        assert state_of(client, runs["suspended"]).name == "Suspended"
        assert state_of(client, runs["elsewhere"]).is_running()
    finally:
        for one in client.read_automations_by_name(AUTOMATION):
            client.delete_automation(one.id)
        assert not before, "this test changes the automation of a server that others use"


def test_a_lock_says_what_needs_it(tmp_path: Path) -> None:
    place = tmp_path / "lock"
    first, second = (LockFile(place, "the retraining of model 'a'") for _ in range(2))
    assert first.take(fcntl.LOCK_EX) and not second.take(fcntl.LOCK_EX)
    first.write("who holds it")
    assert second.read() == "who holds it"
    first.close()
    assert second.take(fcntl.LOCK_EX)
    second.close()
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(StorageError, match="the retraining of model 'a'") as found:
        LockFile(tmp_path / "link", "the retraining of model 'a'")
    assert "Prefect" not in str(found.value)
