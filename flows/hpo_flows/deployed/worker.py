"""The worker of the pool (``python -m hpo_flows.deployed.worker POOL``): it ends its studies before itself.

Prefect's (3.8.8) kills its flow processes within seconds when it is told to end, and after a ``kill -9`` of it they
train on where nobody can cancel them. Here a signal reaches the flow processes first: each halts its study, which can
be resumed, and reports its run as Crashed. And each watches this process, and does the same once it is gone. Where all
of them are gone at once, an automation of Prefect reports it (``hpo_flows.deployed.flow_run_heartbeats``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import psutil
from prefect.workers.process import ProcessWorker

from hpo_core.home import Home
from hpo_core.model.process_start import started
from hpo_core.security.private_files import private_folder
from hpo_flows.deployed.flow_run_heartbeats import CHECK_SECONDS, GRACE_SECONDS, WATCHED

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

_REPORT_SECONDS = 5.0
"""Time for the worker to report what it had to kill."""


class StudyWorker(ProcessWorker):
    """Takes no more runs once it was told to end, and waits for those it has."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._ending = False
        self._under_way = 0
        self._home = Home().make_folder()

    async def __aenter__(self) -> StudyWorker:
        """Begin, with the code that Prefect's runner stores below the home.

        Prefect's own place is ``runner_storage`` in the folder of temporary files. Whoever makes that first can put
        other code there.
        """
        before, tempfile.tempdir = tempfile.tempdir, str(private_folder(self._home / "worker", below=self._home))
        try:
            await super().__aenter__()
        finally:
            tempfile.tempdir = before
        return self

    @classmethod
    def __dispatch_key__(cls) -> str:
        """A key of our own: `process` remains Prefect's."""
        return "hpo-process"

    async def get_and_submit_flow_runs(self) -> Any:
        return [] if self._ending else await super().get_and_submit_flow_runs()

    async def run(self, flow_run: FlowRun, *arguments: Any, **settings: Any) -> Any:
        self._under_way += 1
        try:
            return await super().run(flow_run, *arguments, **settings)
        finally:
            self._under_way -= 1

    async def serve(self) -> None:
        """Run until SIGTERM or SIGINT; a second one ends it at once, and kills what runs."""
        working = asyncio.create_task(self.start(printer=_say))
        told = asyncio.Event()

        def on_signal() -> None:
            if told.is_set():
                working.cancel()
            told.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        ending = asyncio.create_task(self._end(told, working))
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await working
        finally:
            ending.cancel()

    async def _end(self, told: asyncio.Event, working: asyncio.Task[None]) -> None:
        await told.wait()
        self._ending = True
        _say(f"Ending: {self._under_way} runs are told to halt, which may take {GRACE_SECONDS:.0f} s.")
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, _REPORT_SECONDS)):
            deadline = time.monotonic() + seconds
            reached: set[psutil.Process] = set()
            while self._under_way and time.monotonic() < deadline:
                for process in set(psutil.Process().children()) - reached:  # one that is just starting: next time
                    reached.add(process)
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(number)
                await asyncio.sleep(CHECK_SECONDS)
        working.cancel()


def _say(line: str) -> None:
    print(line, flush=True)


def serve(pool: str) -> None:
    """Be the worker of ``pool`` until told to end."""
    os.environ[WATCHED] = f"{os.getpid()} {started()}"
    asyncio.run(StudyWorker(work_pool_name=pool, create_pool_if_not_found=False).serve())


if __name__ == "__main__":
    serve(sys.argv[1])
