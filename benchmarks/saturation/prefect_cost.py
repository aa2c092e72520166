"""Prefect: task runs per second that a real server on 127.0.0.1 (SQLite) takes as our follower writes them.

``job``: a task run for each job. ``rung``: one task run whose log has a line for each job (the grain above 300 jobs).
Until the server holds every final state (``job``) or line of the log (``rung``). Processor time of server and client.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from saturation.processor_time import cpu_of

CASES = [{"grain": "job", "jobs": 100}, {"grain": "job", "jobs": 400}, {"grain": "rung", "jobs": 4_000}]


def measure(*, grain: str, jobs: int) -> dict[str, Any]:
    from hpo_flows.prefect_api.connection import point_prefect_at, prepare_environment

    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name:
        prepare_environment(Path(name) / "prefect")
        from hpo_flows.prefect_api.shared_server import SharedServer

        server = SharedServer(Path(name) / "prefect")
        server.start()
        try:
            server.wait()
            point_prefect_at(server.api_url, server.auth)
            assert server.pid is not None
            return _measured(grain, jobs, server.pid)
        finally:
            server.close()


def _measured(grain: str, jobs: int, server: int) -> dict[str, Any]:
    from prefect import flow
    from prefect.runtime import flow_run

    from hpo_core.model.stage import Rung
    from hpo_core.model.trial import Job, Outcome, Report
    from hpo_flows.prefect_api.connection import wait_for_final_states
    from hpo_flows.prefect_pages.task_runs import TaskPerJob, TaskPerRung, TaskRuns

    found: dict[str, Any] = {}

    def show(shown: TaskRuns, first: int, count: int) -> None:
        for number in range(first, first + count):
            end = shown.begin(Job(number, 0, Rung(0, 0), 1, {"x": 0.5}))
            metrics = {"loss": 0.5}
            end(Report(trial=number, attempt=0, outcome=Outcome.COMPLETED, metrics=metrics))

    @flow(name="scale", log_prints=False)
    def study() -> None:
        make = TaskPerJob if grain == "job" else TaskPerRung
        warm = make("loss", lambda: 1_700_000_000.0)
        show(warm, 0, 10)
        warm.close()
        shown = make("loss", lambda: 1_700_000_000.0)
        run = str(flow_run.id)
        held = warm.task_runs
        before, mine, began = cpu_of(server), time.process_time(), time.perf_counter()
        show(shown, 10, jobs)
        shown.close()
        closed = time.perf_counter() - began
        whole = wait_for_final_states(run, held + shown.task_runs) if grain == "job" else _lines_there(run, jobs)
        wall = time.perf_counter() - began
        found.update(
            complete=whole,
            shown_s=round(closed, 2),
            per_second=round(jobs / wall, 1),
            server_ms=round((cpu_of(server) - before) / jobs * 1e3, 2),
            client_ms=round((time.process_time() - mine) / jobs * 1e3, 2),
        )

    study()
    return found


def _lines_there(run: str, jobs: int, seconds: float = 90.0) -> bool:
    """Whether the server has the log's last lines in time."""
    from uuid import UUID

    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[UUID(run)]))
    deadline = time.monotonic() + seconds
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            if client.read_logs(wanted, limit=1, offset=jobs):
                return True
            time.sleep(0.2)
    return False
