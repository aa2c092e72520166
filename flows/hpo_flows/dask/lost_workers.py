"""Watch over the workers of a Dask cluster: who lives and who runs what, asked once a second on the client's loop.

A worker that gives no sign for ``timeout`` seconds is out: not counted, not used, until it is heard again. A sign is
a heartbeat that the scheduler got; for a worker that trains, also that the thread goes on which waits for the child.
The time without a sign is counted by our own clock and only while we could have heard something
(:class:`Stopwatch`), so neither a machine that slept nor a scheduler that stood still puts everybody out at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec

from hpo_core.model.devices.seen_device import SeenDevice
from hpo_core.model.devices.usage import Usage
from hpo_core.model.hops import Doubt
from hpo_core.model.stopwatch import Stopwatch

T = TypeVar("T")
_ATTEMPT = re.compile(r"/trial-([0-9]+)/attempt-([0-9]+)")
ASK_SECONDS = 1.0
ANSWER_SECONDS = 10.0
SILENT = 3
"""After so many looks a worker that was asked for its devices and sends none is another process: asked again."""
HEARTBEATS = 2.5
"""So many heartbeats of its own a worker has time for before it is out, whatever the timeout."""
METRIC = "hpo_beats"
"""Name under which workers send :func:`hpo_core.training.worker.heartbeats` with each heartbeat."""


DEVICES = "hpo_devices"
"""Name under which they send :func:`hpo_core.training.visible_devices.seen_devices`, where jobs share devices.

By kind (``packing.devices``): studies with different ones may share a worker."""
USAGES = "hpo_usages"
"""Name under which they then send :func:`hpo_core.training.worker.usages`."""
PARTITIONS = "hpo_partitions"
"""Name under which they send :func:`hpo_core.training.partitions.held_partitions.held_partitions`, where models hop.

By folder of the study."""


class Held(NamedTuple):
    """Which of a study's partitions lie on a worker."""

    places: frozenset[int]
    """Among the study's partitions, those of validation last."""
    problems: dict[str, str]
    """By name of one that is there and cannot be used: why."""
    looked: int = 0
    """The larger, the later it was said."""
    reading: bool = False
    """Whether one is being read there, which may then count."""


class WorkerFacts(NamedTuple):
    """What the scheduler knows of one worker."""

    threads: int
    last_seen: float
    keys: list[str]
    """Of ours: tasks sent to it that it has not answered."""
    executing: list[str]
    """Those of them that a thread of it runs."""
    heartbeats: dict[str, int]
    devices: dict[str, SeenDevice] | None
    """That its jobs share, by name; None before it was asked for them."""
    usages: dict[str, Usage]
    """By attempt that runs there and was measured."""
    partitions: Held | None = None
    """That lie there; None before it was asked for them."""


@dataclass
class _Worker:
    facts: WorkerFacts
    since_heartbeat: Stopwatch
    trainers: dict[str, Stopwatch] = field(default_factory=dict)
    """By attempt that it runs."""
    out: str = ""
    """Why it is out; empty: it is well."""
    coming_back: bool = False
    greeted: bool = False
    """Whether it was asked what it has to be asked when it joins."""
    greeting: bool = False
    silent: int = 0
    """Looks in a row at which it did not send what it was asked for."""


