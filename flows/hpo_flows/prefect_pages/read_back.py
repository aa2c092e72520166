"""Reads the task runs of a study back from Prefect, and sets those whose state is another one there.

A task run tells of its states by events. What is sent while the API is away is lost, and Prefect then shows the task
run as Running, or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from prefect import Task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Cancelled

from hpo_flows.prefect_pages.shown_runs import read_task_runs

EVENTS_SECONDS = 5.0
"""Time for a server to record the last events by itself."""
_ASK_SECONDS = 0.3
NOT_BEGUN = "The study ended before this job began."
Begun = tuple[Task[..., Any], TaskRun]


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
