"""The worker of the pool (``python -m hpo_flows.deployed.worker POOL``), a child of ``hpo worker``.

Prefect's (3.8.8) kills its flow processes within seconds when it is told to end, so nobody tells it: it is killed, or
ends at once with ``hpo worker``. Each flow process then halts its study. Where all of them are gone at once, an
automation of Prefect reports it (``hpo_flows.deployed.flow_run_heartbeats``).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile

from prefect.workers.process import ProcessWorker

from hpo_core.home import Home
from hpo_flows.deployed.flow_run_heartbeats import WORKER, end_with_parent


class StudyWorker(ProcessWorker):
    """Prefect's worker, with the code that its runner stores below the home.

    Prefect's own place is ``runner_storage`` in the folder of temporary files. Whoever makes that first can put other
    code there.
    """

    async def __aenter__(self) -> StudyWorker:
        before, tempfile.tempdir = tempfile.tempdir, str(Home().make_folder("worker"))
        try:
            await super().__aenter__()
        finally:
            tempfile.tempdir = before
        return self

    @classmethod
    def __dispatch_key__(cls) -> str:
        """A key of our own: `process` remains Prefect's."""
        return "hpo-process"


if __name__ == "__main__":
    end_with_parent(signal.SIGKILL)
    os.environ[WORKER] = str(os.getpid())
    asyncio.run(StudyWorker(work_pool_name=sys.argv[1], create_pool_if_not_found=False).start())
