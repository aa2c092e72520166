"""Reads runs back from Prefect, and sets those whose state is another one there.

A task run tells of its states by events. What is sent while the API is away is lost, and Prefect then shows the task
run as Running, or not at all. Nobody tells of the end of a flow run whose process was killed: its Prefect run names
the process, and the next one of the same home and machine finds it gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import TERMINAL_STATES, State, TaskRun
from prefect.states import Cancelled, Crashed

from hpo_core.journal.protocol import Owner
from hpo_core.journal.sql import current_owner

TAG = "hpo"
"""Tag of the flow run of every study."""
KILLED = "The process that showed this study was killed; whether the study went on, `hpo status` says."
_PAGE = 200
EVENTS_SECONDS = 5.0
"""Time for a server to record the last events by itself."""
_ASK_SECONDS = 0.3
NOT_BEGUN = "The study ended before this job began."
Begun = tuple[Task[..., Any], TaskRun]
log = logging.getLogger("hpo.prefect")


def process_words(home: Path) -> str:
    """The process that shows a study, as ``infrastructure_pid`` of its flow run."""
    me = current_owner()
    return f"{me.host}:{me.pid}:{me.born}:{home}"


def end_killed_runs(client: SyncPrefectClient, home: Path) -> int:
    """Call flow runs of a home Crashed, and their task runs, whose process was here and is gone; returns how many."""
    is_open = FlowRunFilterState(type=FlowRunFilterStateType(not_any_=[*TERMINAL_STATES]))
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=[TAG]), state=is_open)
    me, found = current_owner(), []
    for run in client.read_flow_runs(flow_run_filter=wanted, limit=_PAGE):
        host, *process = (run.infrastructure_pid or "").split(":", 3)
        if host != me.host or len(process) < 3 or process[2] != str(home):
            continue
        if not Owner(host, int(process[0]), float(process[1])).runs():
            log.info("flow run %s was %s and its process is gone: Crashed", run.id, run.state_name)
            end_task_runs(client, run.id)
            client.set_flow_run_state(run.id, Crashed(message=KILLED), force=False)
            found.append(run.id)
    for one in found:  # the server records a task run some time after it was told of it
        end_task_runs(client, one)
    return len(found)


def end_task_runs(client: SyncPrefectClient, run: UUID) -> set[UUID]:
    """End the open task runs of a flow run whose process is gone: Crashed; returns all that it has.

    They give back their concurrency slots at once.
    """
    found = read_task_runs(client, run)
    for task_run in found:
        if task_run.state is None or not task_run.state.is_final():
            client.set_task_run_state(task_run.id, Crashed(message=KILLED), force=True)
    return {task_run.id for task_run in found}


def read_task_runs(client: SyncPrefectClient, run: UUID) -> list[TaskRun]:
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
    found: list[TaskRun] = []
    while page := client.read_task_runs(flow_run_filter=of_run, limit=_PAGE, offset=len(found)):
        found += page
    return found


def set_differing(
    client: SyncPrefectClient,
    flow_run: UUID,
    begun: Sequence[Begun],
    *,
    deadline: float,
    earlier: Collection[UUID] = (),
) -> bool:
    """Have Prefect show the final states of the task runs of a flow run; returns whether it does.

    Args:
        begun: task runs that began, with their states of now. Others that are recorded waited for a concurrency limit
            to the end, and are cancelled.
        deadline: a time of the monotonic clock.
        earlier: task runs of an earlier attempt of this flow run, which are left alone.
    """
    now = time.monotonic()
    by_itself = now + min(EVENTS_SECONDS, (deadline - now) / 2)
    wanted = {run.id: (run.state, task, run) for task, run in begun}
    while True:
        recorded = {run.id: run.state for run in read_task_runs(client, flow_run) if run.id not in earlier}
        waited = [one for one, state in recorded.items() if one not in wanted and not _has_ended(state)]
        differing = [one for one, (state, _, _) in wanted.items() if _type(recorded.get(one)) != _type(state)]
        if not differing and not waited:
            return True
        if time.monotonic() < by_itself:
            time.sleep(_ASK_SECONDS)
            continue
        for one in waited:
            client.set_task_run_state(one, Cancelled(message=NOT_BEGUN), force=True)
        for one in differing:
            if time.monotonic() > deadline:
                return False
            state, task, run = wanted[one]
            if one not in recorded:
                _create(client, task, run)
            if state is not None:
                client.set_task_run_state(one, state, force=True)
        return True


def _create(client: SyncPrefectClient, task: Task[..., Any], run: TaskRun) -> None:
    client.create_task_run(
        task,
        run.flow_run_id,
        run.dynamic_key,
        id=run.id,
        name=run.name,
        extra_tags=run.tags,
        task_inputs=run.task_inputs,
    )


def _type(state: State[Any] | None) -> object:
    return None if state is None else state.type


def _has_ended(state: State[Any] | None) -> bool:
    # True if it ended by itself; Prefect calls it Crashed where its wait for a limit was cancelled.
    return state is not None and state.is_final() and not state.is_crashed()
