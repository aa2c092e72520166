"""Prefect: task runs per second that a real server on 127.0.0.1 (SQLite) takes as our follower writes them.

``job``: a task run for each job. ``rung``: one task run whose log has a line for each job (the grain above 300 jobs).
Until the server holds every final state and has taken every line of the log. Processor time of server and client.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from saturation.processor_time import cpu_of

CASES = [{"grain": "job", "jobs": 100}, {"grain": "job", "jobs": 400}, {"grain": "rung", "jobs": 4_000}]


def measure(*, grain: str, jobs: int) -> dict[str, Any]:
    from hpo_flows.prefect_api.connection import client_environment, point_prefect_at

    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name:
        os.environ.update(client_environment(Path(name) / "prefect"))
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
    from prefect import Flow
    from prefect.client.orchestration import get_client

    from hpo_core.journal.memory import MemoryJournal
    from hpo_core.spec import StudySpec
    from hpo_core.study import Study
    from hpo_flows.prefect_pages.study_pages import StudyPages

    def pages_of(name: str, count: int) -> StudyPages:
        """The pages of a study that has ended, none of which is shown yet."""
        search = {"method": "random", "configs": count, "max_resource": 1}
        space = {"x": {"type": "float", "low": 0.0, "high": 1.0}}
        plain = {
            "study": name,
            "metric": {"name": "loss"},
            "space": space,
            "search": search,
            "prefect": f"{grain}s",
        }
        journal = MemoryJournal()
        study = Study.create(StudySpec.from_plain(plain, "benchmark"), journal)
        while (job := study.ask()) is not None:
            study.tell(job, {"loss": 0.5})
        with get_client(sync_client=True) as client:
            run = client.create_flow_run(Flow(pages_of, name="scale", validate_parameters=False))
        ended = threading.Event()
        ended.set()
        return StudyPages(name, lambda: journal, flow_run=run.id, start=1, began=0.0, ended=ended, say=print)

    warm = pages_of("warm", 10)
    warm.follow()
    assert warm.wait_for_states()
    pages = pages_of("scale", jobs)
    before, mine, began = cpu_of(server), time.process_time(), time.perf_counter()
    pages.follow()
    closed = time.perf_counter() - began
    whole = pages.wait_for_states()
    wall = time.perf_counter() - began
    return {
        "complete": whole,
        "shown_s": round(closed, 2),
        "per_second": round(jobs / wall, 1),
        "server_ms": round((cpu_of(server) - before) / jobs * 1e3, 2),
        "client_ms": round((time.process_time() - mine) / jobs * 1e3, 2),
    }
