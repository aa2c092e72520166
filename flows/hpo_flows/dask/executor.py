"""Dask clusters: start or join one, run jobs on its slots, notice workers that come and go.

Settings that matter, each for a failure seen (Dask 2026.8):

- ``allowed-failures: 0``: a job whose worker died must not be run again behind our back.
- ``lost-worker-timeout: 1h``: LocalCluster drops a slot for ever when a worker dies twice within the default.
- work stealing off, futures released at once: completed work is not run again when a worker dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import dask

from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.execution.requests import JobRequests
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.devices.usage import Usage
from hpo_core.model.trial import Job, Outcome
from hpo_core.spec import StudySpec
from hpo_flows.dask.cluster_room import ClusterRoom
from hpo_flows.dask.clusters import cluster_of
from hpo_flows.dask.clusters.kind import CLOSE_SECONDS, ClusterError
from hpo_flows.dask.lost_workers import ClusterWatch
from hpo_flows.dask.on_worker import (
    cancel_attempts_of,
    close_all_children,
    forbid_repeats,
    forget_study,
    limit_attempt,
    tell_with_heartbeats,
)
from hpo_flows.dask.rank_tasks import RankTasks
from hpo_flows.dask.start_up import CALL_SECONDS, IMPORT_SECONDS, SchedulerClient, StartUp
from hpo_flows.dask.worker_facts import Asked, facts_of_workers, usages_in

log = logging.getLogger(__name__)

_DASK_SETTINGS = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.deploy.lost-worker-timeout": "1h",
    "distributed.worker.daemon": False,
    "distributed.admin.tick.limit": "60s",
    "distributed.comm.timeouts.connect": "30s",
}
SHORT_SECONDS = 5.0
"""How long a cluster is too small for a gang before that is told: workers come one by one."""


class DaskExecutor:
    """Runs jobs on Dask workers, one per worker thread, each in a child process of its worker.

    Nothing here waits for ever, and what the driver calls while a study runs does not wait for the cluster at all.

    Args:
        spec: the study; names cluster, objective, limits.
        folder: absolute study folder, reachable from every worker.
        security: ``distributed.Security`` for a scheduler that runs already; None: as Dask's configuration says.
    """

    poll_seconds = 1.0

    def __init__(self, spec: StudySpec, folder: str, *, security: Any = None) -> None:
        self._spec = spec
        self._folder = folder
        self._asked = Asked.of(spec, folder)
        self._kind = cluster_of(spec, folder)
        self._kind.security = security
        self._connection: SchedulerClient | None = None
        self._watch: ClusterWatch | None = None
        self._room: ClusterRoom | None = None
        self._tasks: RankTasks | None = None
        self._short: tuple[int, float] | None = None
        """How many slots the cluster has, where they are too few for a gang, and since when."""
        self._told_short: int | None = None
        """The number of them that a person was told last."""
        self._restore: Any = None
        self._abandoned = threading.Event()
        self._replacing: set[asyncio.Task[None]] = set()
        self._said_no_gpu = False
        self._no_mps: dict[str, bool] = {}
        """Why MPS is off on some worker, and whether a person was told."""

    # Start.

    def start(self) -> None:
        """Start or join the cluster, and import the objective once per worker.

        Raises:
            ClusterError: no scheduler answers, or no worker is there.
            ObjectiveError: the objective cannot be imported.
        """
        for name in ("distributed", "distributed.scheduler", "distributed.nanny", "distributed.worker"):
            logging.getLogger(name).setLevel(logging.ERROR)
        for name in ("tornado.application", "distributed.client"):  # a scheduler that is gone is said by ClusterError
            logging.getLogger(name).setLevel(logging.CRITICAL)
        spec = self._spec
        requests = JobRequests(spec, self._folder)
        self._restore = dask.config.set(_DASK_SETTINGS | self._kind.dask_settings)
        connection = self._connection = SchedulerClient(self._kind.connect(), spec.study)
        watch = self._watch = self._new_watch(connection)
        room = self._room = ClusterRoom(watch, self._asked)
        self._tasks = RankTasks(
            connection,
            watch,
            room,
            requests=requests,
            study=spec.study,
            folder=self._folder,
            timeout=spec.training.worker_timeout,
        )
        connection.run_on_scheduler(facts_of_workers, "/")
        watch.start()
        connection.run_on_scheduler(forbid_repeats)
        start_up = StartUp(self._kind, connection, watch=watch, room=room, abandoned=self._abandoned)
        start_up.wait_for_room()
        start_up.prepare_workers(
            requests.objective, tuple(spec.pythonpath), requests.threads, load=spec.data_load or ""
        )

    def _new_watch(self, connection: SchedulerClient) -> ClusterWatch:
        training, timeout = self._spec.training, self._spec.training.worker_timeout
        limit = None if training.timeout is None else IMPORT_SECONDS + training.timeout + training.grace + 2 * timeout
        return ClusterWatch(
            connection.client,
            prefix=f"{self._spec.study}/",
            asked=self._asked,
            timeout=timeout,
            limit=limit,
            on_new=self._ask,
            on_out=self._worker_is_out,
            on_overdue=self._ran_too_long,
            on_back=self._forget_study_on,
        )

    def abandon_start(self) -> None:
        """Make a :meth:`start` that another thread is in end soon, with an error."""
        self._abandoned.set()
        if self._connection is None:
            self._kind.abandon_start()

    def take_over(self) -> None:
        """End attempts that an earlier controller of the study left on the cluster: they train in vain."""
        if self._kind.may_hold_attempts:
            self._run_on_each(cancel_attempts_of, self._folder, seconds=self._spec.training.worker_timeout)

    @property
    def dashboard(self) -> str:
        """URL of Dask's own dashboard; empty where it is off."""
        return str(self._connected.client.dashboard_link) if self._kind.dashboard else ""

    def news(self) -> str:
        """What a person should know of the cluster and was not told before, as that jobs wait; empty: nothing."""
        no_mps = [why for why, told in list(self._no_mps.items()) if not told]
        self._no_mps |= dict.fromkeys(no_mps, True)
        return " ".join(filter(None, (self._kind.news(), *no_mps, self._short_of_slots())))

    def _short_of_slots(self) -> str:
        """Why no gang can begin, where the cluster is too small; said again once its size is another one."""
        gang = self._spec.training.gang
        needed = 1 if gang == "auto" else gang
        there = None if self._watch is None else self._watch.slots()
        if gang == 1 or there is None or there >= needed:
            self._short = self._told_short = None
            return ""
        if self._short is None or self._short[0] != there:
            self._short = there, time.monotonic()
        if there == self._told_short or time.monotonic() < self._short[1] + SHORT_SECONDS:
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
        if self._watch is not None and not self._watch.scheduler_is_unresponsive():
            self._connected.run_on_each(self._watch.well(), function, *arguments, seconds=seconds)

    # While a study runs: nothing below waits for the cluster.

    def inventory(self) -> Inventory:
        """The places where jobs can run now (:class:`ClusterRoom`).

        Raises:
            ClusterError: the scheduler is gone, or does not answer.
        """
        self._connected.check()
        assert self._watch is not None and self._tasks is not None
        if self._watch.scheduler_is_unresponsive():
            raise ClusterError(
                f"The Dask scheduler at {self._connected.address} has not answered for "
                f"{self._spec.training.worker_timeout:g} s (training.worker_timeout). Nothing recorded is lost: look "
                f"whether it runs, then `hpo resume {self._spec.study}`."
            )
        self._kind.keep_size(self._watch.slots())
        self._tasks.end_broken()
        return self.room.inventory()

    @property
    def room(self) -> ClusterRoom:
        """What jobs can run on: threads of workers, devices, partitions."""
        assert self._room is not None, "start() comes first"
        return self._room

    def holdings(self) -> Mapping[str, list[str]]:
        """Names of the partitions that lie on each worker, by its address."""
        return self.room.holdings()

    def announcing(self) -> bool:
        """Whether a worker has not told yet which partitions it holds, or reads one now."""
        return self.room.announcing()

    def problems(self) -> Mapping[str, str]:
        """Why partitions that are on a worker cannot be used, by name."""
        return self.room.problems()

    def threads(self) -> Mapping[str, int]:
        """Slots of each worker that gives a sign of life, by its address."""
        return {} if self._room is None else self._room.threads()

    def usages(self) -> Mapping[tuple[int, int], Usage]:
        """What running attempts that share devices were seen to use so far."""
        return {} if self._watch is None else usages_in(self._watch.well(), self._folder)

    def now(self) -> float:
        """Seconds of a clock that goes on while this machine sleeps: slots of a pool are held for a limited time."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wait(self, inbox: Inbox, until: float) -> bool:
        """Jobs end on other threads."""
        inbox.wait(until - self.now())
        return True

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Start a job where its slots say; ``on_report`` is called once with its report, whatever happens."""
        self._connected.check()
        assert self._tasks is not None
        self._tasks.submit(job, slot, on_report)

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        """End these attempts, wherever they run: SIGTERM, grace, SIGKILL in their worker; returns at once."""
        if self._tasks is not None:
            self._tasks.cancel(list(attempts))

    def limit(self, attempt: tuple[int, int], memory: int) -> None:
        """Limit a running attempt that was measured; returns at once, and what is not heard in time is not repeated."""
        client = self._connected.client
        client.loop.add_callback(self._limit, attempt, memory)

    # On the client's loop.

    async def _limit(self, attempt: tuple[int, int], memory: int) -> None:
        with contextlib.suppress(Exception):
            call = self._connected.client.run(limit_attempt, self._folder, *attempt, memory, on_error="ignore")
            await asyncio.wait_for(call, CALL_SECONDS)

    def _worker_is_out(self, address: str, keys: list[str], why: str) -> None:
        """Report the jobs of a worker as lost, whatever it may report later; replace it if this study started it."""
        assert self._tasks is not None
        for key in keys:
            self._tasks.end(key, Outcome.LOST, f"its Dask worker ({address}) {why}", address)
        if self._kind.cluster is not None:
            task = asyncio.ensure_future(self._replace(address))
            self._replacing.add(task)
            task.add_done_callback(self._replacing.discard)

    def _ran_too_long(self, address: str, key: str, seconds: float) -> None:
        assert self._tasks is not None
        message = f"The attempt ran for {seconds:.0f} s, far longer than training.timeout; its worker did not end it."
        self._tasks.end(key, Outcome.TIMEOUT, message, address)

    async def _replace(self, address: str) -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._kind.replace_worker(self._connected.client, address), 2 * CALL_SECONDS)

    async def _forget_study_on(self, address: str) -> None:
        """End what a worker trains that is heard again: it was lost meanwhile."""
        await self._connected.client.run(cancel_attempts_of, self._folder, workers=[address])

    async def _ask(self, address: str) -> None:
        """Have a worker that joined tell what the study has to know of it."""
        said = await self._connected.client.run(tell_with_heartbeats, self._asked, workers=[address])
        problem, no_mps = said.get(address) or ("", "")
        if problem and (self._asked.devices == "gpu" or not self._said_no_gpu):
            self._said_no_gpu = True
            log.info("%s: %s", address, problem)
        if no_mps:
            log.info("%s: %s", address, no_mps)
            self._no_mps.setdefault(no_mps, False)

    # End.

    def close(self) -> None:
        """End children, client and a cluster of ours, within a minute and for certain."""
        self._abandoned.set()
        if self._watch is not None:
            self._watch.stop()
        self._kind.remember_processes()
        if self._connection is not None:
            self._close_children()
            with contextlib.suppress(Exception):
                self._connection.client.close(timeout=CLOSE_SECONDS / 2)
            self._connection = None
        self._kind.close()
        if self._restore is not None:
            self._restore.__exit__(None, None, None)
            self._restore = None

    def _close_children(self) -> None:
        if self._kind.cluster is not None:
            self._run_on_each(close_all_children, seconds=CLOSE_SECONDS)
        elif self._spec.objective is not None:
            arguments = (self._folder, self._spec.objective, tuple(self._spec.pythonpath))
            self._run_on_each(forget_study, *arguments, seconds=2 * CLOSE_SECONDS)
