"""Gangs on a Dask cluster: a task for each rank, on a worker of its own, and one report for all of them."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from distributed.comm.addressing import get_address_host

from hpo_core.checkpoints.storage import GANGS, gang_store_path
from hpo_core.execution.executor import OnReport
from hpo_core.model.devices.inventory import Device, Inventory, Slot
from hpo_core.model.trial import RESULTS, Job, Outcome, Report
from hpo_core.security.private_files import private_folder
from hpo_core.training.process_group import LOST_PEER, gang_report
from hpo_core.training.request import RankPlace
from hpo_flows.dask.cancellation import Cancellation
from hpo_flows.dask.job_tasks import JobTasks
from hpo_flows.dask.lost_workers import ClusterWatch

OWN_END_SECONDS = 5.0
"""Ranks end by themselves when one is gone, and then say why; those that have not after so long are cancelled."""
DOUBT_SECONDS = 15.0
"""A worker that lost a rank gets none for so long, unless it is known before that it is gone: ranks are pinned."""


@dataclass
class _Gang:
    """A gang that runs."""

    job: Job
    on_report: OnReport
    store: Path
    reports: list[Report | None]
    failed_at: float | None = None
    """Monotonic time of the first report that is no result."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class GangTasks:
    """The gangs of one study, and its jobs of one slot beside them.

    A device is a computer, with a slot for each thread of its workers; ranks are pinned to the workers with most free
    threads there. A unit of a model that hops names a worker for each rank. Threads of ranks leave the workers' pools
    (``secede``), so a rank never waits in Dask's queue for
    another one: how many jobs a worker runs is the placement's to say.

    Args:
        tasks: of the study.
        watch: of the workers.
        cancellation: ends what is left of a gang.
        folder: of the study.
    """

    def __init__(self, tasks: JobTasks, watch: ClusterWatch, *, cancellation: Cancellation, folder: str) -> None:
        self._tasks = tasks
        self._watch = watch
        self._cancellation = cancellation
        self._folder = Path(folder)
        self._gangs: dict[tuple[int, ...], _Gang] = {}
        """By trial and attempt, and the number of the unit where models hop."""
        self._doubted: dict[str, float] = {}
        """Workers that lost a rank, which the scheduler may still list, until when."""
        stores = private_folder(self._folder / GANGS, below=self._folder)
        for left in stores.iterdir():  # by a controller before us that was killed
            with contextlib.suppress(OSError):
                left.unlink()

    def inventory(self) -> Inventory:
        """A device for each computer with workers that give a sign of life."""
        threads: Counter[str] = Counter()
        for address, count in self._threads().items():
            threads[_host(address)] += count
        return Inventory(tuple(Device(host, threads[host]) for host in sorted(threads)))

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Start a job on its slots, which name computers, or the workers themselves where the study holds these.

        ``on_report`` is called once, from another thread.
        """
        names = [one.name for one in slot.ranks]
        workers = self._choose(names) if job.unit is None else names
        if workers is None:
            message = f"a computer of its slots ({', '.join(sorted(set(names)))}) has no Dask worker any more"
            on_report(job, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.LOST, message=message))
            return
        if len(workers) == 1:
            self._tasks.submit(job, on_report, workers=workers)
            return
        store = self._folder / gang_store_path(job.trial, job.attempt, uuid.uuid4().hex)
        gang = self._gangs[_key(job)] = _Gang(job, on_report, store, [None] * len(workers))
        local: Counter[str] = Counter()
        hosts = [_host(address) for address in workers]
        for rank, (host, address) in enumerate(zip(hosts, workers, strict=True)):
            place = RankPlace(
                rank=rank,
                size=len(workers),
                local_rank=local[host],
                local_size=hosts.count(host),
                store=str(store),
            )
            local[host] += 1
            own = job if job.unit is None else msgspec.structs.replace(job, unit=job.unit.of_rank(rank))

            def on_rank_report(_: Job, report: Report, rank: int = rank) -> None:
                self._reported(gang, rank, report)

            try:
                self._tasks.submit(own, on_rank_report, workers=[address], gang=place)
            except Exception as error:  # those before it wait for it, and are cancelled
                message = f"it could not be submitted: {type(error).__name__}: {error}"
                on_rank_report(job, _lost(job, message))

    def end_broken(self) -> None:
        """Cancel what is left of gangs of which a rank failed; called about once a second."""
        now = time.monotonic()
        broken = [
            key
            for key, gang in list(self._gangs.items())
            if gang.failed_at is not None and now >= gang.failed_at + OWN_END_SECONDS
        ]
        self._cancellation.request(broken)

    def _threads(self) -> dict[str, int]:
        """By address of a worker that may be used: its threads."""
        threads, now = self._watch.threads(), time.monotonic()
        for address, until in list(self._doubted.items()):
            if address not in threads or now >= until:
                del self._doubted[address]
        return {address: count for address, count in threads.items() if address not in self._doubted}

    def _choose(self, names: list[str]) -> list[str] | None:
        """A worker for each rank: the one named, or that with most free threads on its computer; None: it has none."""
        busy = self._tasks.busy()
        free = {address: count - busy[address] for address, count in self._threads().items()}
        chosen = []
        for name in names:
            there = [name] if name in free else [address for address in free if _host(address) == name]
            if not there:
                return None
            best = min(there, key=lambda address: (-free[address], address))
            free[best] -= 1
            chosen.append(best)
        return chosen

    def _reported(self, gang: _Gang, rank: int, report: Report) -> None:
        with gang.lock:
            gang.reports[rank] = report
            if report.outcome is Outcome.LOST and report.worker and LOST_PEER not in report.message:
                self._doubted[report.worker] = time.monotonic() + DOUBT_SECONDS
            if report.outcome not in RESULTS and gang.failed_at is None:
                gang.failed_at = time.monotonic()
            reports = [one for one in gang.reports if one is not None]
            if len(reports) < len(gang.reports):
                return
        self._gangs.pop(_key(gang.job), None)
        with contextlib.suppress(OSError):
            gang.store.unlink(missing_ok=True)
        gang.on_report(gang.job, gang_report(reports))


def _key(job: Job) -> tuple[int, ...]:
    return job.key if job.unit is None else (*job.key, job.unit.number)


def _host(address: str) -> str:
    return str(get_address_host(address))


def _lost(job: Job, message: str) -> Report:
    return Report(
        trial=job.trial,
        attempt=job.attempt,
        outcome=Outcome.LOST,
        message=message,
        started=time.time(),
        ended=time.time(),
    )