class ClusterWatch:
    """Watches one client's cluster.

    Args:
        prefix: of the keys of our tasks.
        folder: of the study; its attempts are those whose trainers must go on.
        timeout: seconds without a sign after which a worker is out.
        limit: seconds after which a task of ours has run too long, whatever its worker says; None: never.
        on_out: called with (address, our keys there, why) when a worker goes out.
        on_overdue: called with (address, key, seconds) for a task that runs too long; its worker goes out next.
        on_back: awaited with the address of a worker that is heard again, before it counts again.
        kind: of the devices that jobs share (``packing.devices``); None: they share none.
        on_new: awaited with the address of a worker that joined; None: nothing is to be done there.
    """

    def __init__(
        self,
        client: Any,
        *,
        prefix: str,
        folder: str,
        timeout: float,
        limit: float | None,
        on_out: Callable[[str, list[str], str], None],
        on_overdue: Callable[[str, str, float], None],
        on_back: Callable[[str], Awaitable[None]],
        kind: str | None = None,
        on_new: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._client = client
        self._prefix, self._folder = prefix, folder
        self._timeout, self._limit = timeout, limit
        self._longest = min(5.0, timeout / 4)
        self._patience = timeout
        """Seconds without a sign after which a worker is out: longer than the timeout where there are thousands."""
        self._on_out, self._on_overdue, self._on_back = on_out, on_overdue, on_back
        self._kind, self._on_new = kind, on_new
        self._workers: dict[str, _Worker] = {}
        self._running: dict[str, Stopwatch] = {}
        self._scheduler = self._stopwatch()
        self._doubts: dict[tuple[str, str], int] = {}
        """By address and name of a partition: what the worker said of it before does not count."""
        self._task: Any = None
        self._returns: set[asyncio.Task[None]] = set()
        self.asked = threading.Event()
        """Set once the scheduler has answered for the first time."""

    def start(self) -> None:
        """Begin; from any thread."""
        self._scheduler.reset()
        self._task = asyncio.run_coroutine_threadsafe(self._watch(), self._client.loop.asyncio_loop)

    def stop(self) -> None:
        """End; what was seen last stays readable."""
        if self._task is not None:
            self._task.cancel()

    # For the threads of others.

    def well(self) -> list[str]:
        """Addresses of the workers that are not out."""
        return [address for address, worker in list(self._workers.items()) if not worker.out]

    def is_well(self, address: str) -> bool:
        """Whether it is there and not out."""
        worker = self._workers.get(address)
        return worker is not None and not worker.out

    def out(self) -> list[str]:
        """Addresses of the others."""
        return [address for address, worker in list(self._workers.items()) if worker.out]

    def devices(self) -> dict[str, dict[str, SeenDevice]]:
        """By address of a worker that is not out: what its jobs can share, by name."""
        workers = list(self._workers.items())
        return {address: worker.facts.devices or {} for address, worker in workers if not worker.out}

    def usages(self) -> dict[tuple[int, int], Usage]:
        """By (trial, attempt) of the study that runs and was measured: what it used so far."""
        found = {}
        for worker in list(self._workers.values()):
            for name, usage in worker.facts.usages.items():
                numbers = _ATTEMPT.fullmatch(name.removeprefix(self._folder))
                if name.startswith(self._folder) and numbers:
                    found[int(numbers[1]), int(numbers[2])] = usage
        return found

    def holdings(self) -> dict[str, Held]:
        """By address of a worker that is not out and was asked: the partitions that lie there."""
        workers = list(self._workers.items())
        return {
            address: worker.facts.partitions
            for address, worker in workers
            if not worker.out and worker.facts.partitions is not None
        }

    def doubt(self, address: str, doubt: Doubt) -> None:
        """A unit was lost for its partition: it does not lie there, until the worker has looked again and says so.

        Its last word is older than the unit's report: heartbeats come once in a while.
        """
        self._doubts[address, doubt.partition] = doubt.looked

    def is_doubted(self, address: str, partition: str) -> bool:
        """Whether a worker has not looked at a partition again since a unit was lost for it."""
        worker, since = self._workers.get(address), self._doubts.get((address, partition))
        held = None if worker is None else worker.facts.partitions
        return since is not None and held is not None and held.looked < since

    def threads(self) -> dict[str, int]:
        """By address of a worker that is not out: its threads."""
        return {address: worker.facts.threads for address, worker in list(self._workers.items()) if not worker.out}

    def slots(self) -> int:
        """Threads of the workers that are not out."""
        return sum(worker.facts.threads for worker in list(self._workers.values()) if not worker.out)

    def scheduler_is_unresponsive(self) -> bool:
        """Whether the scheduler has not answered for ``timeout`` seconds. Asked about once a second by one thread."""
        return self._scheduler.elapsed() >= self._timeout

    def _stopwatch(self) -> Stopwatch:
        return Stopwatch(self._longest, time.monotonic)

    # On the client's loop.

    async def _watch(self) -> None:
        before = False
        while True:
            try:
                seen = await asyncio.wait_for(
                    self._client.run_on_scheduler(facts_of_workers, self._prefix), ANSWER_SECONDS
                )
            except Exception as error:
                before = False  # nobody could be heard meanwhile
                logging.getLogger(__name__).debug("asking the scheduler: %s: %s", type(error).__name__, error)
            else:
                self._scheduler.reset()
                taken = {address: _decoded(facts, self._kind, self._folder) for address, facts in seen.items()}
                self._take(taken, count=before)
                before = True
                self.asked.set()
            await asyncio.sleep(ASK_SECONDS)

    def _take(self, seen: dict[str, WorkerFacts], *, count: bool) -> None:
        self._patience = max(self._timeout, HEARTBEATS * heartbeat_seconds(len(seen)))
        for address in self._workers.keys() - seen.keys():
            del self._workers[address]
            self._doubts = {key: since for key, since in self._doubts.items() if key[0] != address}
        self._running = {
            key: self._running.get(key) or self._stopwatch() for facts in seen.values() for key in facts.executing
        }
        for address, facts in seen.items():
            worker = self._workers.get(address)
            if worker is None:
                worker = self._workers[address] = _Worker(facts, self._stopwatch())
            announced = facts.devices if self._kind is not None else facts.partitions
            worker.silent = worker.silent + 1 if worker.greeted and announced is None else 0
            if self._on_new is not None and not worker.greeting and (not worker.greeted or worker.silent >= SILENT):
                worker.greeting = True
                self._later(self._greet(address, worker, self._on_new))
            why = self._why_out(worker, facts, count)
            worker.facts = facts
            if why and not worker.out:
                self._put_out(address, worker, why)
            elif worker.out and not why and not worker.coming_back:
                worker.coming_back = True
                self._later(self._bring_back(address, worker))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _greet(self, address: str, worker: _Worker, on_new: Callable[[str], Awaitable[None]]) -> None:
        try:
            await asyncio.wait_for(on_new(address), self._timeout)
            worker.greeted, worker.silent = True, 0
        except Exception as error:  # asked again the next time
            logging.getLogger(__name__).debug("%s: %s: %s", address, type(error).__name__, error)
        finally:
            worker.greeting = False

    def _why_out(self, worker: _Worker, facts: WorkerFacts, count: bool) -> str:
        """Why the worker must count as gone; empty where it is well."""
        if facts.last_seen != worker.facts.last_seen:
            worker.since_heartbeat.reset()
        ours = {name: number for name, number in facts.heartbeats.items() if name.startswith(f"{self._folder}/")}
        worker.trainers = {name: worker.trainers.get(name) or self._stopwatch() for name in ours}
        for name, number in ours.items():
            if number != worker.facts.heartbeats.get(name):
                worker.trainers[name].reset()
        if not count:
            for timer in (worker.since_heartbeat, *worker.trainers.values()):
                timer.skip()
        if worker.since_heartbeat.elapsed() >= self._patience:
            return f"gave no sign of life for {self._patience:g} s"
        for name, timer in worker.trainers.items():
            if timer.elapsed() >= self._patience + self._longest:
                return f"does not go on with {name.removeprefix(self._folder + '/')} for {self._patience:g} s"
        for key in facts.executing:
            if self._limit is not None and self._running[key].elapsed() >= self._limit:
                return f"did not end {key} in time"
        return ""

    def _put_out(self, address: str, worker: _Worker, why: str) -> None:
        worker.out = why
        logging.getLogger(__name__).warning("Dask worker %s %s: it counts as gone.", address, why)
        for key in worker.facts.executing:
            if self._limit is not None and (seconds := self._running[key].elapsed()) >= self._limit:
                self._on_overdue(address, key, seconds)
        self._on_out(address, list(worker.facts.keys), why)

    async def _bring_back(self, address: str, worker: _Worker) -> None:
        try:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._on_back(address), self._timeout)
                worker.out = ""
                logging.getLogger(__name__).warning("Dask worker %s is heard again: it counts again.", address)
        finally:
            worker.coming_back = False


