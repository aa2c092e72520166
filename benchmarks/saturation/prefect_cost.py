"""Prefect: what a task run of a job costs, against a real server on 127.0.0.1 (SQLite).

``job``: a task run for each job. ``rung``: one for the rung, whose log has a line for each job (the grain above 300
jobs). The jobs themselves do nothing, and 64 are in flight. Until the server holds every final state. Processor time of
server and client; threads of the client at most.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from saturation.processor_time import cpu_of

CASES = [{"grain": "job", "jobs": 100}, {"grain": "job", "jobs": 1_000}, {"grain": "rung", "jobs": 10_000}]
IN_FLIGHT = 64


def measure(*, grain: str, jobs: int) -> dict[str, Any]:
    from hpo_flows.prefect_api.connection import client_environment, patient_prefect

    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name:
        os.environ.update(client_environment(Path(name) / "prefect"))
        from hpo_flows.prefect_api.shared_server import SharedServer

        server = SharedServer(Path(name) / "prefect")
        server.start()
        try:
            server.wait()
            assert server.pid is not None
            with patient_prefect((server.api_url, server.auth)):
                return _measured(grain, jobs, server.pid)
        finally:
            server.close()


def _measured(grain: str, jobs: int, server: int) -> dict[str, Any]:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.runtime import flow_run

    from hpo_core.execution.executor import Inbox, OnReport
    from hpo_core.model.devices.inventory import EMPTY, Inventory, Slot
    from hpo_core.model.trial import Job, Outcome, Report, Rung
    from hpo_flows.prefect_pages.study_tasks import StudyTasks

    class Nothing:
        """Executor whose jobs end once so many others have begun."""

        poll_seconds = 1.0

        def __init__(self) -> None:
            self.running: deque[tuple[Job, OnReport]] = deque()

        def inventory(self) -> Inventory:
            return EMPTY

        def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
            self.running.append((job, on_report))
            self.end_jobs(IN_FLIGHT)

        def end_jobs(self, most: int) -> None:
            while len(self.running) > most:
                job, on_report = self.running.popleft()
                on_report(job, Report(trial=job.trial, attempt=0, outcome=Outcome.COMPLETED, metrics={"loss": 0.5}))

        def cancel(self, attempts: Any) -> None: ...

        def now(self) -> float:
            return time.monotonic()

        def wait(self, inbox: Inbox, until: float) -> bool:
            return False

    @flow(name="scale", persist_result=False)
    def scale(count: int) -> tuple[str, float, int]:
        executor = Nothing()
        tasks = StudyTasks(executor, "loss", per_job=grain == "job")
        inbox, began, threads = Inbox(), time.perf_counter(), 0
        for trial in range(count):
            tasks.submit(Job(trial, 0, Rung(0, 0), 1, {}), Slot(0, 0, "none"), inbox.put)
            threads = max(threads, threading.active_count())
        executor.end_jobs(0)
        tasks.close(600)
        return str(flow_run.id), time.perf_counter() - began, threads

    def final(run: str) -> int:
        """Task runs of a flow run that ended."""
        mine, found = FlowRunFilter(id=FlowRunFilterId(any_=[run])), 0
        with get_client(sync_client=True) as client:
            for offset in range(0, jobs + 200, 200):
                read = client.read_task_runs(flow_run_filter=mine, limit=200, offset=offset)
                found += sum(one.state is not None and one.state.is_final() for one in read)
        return found

    scale(10)
    before, mine, began = cpu_of(server), time.process_time(), time.perf_counter()
    run, closed, threads = scale(jobs)
    wanted = 1 + (jobs if grain == "job" else 0)
    while (found := final(run)) < wanted and time.perf_counter() - began < 300:
        time.sleep(0.3)
    wall = time.perf_counter() - began
    return {
        "complete": found == wanted,
        "shown_s": round(closed, 2),
        "threads": threads,
        "per_second": round(jobs / wall, 1),
        "server_ms": round((cpu_of(server) - before) / jobs * 1e3, 2),
        "client_ms": round((time.process_time() - mine) / jobs * 1e3, 2),
    }
