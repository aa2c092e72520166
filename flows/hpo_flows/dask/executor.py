"""Dask clusters: start or join one, run jobs on its slots, notice workers that come and go.

Settings that matter, each for a failure seen (Dask 2026.8):

- ``NoRepetition``: a job whose worker died must not be run again behind our back.
- ``lost-worker-timeout: 1h``: SpecCluster drops a slot for ever when a worker dies twice within the default.
- work stealing off, futures released at once: completed work is not run again when a worker dies.

A scheduler that others started keeps its own settings, as does this process then.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from distributed.comm.core import CommClosedError

from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.errors import HpoError, ObjectiveError, SpecError
from hpo_core.model.stopwatch import Stopwatch
from hpo_core.model.trial import Job
from hpo_core.partitioning.holdings import longest_look
from hpo_core.spec import StudySpec
from hpo_core.spec.sent_functions import placed
from hpo_core.training.request import GRACE, JobRequests
from hpo_core.training.worker import trainers
from hpo_flows.dask.cluster_calls import CALL_SECONDS, SchedulerClient
from hpo_flows.dask.cluster_room import ClusterRoom
from hpo_flows.dask.clusters import cluster_of
from hpo_flows.dask.clusters.kind import CLOSE_SECONDS, CONNECTION_TIMEOUT, ClusterError, dask_settings, log_levels
from hpo_flows.dask.lost_workers import ClusterWatch
from hpo_flows.dask.on_worker import (
    SharedFolder,
    cancel_attempts_of,
    close_all_children,
    forbid_repetition,
    forget_study,
    limit_attempt,
    prepare,
)
from hpo_flows.dask.rank_tasks import RankTasks
from hpo_flows.dask.worker_facts import WorkerQuestions, facts_of_workers, usages_in

_QUIET = {
    **dict.fromkeys(("distributed", "distributed.scheduler", "distributed.nanny", "distributed.worker"), logging.ERROR),
    **dict.fromkeys(("tornado.application", "distributed.client"), logging.CRITICAL),
}
"""Levels of loggers: a scheduler that is gone is said by ClusterError."""
_DASK_SETTINGS = {
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.deploy.lost-worker-timeout": "1h",
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.limit": "60s",
    "distributed.comm.timeouts.connect": "30s",
}
CONNECTION_SECONDS = 30.0
"""Seconds beyond ``worker_timeout`` after which Dask gives up a connection that is cut: the study decides before.

