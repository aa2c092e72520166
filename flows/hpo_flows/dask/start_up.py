"""The start of a cluster: a client with time limits, the wait for room, the import of the objective on each worker."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from hpo_core.model.errors import HpoError
from hpo_core.model.stopwatch import Stopwatch
from hpo_core.partitioning.holdings import longest_look
from hpo_flows.dask.cluster_room import ClusterRoom
from hpo_flows.dask.clusters.kind import ClusterError, ClusterKind
from hpo_flows.dask.lost_workers import ClusterWatch
from hpo_flows.dask.on_worker import prepare

CALL_SECONDS = 30.0
DEVICE_SECONDS = 60.0
"""A driver may take long for its first answer."""
PARTITION_SECONDS = 60.0
"""How long a partition that no worker has may be waited for, once all workers said what they have."""
IMPORT_SECONDS = 720.0
"""An import may take 600 s (``Trainer``), and its process then has to be ended."""
_LOOK_SECONDS = 10.0
"""Longest time between two looks at a cluster that starts; more is a standstill of this process and does not count."""


class SchedulerClient:
    """A client of the study's scheduler, asked with time limits: no call waits for ever.

    Args:
        client: of ``distributed``, connected.
        study: name of the study, for messages.
    """

    def __init__(self, client: Any, study: str) -> None:
        self.client = client
        self.address = str(client.scheduler.address)
        self._study = study
        # Dask's client collects messages for 10 ms before it sends them; a job waits for its next one meanwhile.
        client.scheduler_comm.interval = 0.001

    @property
    def is_open(self) -> bool:
        """Whether the client still has its connection to the scheduler."""
        return bool(self.client.status == "running")

    def check(self) -> None:
        """Raise where the scheduler is gone.

        Raises:
            ClusterError: the connection is closed.
        """
        if not self.is_open:
            raise ClusterError(
                f"The Dask scheduler at {self.address} is gone. Nothing recorded is lost: start it again, then "
                f"`hpo resume {self._study}`."
            )

    def run_on_scheduler(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function on the scheduler.

        Raises:
            ClusterError: it does not answer in time.
        """
        return self._call(lambda: self.client.run_on_scheduler(function, *arguments), "the scheduler", CALL_SECONDS)

    def run_on_each(
        self, workers: Iterable[str], function: Callable[..., Any], *arguments: Any, seconds: float
    ) -> None:
        """Run a function on these workers; those that do not answer in time are passed over."""

        async def on_one(address: str) -> None:
            run = self.client.run(function, *arguments, workers=[address], on_error="return")
            await asyncio.wait_for(run, seconds)

        async def on_all() -> None:
            await asyncio.gather(*map(on_one, workers), return_exceptions=True)

        if self.is_open:
            try:
                self._call(on_all, "the workers", seconds + 5.0)
            except ClusterError as error:
                logging.getLogger(__name__).debug("%s", error)

    def _call(self, ask: Callable[[], Awaitable[Any]], whom: str, seconds: float) -> Any:
        """Wait for one answer; from any thread but the client's loop."""

        async def limited() -> Any:
            return await asyncio.wait_for(ask(), seconds)

        answer = asyncio.run_coroutine_threadsafe(limited(), self.client.loop.asyncio_loop)
        try:
            return answer.result(seconds + 5.0)
        except (TimeoutError, OSError) as error:
            answer.cancel()
            raise ClusterError(
                f"Dask at {self.address}: no answer from {whom} within {seconds:g} s ({type(error).__name__}). Look "
                "whether it runs; nothing recorded is lost."
            ) from error


