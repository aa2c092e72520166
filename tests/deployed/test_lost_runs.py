"""Flow runs whose process is gone, on a real Prefect server: who calls them Crashed, and who must not."""

from __future__ import annotations

import fcntl
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
from hpo_flows.deployed.flow_run_heartbeats import AUTOMATION, NO_HEARTBEAT, report_silent_runs
from hpo_flows.prefect_pages.shown_runs import KILLED, ShownRun, report_killed_runs
from tests.waiting import eventually

HERE = "of this home"


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


def left_behind(client: SyncPrefectClient, folder: Path, server: str = HERE) -> UUID:
    """A running flow run with the file of a process that was killed: its lock is free."""
    run = client.create_flow_run(shown, state=Running()).id
    (folder / f"{run}.{socket.gethostname()}").write_text(server)
    return run


@pytest.mark.slow
def test_a_run_whose_process_was_killed_is_crashed_with_its_task_runs(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    run = left_behind(client, tmp_path)
    open_task = client.create_task_run(job, flow_run_id=run, dynamic_key="0", state=Running()).id
    ended = left_behind(client, tmp_path)
    client.set_flow_run_state(ended, Completed(), force=True)
    elsewhere = left_behind(client, tmp_path, "http://prefect.example/api")
    gone = tmp_path / f"{uuid4()}.{socket.gethostname()}"
    gone.write_text(HERE)
    alive = client.create_flow_run(shown, state=Running()).id
    note = ShownRun(tmp_path, alive, HERE)
    (tmp_path / "notes").write_text("")
    assert report_killed_runs(client, tmp_path, HERE) == [run]
    assert state_of(client, run).is_crashed() and state_of(client, run).message == KILLED
    of_task = client.read_task_run(open_task).state
    assert of_task is not None and of_task.is_crashed()
    assert state_of(client, ended).is_completed(), "a terminal state is never left"
    assert state_of(client, elsewhere).is_running() and state_of(client, alive).is_running()
    assert not gone.exists() and len(list(tmp_path.iterdir())) == 3
    note.ended()
    assert not list(tmp_path.glob(f"{alive}*"))
    assert report_killed_runs(client, tmp_path, HERE) == []


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
