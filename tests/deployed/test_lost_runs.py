"""Flow runs whose process is gone, on a real Prefect server: who calls them Crashed, and who must not."""

from __future__ import annotations

import asyncio
import fcntl
import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import PrefectClient, SyncPrefectClient
from prefect.states import Completed, Crashed, Running, State

from hpo_core.model.errors import StorageError
from hpo_core.security.private_files import LockFile
from hpo_flows.deployed.flow_run_heartbeats import attempt_of, beat, begin_heartbeats, heartbeat_file, report_silent_run
from hpo_flows.prefect_pages.shown_runs import KILLED, ShownRun, report_killed_runs

HERE = "of this home"


@flow(name="shown")
def shown() -> None:
    """A flow to make runs of."""


@task(name="job")
def job() -> None:
    """A task to make runs of."""


@pytest.fixture
def client(prefect_api: dict[str, str]) -> Iterator[SyncPrefectClient]:
    with SyncPrefectClient(
        prefect_api["PREFECT_API_URL"], auth_string=prefect_api["PREFECT_API_AUTH_STRING"]
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


def test_a_run_that_another_home_started_again_is_not_called_crashed(
    client: SyncPrefectClient, prefect_api: dict[str, str], tmp_path: Path
) -> None:
    """Two workers of one pool with homes of their own: the first one's machine went down, the second runs the retry."""

    async def reported(run: UUID) -> str:
        async with PrefectClient(
            prefect_api["PREFECT_API_URL"], auth_string=prefect_api["PREFECT_API_AUTH_STRING"]
        ) as opened:
            return await report_silent_run(opened, tmp_path, run)

    run = client.create_flow_run(shown, state=Running()).id
    begin_heartbeats(tmp_path, run, client.read_flow_run(run).run_count)
    beat(tmp_path, run)
    first = attempt_of(tmp_path, run)
    client.set_flow_run_state(run, Crashed(), force=True)
    client.set_flow_run_state(run, Running(), force=True)
    assert client.read_flow_run(run).run_count == first + 1
    assert asyncio.run(reported(run)) == "started again elsewhere"
    assert state_of(client, run).is_running() and not heartbeat_file(tmp_path, run).exists()
    begin_heartbeats(tmp_path, run, first + 1)
    assert asyncio.run(reported(run)) == "crashed" and state_of(client, run).is_crashed()


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