def heartbeat_seconds(workers: int) -> float:
    """Seconds between the heartbeats of one worker: Dask's scheduler takes some 200 a second of all together.

    >>> heartbeat_seconds(100), heartbeat_seconds(10_000)
    (1.5, 51.0)
    """
    return workers / 200 + 1


def facts_of_workers(prefix: str, dask_scheduler: Any = None) -> dict[str, tuple[Any, ...]]:
    """Runs on the scheduler; plain values, for it may be a process of another version of this package."""
    return {
        worker.address: (
            worker.nthreads,
            worker.last_seen,
            [task.key for task in worker.processing if str(task.key).startswith(prefix)],
            [task.key for task in worker.executing if task in worker.processing and str(task.key).startswith(prefix)],
            worker.metrics.get(METRIC),
            worker.metrics.get(DEVICES),
            worker.metrics.get(USAGES),
            worker.metrics.get(PARTITIONS),
        )
        for worker in dask_scheduler.workers.values()
    }


def _decoded(sent: tuple[Any, ...], kind: str | None, folder: str) -> WorkerFacts:
    """From :func:`facts_of_workers`; what a worker of another version says otherwise is left out."""
    threads, last_seen, keys, executing, heartbeats, devices, usages, partitions = sent
    of_kind = devices.get(kind) if isinstance(devices, dict) else None
    seen = None if of_kind is None else _fitting(of_kind, SeenDevice)
    if seen is not None and kind == "gpu":
        seen = {name: device for name, device in seen.items() if device.gpu}
    return WorkerFacts(
        threads,
        last_seen,
        keys,
        executing,
        _fitting(heartbeats, int),
        devices=seen,
        usages=_fitting(usages, Usage),
        partitions=_held(partitions, folder),
    )


def _held(sent: Any, folder: str) -> Held | None:
    try:
        return Held(*msgspec.convert(sent[folder], tuple[frozenset[int], dict[str, str], int, bool]))
    except (KeyError, TypeError, ValueError, msgspec.ValidationError):
        return None


def _fitting(sent: Any, wanted: type[T]) -> dict[str, T]:
    """What is as it should be of values by name."""
    found: dict[str, T] = {}
    for name, value in sent.items() if isinstance(sent, dict) else ():
        try:
            found[msgspec.convert(name, str)] = msgspec.convert(value, wanted)
        except (ValueError, msgspec.ValidationError) as error:
            logging.getLogger(__name__).debug("a Dask worker says of %r: %s", name, error)
    return found