class StartUp:
    """Waits for workers and prepares them, until another thread gives the start up.

    Args:
        kind: the cluster that starts.
        connection: to its scheduler.
        watch: of its workers, started.
        room: what they have told.
        abandoned: set where the start is given up.
    """

    def __init__(
        self,
        kind: ClusterKind[Any],
        connection: SchedulerClient,
        *,
        watch: ClusterWatch,
        room: ClusterRoom,
        abandoned: threading.Event,
    ) -> None:
        self._kind = kind
        self._connection = connection
        self._watch, self._room = watch, room
        self._abandoned = abandoned

    def wait_for_room(self) -> None:
        """Return when a job of the study can begin: slots are there, and the devices or partitions that it needs.

        Raises:
            ClusterError: they are not there in time, or will not come.
        """
        self._wait_for_workers()
        room, began = self._room, time.monotonic()
        longest = longest_look(room.asked.partitions)
        self._wait(
            lambda: not self._missing_partitions(),
            PARTITION_SECONDS,
            self._partitions_missing,
            starts=lambda: (
                not any(each.partitions.announcing for each in room.inventory().devices)
                or time.monotonic() >= began + longest
            ),
        )
        if room.asked.devices is not None:
            self._wait(lambda: bool(room.inventory().devices), DEVICE_SECONDS, self._no_device)

    def _wait_for_workers(self) -> None:
        kind, watch = self._kind, self._watch
        waited = Stopwatch(_LOOK_SECONDS, time.monotonic)
        while watch.slots() < kind.starting_workers:
            self._stop_if_abandoned()
            kind.check_start()
            if waited.elapsed() >= kind.wait_seconds:
                if watch.slots() == 0:
                    raise kind.no_workers(kind.wait_seconds)
                return  # some are enough to begin
            time.sleep(0.05)

    def _wait(
        self,
        is_there: Callable[[], bool],
        seconds: float,
        error: Callable[[], ClusterError],
        *,
        starts: Callable[[], bool] = lambda: True,
    ) -> None:
        """Wait at most so long for what a job needs.

        Args:
            starts: whether the time counts already.
        """
        waited = Stopwatch(_LOOK_SECONDS, time.monotonic)
        while not is_there():
            self._stop_if_abandoned()
            if not starts():
                waited.reset()
            if waited.elapsed() >= seconds:
                raise error()
            time.sleep(0.05)

    def _missing_partitions(self) -> list[str]:
        """Names of partitions that no worker holds."""
        there = set[str]().union(*(device.partitions.names for device in self._room.inventory().devices))
        return [file.name for file in self._room.asked.partitions if file.name not in there]

    def _partitions_missing(self) -> ClusterError:
        names, devices = self._missing_partitions(), self._room.inventory().devices
        listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        reasons = sorted({why for each in devices for name, why in each.partitions.problems.items() if name in names})
        found = f" {' '.join(reasons[:3])}" if reasons else ""
        return ClusterError(
            f"data.partitions: no worker holds {listed}.{found} Put the files where the workers look (data.folder, or "
            "HPO_PARTITION_FOLDER on the worker), or start workers that hold them."
        )

    def _no_device(self) -> ClusterError:
        return ClusterError(
            f"packing.devices = {self._room.asked.devices!r}: no worker saw a device that jobs can share in "
            f"{DEVICE_SECONDS:.0f} s. See that nvidia-smi works where the workers run, that nvidia-ml-py is installed "
            "there (pip install 'hpo-core[gpu]') and that CUDA_VISIBLE_DEVICES names a GPU; or share processors "
            "(packing.devices: cpu), or drop packing."
        )

    def prepare_workers(
        self, objective: str, pythonpath: tuple[str, ...], threads: int | None, *, load: str = ""
    ) -> None:
        """Import the objective on every worker, and find ``data.load``.

        Raises:
            ClusterError: a worker cannot run studies, or none answers.
            ObjectiveError: the objective cannot be imported.
        """
        question = objective, pythonpath, threads, load
        waiting = {address: self._prepared(address, *question) for address in self._watch.well()}
        waited = Stopwatch(_LOOK_SECONDS, time.monotonic)
        try:
            while waiting and waited.elapsed() < IMPORT_SECONDS:
                self._stop_if_abandoned()
                for address in [address for address, answer in waiting.items() if answer.done()]:
                    _check_prepared(address, waiting.pop(address))
                for address in waiting.keys() & set(self._watch.out()):
                    waiting.pop(address).cancel()
                time.sleep(0.01)
        finally:
            for answer in waiting.values():
                answer.cancel()
        if not self._watch.well():
            raise ClusterError(
                f"No Dask worker of {self._connection.address} answers. Look at their processes and logs."
            )

    def _prepared(self, address: str, *question: Any) -> concurrent.futures.Future[Any]:
        client = self._connection.client

        async def ask() -> Any:
            found = await client.run(prepare, *question, workers=[address], on_error="return")
            return found.get(address)

        return asyncio.run_coroutine_threadsafe(ask(), client.loop.asyncio_loop)

    def _stop_if_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise ClusterError("The start of the cluster was given up.")


def _check_prepared(address: str, answer: concurrent.futures.Future[Any]) -> None:
    problem = answer.exception() or answer.result()
    if isinstance(problem, HpoError):
        raise problem
    if isinstance(problem, BaseException):
        raise ClusterError(
            f"Dask worker {address} cannot run studies ({type(problem).__name__}: {problem}). Install this "
            "package and the objective's requirements in the workers' environment."
        )
