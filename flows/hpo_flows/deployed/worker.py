"""The worker of the pool (``python -m hpo_flows.deployed.worker POOL``), a child of ``hpo worker``.

Prefect's (3.8.8) kills its flow processes within seconds when it is told to end, so nobody tells it: it is killed, or
ends at once with ``hpo worker``. Each flow process watches it, and halts its study once it is gone. Where all of them
are gone at once, an automation of Prefect reports it (``hpo_flows.deployed.flow_run_heartbeats``).
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time

from prefect.workers.process import ProcessWorker

from hpo_core.home import Home
from hpo_core.journal.protocol import started
from hpo_core.security.private_files import private_folder
from hpo_flows.deployed.flow_run_heartbeats import CHECK_SECONDS, WATCHED


class StudyWorker(ProcessWorker):
    """Prefect's worker, with the code that its runner stores below the home.

    Prefect's own place is ``runner_storage`` in the folder of temporary files. Whoever makes that first can put other
    code there.
    """

    async def __aenter__(self) -> StudyWorker:
        home = Home().make_folder()
        before, tempfile.tempdir = tempfile.tempdir, str(private_folder(home / "worker", below=home))
        try:
            await super().__aenter__()
        finally:
            tempfile.tempdir = before
        return self

    @classmethod
    def __dispatch_key__(cls) -> str:
        """A key of our own: `process` remains Prefect's."""
        return "hpo-process"


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(CHECK_SECONDS)
    os._exit(1)


def serve(pool: str) -> None:
    """Be the worker of ``pool`` until killed."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    os.environ[WATCHED] = f"{os.getpid()} {started()}"
    asyncio.run(StudyWorker(work_pool_name=pool, create_pool_if_not_found=False).start())


if __name__ == "__main__":
    serve(sys.argv[1])
