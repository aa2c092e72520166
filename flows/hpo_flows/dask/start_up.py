"""The start of a cluster: wait for its workers, import the objective on each."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hpo_core.model.errors import HpoError
from hpo_core.model.stopwatch import Stopwatch
from hpo_core.partitioning.holdings import longest_look
from hpo_core.spec import DataSpec, PackingSpec
from hpo_flows.dask.clusters.kind import ClusterError, ClusterKind
from hpo_flows.dask.lost_workers import ClusterWatch, Held
from hpo_flows.dask.on_worker import prepare

CALL_SECONDS = 30.0


class Connection:
    """A client of the study's scheduler.

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

    def call(self, ask: Callable[[], Awaitable[Any]], whom: str, seconds: float = CALL_SECONDS) -> Any:
        """Wait for one answer; from any thread but the client's loop.

        Raises:
            ClusterError: there is none within these seconds.
        """

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

    def run_on_scheduler(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function on the scheduler.

        Raises:
            ClusterError: it does not answer in time.
        """
        return self.call(lambda: self.client.run_on_scheduler(function, *arguments), "the scheduler")

    def run_on_each(
        self, watch: ClusterWatch, function: Callable[..., Any], *arguments: Any, seconds: float
    ) -> dict[str, Any]:
        """Run a function on every worker that is well; what came back in time, errors as values."""
        if watch.scheduler_is_unresponsive() or not self.is_open:
            return {}

        async def on_one(address: str) -> tuple[str, Any]:
            try:
                found = await asyncio.wait_for(
                    self.client.run(function, *arguments, workers=[address], on_error="return"), seconds
                )
                return address, found.get(address)
            except Exception as error:
                return address, error

        async def on_all() -> dict[str, Any]:
            return dict(await asyncio.gather(*(on_one(address) for address in watch.well())))

        try:
            found: dict[str, Any] = self.call(on_all, "the workers", seconds + 5.0)
        except ClusterError as error:
            logging.getLogger(__name__).debug("%s", error)
            return {}
        return found


DEVICE_SECONDS = 60.0
"""A driver may take long for its first answer."""
PARTITION_SECONDS = 60.0
"""How long a partition that no worker has may be waited for, once all workers said what they have."""
IMPORT_SECONDS = 720.0
"""An import may take 600 s (``Trainer``), and its process then has to be ended."""
_LOOK_SECONDS = 10.0
"""Between two looks at a cluster that starts, at most; what takes longer is a standstill of this process."""


class StartUp:
    """Waits for workers and prepares them, until another thread gives the start up.

    Args:
        kind: the cluster that starts.
        connection: to its scheduler.
        watch: of its workers, started.
        abandoned: set where the start is given up.
    """

    def __init__(
        self, kind: ClusterKind[Any], connection: Connection, *, watch: ClusterWatch, abandoned: threading.Event
    ) -> None:
        self._kind = kind
        self._connection = connection
        self._watch = watch
        self._abandoned = abandoned

    def wait_for_workers(self) -> None:
        """Return when there are as many workers as the kind wants, or some after its time.

        Raises:
            ClusterError: there is none, or none will come.
        """
        seconds = self._kind.wait_seconds
        waited = Stopwatch(_LOOK_SECONDS, time.monotonic)
        while self._watch.slots() < self._kind.starting_workers:
            self._stop_if_abandoned()
            self._kind.check_start()
            if waited.elapsed() >= seconds:
                if self._watch.slots() == 0:
                    raise self._kind.no_workers(seconds)
                return
            time.sleep(0.05)

    def wait_for_devices(self, packing: PackingSpec) -> None:
        """Return when a worker sees a device that jobs can share.

        Raises:
            ClusterError: none does.
        """
        waited = Stopwatch(_LOOK_SECONDS, time.monotonic)
        while not any(self._watch.devices().values()):
            self._stop_if_abandoned()
            if waited.elapsed() >= DEVICE_SECONDS:
                cure = (
                    "See that nvidia-smi works where the workers run, that nvidia-ml-py is installed there "
                    "(pip install 'hpo-core[gpu]') and that CUDA_VISIBLE_DEVICES names a GPU; or share processors "
                    "(packing.devices: cpu), or drop packing."
                )
                raise ClusterError(
                    f"packing.devices = {packing.devices!r}: no worker saw a device that jobs can share in "
                    f"{DEVICE_SECONDS:.0f} s. {cure}"
                )
            time.sleep(0.05)

    def wait_for_partitions(self, data: DataSpec) -> None:
        """Return when each partition lies on some worker.

        Raises:
            ClusterError: one lies nowhere.
        """
        files = [*data.files, *data.validation_files]
        longest = longest_look(files)
        began = since = time.monotonic()
        while True:
            held = self._watch.holdings()
            there = set().union(*(one.places for one in held.values()))
            if there >= set(range(len(files))):
                return
            self._stop_if_abandoned()
            now = time.monotonic()
            if held.keys() < set(self._watch.well()) and now < began + longest:
                since = now
            if now >= since + PARTITION_SECONDS:
                raise _partitions_missing([file.name for place, file in enumerate(files) if place not in there], held)
            time.sleep(0.05)

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


def _partitions_missing(names: list[str], held: Mapping[str, Held]) -> ClusterError:
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    reasons = sorted({why for one in held.values() for name, why in one.problems.items() if name in names})
    found = f" {' '.join(reasons[:3])}" if reasons else ""
    return ClusterError(
        f"data.partitions: no worker holds {listed}.{found} Put the files where the workers look (data.folder, or "
        "HPO_PARTITION_FOLDER on the worker), or start workers that hold them."
    )


def _check_prepared(address: str, answer: concurrent.futures.Future[Any]) -> None:
    problem = answer.exception() or answer.result()
    if isinstance(problem, HpoError):
        raise problem
    if isinstance(problem, BaseException):
        raise ClusterError(
            f"Dask worker {address} cannot run studies ({type(problem).__name__}: {problem}). Install this "
            "package and the objective's requirements in the workers' environment."
        )
