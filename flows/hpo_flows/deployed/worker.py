"""The worker of the pool (``python -m hpo_flows.deployed.worker POOL``): it ends its studies before itself.

Prefect's (3.8.8) kills its flow processes within seconds when it is told to end, and after a ``kill -9`` of it they
train on where nobody can cancel them. Here a signal reaches the flow processes first: each halts its study, which can
be resumed, and reports its run as Crashed. And each watches this process, and does the same once it is gone. Where all
of them are gone at once, the next worker with the same home reports it (``hpo_flows.deployed.flow_run_heartbeats``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psutil
from prefect.client.orchestration import get_client
from prefect.workers.process import ProcessWorker

from hpo_core.home import Home
from hpo_core.model.process_start import started
from hpo_core.security.private_files import private_folder
from hpo_flows.deployed.flow_run_heartbeats import (
    BEAT_SECONDS,
    CHECK_SECONDS,
    GRACE_SECONDS,
    WATCHED,
    HeartbeatMonitor,
    beat,
    begin_heartbeats,
    report_silent_run,
)

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

_REPORT_SECONDS = 5.0
"""How long the worker then has to report what it had to kill."""
_API_SECONDS = 60.0
"""How long one answer about a silent run may take; it is asked for again."""


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
        begin_heartbeats(self._home, flow_run.id, attempt=flow_run.run_count + 1)
        self._under_way += 1
        beating = asyncio.create_task(self._beat(flow_run.id))
        try:
            return await super().run(flow_run, *arguments, **settings)
        finally:
            self._under_way -= 1
            beating.cancel()
            # Prefect reports how it ended only now. The file is removed by whoever sees the run's final state.
            beat(self._home, flow_run.id)

    async def _beat(self, run: UUID) -> None:
        while True:
            beat(self._home, run)
            await asyncio.sleep(BEAT_SECONDS)

    async def _watch_heartbeats(self) -> None:
        """Report runs of this home that nobody else can report for, until cancelled."""
        monitor = HeartbeatMonitor(self._home)
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            if not (silent := monitor.silent_runs()):
                continue
            try:
                async with asyncio.timeout(_API_SECONDS), get_client() as client:
                    for run in silent:
                        await report_silent_run(client, self._home, run)
            except Exception as error:  # the server is away, or too busy: next time
                logging.getLogger(__name__).debug("silent runs %s: %s", silent, error)

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
        watching = asyncio.create_task(self._watch_heartbeats())
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await working
        finally:
            ending.cancel()
            watching.cancel()

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
