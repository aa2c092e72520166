"""When a Dask worker counts as lost, and when it counts again: all workers are looked at once a second.

A worker that gives no sign for ``timeout`` seconds is out: not counted, not used, until it is heard again. A sign is
a heartbeat that the scheduler got; for a worker that trains, also that the thread goes on which waits for the child.
The time without a sign is counted by our own clock and only while we could have heard something
(:class:`Stopwatch`), so neither a machine that slept nor a scheduler that stood still puts everybody out at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from hpo_core.model.stopwatch import Stopwatch
from hpo_flows.dask.worker_facts import Asked, WorkerFacts, decoded_facts, facts_of_workers

log = logging.getLogger(__name__)

ASK_SECONDS = 1.0
ANSWER_SECONDS = 10.0
SILENT = 3
"""Looks in a row at which a worker that was asked told nothing: it is another process then, and asked again."""
HEARTBEATS = 2.5
"""Heartbeats of its own that a worker has time for before it is out, whatever the timeout."""


@dataclass
class _Worker:
    facts: WorkerFacts
    since_heartbeat: Stopwatch
    trainers: dict[str, Stopwatch] = field(default_factory=dict)
    """Time since each attempt there went on."""
    out: str = ""
    """Why it is out; empty: it is well."""
    coming_back: bool = False
    greeted: bool = False
    """Whether it was asked what it has to tell."""
    greeting: bool = False
    silent: int = 0
    """Looks in a row at which it did not tell what it was asked."""


class ClusterWatch:
    """Watches the workers of one cluster for one study.

    Args:
        client: a client of ``distributed``.
        prefix: beginning of the keys of the study's tasks.
        asked: what workers are to tell; names the study's folder, whose attempts must go on.
        timeout: seconds without a sign after which a worker is out.
        limit: seconds after which a task has run too long, whatever its worker says; None: never.
        on_new: awaited with the address of a worker that joined, to ask it.
        on_out: called with (address, keys of the study's tasks there, why) when a worker goes out.
        on_overdue: called with (address, key, seconds) for a task that runs too long; its worker goes out next.
        on_back: awaited with the address of a worker that is heard again, before it counts again.
    """

    def __init__(
        self,
        client: Any,
        *,
        prefix: str,
        asked: Asked,
        timeout: float,
        limit: float | None,
        on_new: Callable[[str], Awaitable[None]],
        on_out: Callable[[str, list[str], str], None],
        on_overdue: Callable[[str, str, float], None],
        on_back: Callable[[str], Awaitable[None]],
    ) -> None:
        self._client = client
        self._prefix, self._folder, self._asked = prefix, asked.folder, asked
        self._timeout, self._limit = timeout, limit
        self._longest = min(5.0, timeout / 4)
        self._patience = timeout
        """Seconds without a sign after which a worker is out: longer than the timeout where there are thousands."""
        self._on_new, self._on_out, self._on_overdue, self._on_back = on_new, on_out, on_overdue, on_back
        self._workers: dict[str, _Worker] = {}
        self._running: dict[str, Stopwatch] = {}
        self._scheduler = self._stopwatch()
        self._task: Any = None
        self._returns: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin; from any thread."""
        self._scheduler.reset()
        self._task = asyncio.run_coroutine_threadsafe(self._watch(), self._client.loop.asyncio_loop)

    def stop(self) -> None:
        """End; what was seen last stays readable."""
        if self._task is not None:
            self._task.cancel()

    # For the threads of others.

    def well(self) -> dict[str, WorkerFacts]:
        """What is known of the workers that are not out, by address."""
        return {address: worker.facts for address, worker in list(self._workers.items()) if not worker.out}

    def is_well(self, address: str) -> bool:
        """Whether a worker is there and not out."""
        worker = self._workers.get(address)
        return worker is not None and not worker.out

    def out(self) -> list[str]:
        """Addresses of the other workers."""
        return [address for address, worker in list(self._workers.items()) if worker.out]

    def slots(self) -> int:
        """Threads of the workers that are not out."""
        return sum(facts.threads for facts in self.well().values())

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
                log.debug("asking the scheduler: %s: %s", type(error).__name__, error)
            else:
                self._scheduler.reset()
                taken = {address: decoded_facts(facts, self._asked) for address, facts in seen.items()}
                self._take(taken, count=before)
                before = True
            await asyncio.sleep(ASK_SECONDS)

    def _take(self, seen: dict[str, WorkerFacts], *, count: bool) -> None:
        self._patience = max(self._timeout, HEARTBEATS * heartbeat_seconds(len(seen)))
        for address in self._workers.keys() - seen.keys():
            del self._workers[address]
        self._running = {
            key: self._running.get(key) or self._stopwatch() for facts in seen.values() for key in facts.executing
        }
        for address, facts in seen.items():
            worker = self._workers.get(address)
            if worker is None:
                worker = self._workers[address] = _Worker(facts, self._stopwatch())
            worker.silent = worker.silent + 1 if worker.greeted and not self._asked.is_answered_by(facts) else 0
            if self._asked.is_anything and not worker.greeting and (not worker.greeted or worker.silent >= SILENT):
                worker.greeting = True
                self._later(self._greet(address, worker))
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

    async def _greet(self, address: str, worker: _Worker) -> None:
        try:
            await asyncio.wait_for(self._on_new(address), self._timeout)
            worker.greeted, worker.silent = True, 0
        except Exception as error:  # asked again the next time
            log.debug("%s: %s: %s", address, type(error).__name__, error)
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
        log.warning("Dask worker %s %s: it counts as gone.", address, why)
        for key in worker.facts.executing:
            if self._limit is not None and (seconds := self._running[key].elapsed()) >= self._limit:
                self._on_overdue(address, key, seconds)
        self._on_out(address, list(worker.facts.keys), why)

    async def _bring_back(self, address: str, worker: _Worker) -> None:
        try:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._on_back(address), self._timeout)
                worker.out = ""
                log.warning("Dask worker %s is heard again: it counts again.", address)
        finally:
            worker.coming_back = False


def heartbeat_seconds(workers: int) -> float:
    """Seconds between the heartbeats of one worker: Dask's scheduler takes some 200 a second of all together.

    >>> heartbeat_seconds(100), heartbeat_seconds(10_000)
    (1.5, 51.0)
    """
    return workers / 200 + 1