By default Dask does after 30 in all. The worker ends then, and its jobs are lost.
"""
ADAPTIVE_SECONDS = 2.0
"""Seconds that a cluster of others may be without a worker before it is given something to do."""
SHORT_SECONDS = 5.0
"""Seconds for which a cluster must be too small for a gang before a person is told: workers come one by one."""
DEVICE_SECONDS = 60.0
"""Seconds that the start waits for a device: a driver may take long for its first answer."""
PARTITION_SECONDS = 60.0
"""Seconds that the start waits for a partition that no worker has, once all workers told what they have."""
IMPORT_SECONDS = 720.0
"""Seconds that the start waits for the import: 600 s is allowed (``Trainer``), and then its process has to be ended."""
_LOOK_SECONDS = 10.0
"""Longest time between two looks at a cluster that starts; more is a standstill of this process and does not count."""


class DaskExecutor:
    """Runs jobs on Dask workers, one per worker thread, each in a child process of its worker.

    Nothing here waits for ever, and what the driver calls while a study runs does not wait for the cluster at all.

    Args:
        spec: the study; names cluster, objective, limits.
        folder: absolute study folder, reachable from every worker.
        security: ``distributed.Security`` for a scheduler that runs already; None: as Dask's configuration says.
    """

    poll_seconds = 1.0
    room: ClusterRoom
    """Threads of workers, devices and partitions that jobs can run on. Set by :meth:`start`, like the next four."""
    submit: Callable[[Job, Slot, OnReport], None]
    cancel: Callable[[Iterable[tuple[int, ...]]], None]
    _watch: ClusterWatch
    _tasks: RankTasks

    def __init__(self, spec: StudySpec, folder: str, *, security: Any = None) -> None:
        self._spec = spec
        self._folder = folder
        self._kind = cluster_of(spec, folder)
        self._kind.security = security
        self._shared = SharedFolder.of(folder)
        self._connection: SchedulerClient | None = None
        self._short: tuple[int, float] | None = None
        """Number of slots of the cluster, where they are too few for a gang, and since when."""
        self._told_short: int | None = None
        """The number of them that a person was told last."""
        self._demand: Callable[[int], int] | None = None
        """Slots that the study could use now, counted up to a number; None: the cluster does not follow it."""
        self._restore: list[Callable[[], None]] = []
        """Functions that put back what the start changed in this process; called by :meth:`close`."""
        self._kept: Any = None
        """A result that keeps one worker of an adaptive cluster."""
        self._abandoned = threading.Event()

    def show_in(self, flow_run: str, name: str) -> None:
        """Tell training functions which Prefect flow run they are part of; once the cluster has started."""
        setup = self._requests.setup
        self._requests.setup = msgspec.structs.replace(setup, flow_run=(flow_run, name))

    # Start.

    def start(self) -> None:
        """Start or join the cluster, and import the objective once per worker.

        Raises:
            ClusterError: no scheduler answers, no worker is there, or one cannot run studies.
            ObjectiveError: the objective cannot be imported.
            StorageError: a worker cannot write to the URL of the checkpoints.
        """
        spec, training, asked = self._spec, self._spec.training, WorkerQuestions.of(self._spec, self._folder)
        timeout = training.worker_timeout
        self._restore = [log_levels.begin(_QUIET)]
        if self._kind.is_ours:
            patience = {CONNECTION_TIMEOUT: f"{timeout + CONNECTION_SECONDS:g}s"}
            self._restore.append(dask_settings.begin(_DASK_SETTINGS | patience | self._kind.dask_settings))
        connection = SchedulerClient(self._kind.connect(), spec.study)
        self._watch = ClusterWatch(
            connection.client,
            prefix=f"{spec.study}/",
            asked=asked,
            timeout=timeout,
            limit=None if training.timeout is None else IMPORT_SECONDS + training.timeout + GRACE + 2 * timeout,
            on_end=lambda *end: self._tasks.end(*end),
            replace=self._replace,
        )
        self._connection = connection
        self.room = ClusterRoom(self._watch, asked)
        self._requests = JobRequests(spec, self._folder)
        self._tasks = RankTasks(
            connection,
            self._watch,
            self.room,
            requests=self._requests,
            shared=self._shared,
            timeout=timeout,
        )
        self.submit, self.cancel = self._tasks.submit, self._tasks.cancel
        self._restore.append(self._tasks.close)
        connection.run_on_scheduler(facts_of_workers, "/")  # raises here where the watch would ask in vain
        self._watch.start()
        connection.run_on_scheduler(forbid_repetition, connection.client.id)
        self._wait_for_room()
        self._import_objective()

    def _wait_for_room(self) -> None:
        """Return when a job of the study can begin: slots are there, and the devices or partitions that it needs.

        Raises:
            ClusterError: they are not there in time, or will not come.
        """
        kind, watch, room = self._kind, self._watch, self.room
        if not kind.is_ours and not self._wait(lambda: watch.slots() > 0, ADAPTIVE_SECONDS):
            # an adaptive cluster starts a worker for it, and does not end the only one that holds a result
            self._kept = self._connected.client.submit(int, key=f"hpo-worker-wanted-{uuid.uuid4().hex}")

        def slots_are_there() -> bool:
            if watch.slots() >= kind.starting_workers:
                return True
            kind.check_start()
            return False

        self._wait(slots_are_there, kind.wait_seconds)
        if not watch.slots():  # some are enough to begin
            raise kind.no_workers(kind.wait_seconds)
        began, longest = time.monotonic(), longest_look(room.asked.partitions)

        def all_have_told() -> bool:
            announcing = any(device.partitions.announcing for device in room.inventory().devices)
            return not announcing or time.monotonic() >= began + longest

        if not self._wait(lambda: not self._missing_partitions(), PARTITION_SECONDS, starts=all_have_told):
            missing = self._missing_partitions()
            problems = [device.partitions.problems for device in room.inventory().devices]
            reasons = sorted({why for each in problems for name, why in each.items() if name in missing})
            listed = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise ClusterError(
                f"data.partitions: no worker holds {listed}.{''.join(f' {why}' for why in reasons[:3])} Put the files "
                "where the workers look (data.folder, or HPO_PARTITION_FOLDER on the worker), or start workers that "
                "hold them."
            )
        if room.asked.devices and not self._wait(lambda: bool(room.inventory().devices), DEVICE_SECONDS):
            raise ClusterError(
                f"packing: no worker saw a device that jobs can share in "
                f"{DEVICE_SECONDS:.0f} s. See that nvidia-smi works where the workers run, that nvidia-ml-py is "
                "installed there (pip install 'hpo-core[gpu]') and that CUDA_VISIBLE_DEVICES names a GPU; or share "
                "processors (start the workers with CUDA_VISIBLE_DEVICES=), or drop packing."
            )

    def _missing_partitions(self) -> list[str]:
        there = set[str]().union(*(device.partitions.names for device in self.room.inventory().devices))
        return [file.name for file in self.room.asked.partitions if file.name not in there]

    def _wait(self, is_there: Callable[[], bool], seconds: float, *, starts: Callable[[], bool] = lambda: True) -> bool:
        """Wait at most so long for what a job needs; returns whether it is there.

        Args:
            starts: whether the time counts already.

        Raises:
            ClusterError: another thread gave the start up.
        """
        waited = Stopwatch(_LOOK_SECONDS, time.monotonic)
        while not is_there():
            if self._abandoned.is_set():
                raise ClusterError("The start of the cluster was given up.")
            if not starts():
                waited.reset()
            if waited.elapsed() >= seconds:
                return False
            time.sleep(0.02)
        return True

    def _import_objective(self) -> None:
        """Import the objective on every worker, find ``data.load``, and write to the checkpoints' URL.

        Raises:
            ClusterError: a worker cannot run studies, or none answers.
            ObjectiveError: the objective cannot be imported.
            StorageError: a worker cannot write to the URL of the checkpoints.
        """
        client, setup = self._connected.client, self._requests.setup

        async def ask(address: str) -> Any:
            found = await client.run(prepare, setup, self._shared, workers=[address], on_error="return")
            return found.get(address)

        waiting = {
            address: asyncio.run_coroutine_threadsafe(ask(address), client.loop.asyncio_loop)
            for address in self._watch.well()
        }

        def all_have_answered() -> bool:
            for address in [address for address, answer in waiting.items() if answer.done()]:
                _check_import(address, waiting.pop(address))
            for address in waiting.keys() - self._watch.well().keys():
                waiting.pop(address).cancel()
            return not waiting

        try:
            self._wait(all_have_answered, IMPORT_SECONDS)
        finally:
            for answer in waiting.values():
                answer.cancel()
        if not self._watch.well():
            raise ClusterError(
                f"No Dask worker of {self._connected.address} answers. Look at their processes and logs."
            )

    def abandon_start(self) -> None:
        """Make a :meth:`start` that another thread is in end soon, with an error."""
        self._abandoned.set()

    def take_over(self) -> None:
        """End attempts that an earlier controller of the study left on the cluster: they train in vain."""
        if not self._kind.in_this_process:
            self._run_on_each(cancel_attempts_of, self._folder, seconds=self._spec.training.worker_timeout)

    def follow(self, demand: Callable[[int], int]) -> None:
        """Let the number of workers follow the study from now on, where ``cluster.workers`` is a range.

        Args:
            demand: slots that the study could use now, counted up to a number; called in the thread of the loop.
        """
        if self._spec.cluster.scales is not None:
            self._demand = demand

    @property
    def dashboard(self) -> str:
        """URL of Dask's own dashboard; empty where it is off."""
        return str(self._connected.client.dashboard_link) if self._kind.dashboard else ""

    def news(self) -> str:
        """News of the cluster for a person, such as that jobs wait; each is returned once. Empty: none."""
        if self._connection is None:
            return self._kind.news()
        return " ".join(filter(None, (self._kind.news(), *self._watch.news(), self._short_of_slots())))

    def _short_of_slots(self) -> str:
        # Why no gang can begin, where the cluster is too small; said again once its size is another one.
        needed, there = self._spec.least_ranks, self._watch.slots()
        if there >= needed:
            self._short = self._told_short = None
            return ""
        if self._short is None or self._short[0] != there:
            self._short = there, time.monotonic()
        if needed == 1 or there == self._told_short or time.monotonic() < self._short[1] + SHORT_SECONDS:
            return ""
        self._told_short = there
        return (
            f"Jobs wait: training.gang = {needed} needs {needed} slots at once, and the cluster has {there}. They "
            "begin when workers join; else stop the study and give it a smaller training.gang."
        )

    @property
    def _connected(self) -> SchedulerClient:
        assert self._connection is not None, "start() comes first"
        return self._connection

    def _run_on_each(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> None:
        if self._connection is not None and not self._watch.scheduler_is_unresponsive():
            self._connection.run_on_each(self._watch.well(), function, *arguments, seconds=seconds)

    # While a study runs: nothing below waits for the cluster.

    def inventory(self) -> Inventory:
        """The places where jobs can run now (:class:`ClusterRoom`).

        Raises:
            ClusterError: the scheduler is gone, or does not answer.
        """
        self._connected.check()
        if self._watch.scheduler_is_unresponsive():
            raise ClusterError(
                f"The Dask scheduler at {self._connected.address} has not answered for "
                f"{self._spec.training.worker_timeout:g} s (training.worker_timeout). Nothing recorded is lost: look "
                f"whether it runs, then `hpo resume {self._spec.study}`."
            )
        if self._demand is not None:
            self._kind.wanted = self._demand(self._spec.cluster.size or 1)
        self._tasks.end_broken()
        return self.room.inventory()

    def usages(self) -> Mapping[tuple[int, int], Usage]:
        """Measured use of running attempts that share devices, by (trial, attempt)."""
        return usages_in(self._watch.well(), self._folder)

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wait(self, inbox: Inbox, until: float) -> bool:
        inbox.wait(until - self.now())
        return True

    def limit(self, attempt: tuple[int, int], memory: int) -> None:
        client = self._connected.client
        client.loop.add_callback(self._limit, attempt, memory)

    # On the client's loop.

    async def _limit(self, attempt: tuple[int, int], memory: int) -> None:
        with contextlib.suppress(Exception):
            call = self._connected.client.run(limit_attempt, self._folder, *attempt, memory, on_error="ignore")
            await asyncio.wait_for(call, CALL_SECONDS)

    async def _replace(self, address: str) -> None:
        if self._kind.cluster is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._kind.replace_worker(self._connected.client, address), 2 * CALL_SECONDS)

    # End.

    def close(self) -> None:
        self._abandoned.set()
        objective = placed(self._spec.objective or "", self._folder)
        study = self._folder, objective, tuple(self._spec.pythonpath)
        if self._connection is not None:
            self._watch.stop()
            if self._kind.is_ours and not self._kind.in_this_process:
                self._run_on_each(close_all_children, seconds=CLOSE_SECONDS)
            else:
                if self._kind.in_this_process:
                    trainers.close_all(self._folder)
                self._run_on_each(forget_study, self._spec.study, *study, self._shared, seconds=2 * CLOSE_SECONDS)
            self._kept = None
            with contextlib.suppress(Exception):
                self._connection.client.close(timeout=CLOSE_SECONDS / 2)
            self._connection = None
        self._kind.close()
        if self._kind.in_this_process:  # an attempt may have begun meanwhile
            trainers.close_all(self._folder)
            trainers.forget(*study)
        while self._restore:
            self._restore.pop()()


def _check_import(address: str, answer: concurrent.futures.Future[Any]) -> None:
    # Raise what the answer of a worker says against it; where the worker died meanwhile, it says nothing.
    problem = answer.exception() or answer.result()
    if isinstance(problem, CommClosedError):  # the watch will see it; a worker that lives on imports for its first job
        return
    if isinstance(problem, ObjectiveError | SpecError) and not address.startswith("inproc://"):
        raise type(problem)(
            f"Dask worker {address}: {problem} A worker imports it from the study's pythonpath, seen there under "
            "the same path (a shared file system), or from a package that is installed there."
        )
    if isinstance(problem, HpoError):
        raise problem
    if isinstance(problem, BaseException):
        raise ClusterError(
            f"Dask worker {address} cannot run studies ({type(problem).__name__}: {problem}). Install this "
            "package and the objective's requirements in the workers' environment."
        )
