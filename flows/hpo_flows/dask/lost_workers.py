"""When a Dask worker counts as lost, and when it counts again: all workers are looked at once a second.

A worker that gives no sign for ``timeout`` seconds is out: not counted, not used, until it is heard again. A sign is
a heartbeat that the scheduler got; for a worker that trains, also that the thread goes on which waits for the child.
The time without a sign is counted by our own clock and only while we could have heard something
(:class:`Stopwatch`), so neither a machine that slept nor a scheduler that stood still puts everybody out at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from hpo_core.model.stopwatch import Stopwatch
from hpo_core.model.trial import Outcome
from hpo_flows.dask.on_worker import cancel_attempts_of, tell_with_heartbeats
from hpo_flows.dask.worker_facts import WorkerFacts, WorkerQuestions, decoded_facts, facts_of_workers

log = logging.getLogger(__name__)

ASK_SECONDS = 1.0
ANSWER_SECONDS = 10.0
SILENT = 3
"""Looks in a row without an answer after which a worker is asked again: it is another process by then."""
HEARTBEATS = 2.5
"""Heartbeats of its own that a worker has time for before it is out, whatever the timeout."""


@dataclass
class _Worker:
    facts: WorkerFacts
    since_heartbeat: Stopwatch
    trainers: dict[str, Stopwatch] = field(default_factory=dict)
    """Time since each attempt there went on."""
    out: str = ""
    """Reason for which it is out; empty: it is well."""
    greeted: bool = False
    """True once it was asked what it has to tell."""
    called: bool = False
    """True while a call to it is under way."""
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
        on_end: called with (key, outcome, message, address of its worker) for each task of the study that ends because
            its worker goes out.
        replace: awaited with the address of a worker that goes out.
    """

    def __init__(
        self,
        client: Any,
        *,
        prefix: str,
        asked: WorkerQuestions,
        timeout: float,
        limit: float | None,
        on_end: Callable[[str, Outcome, str, str], None],
        replace: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self._client = client
        self._prefix, self._folder, self._asked = prefix, asked.folder, asked
        self._timeout, self._limit = timeout, limit
        self._longest = min(5.0, timeout / 4)
        self._patience = timeout
        """Seconds without a sign after which a worker is out: longer than the timeout where there are thousands."""
        self._on_end, self._replace = on_end, replace
        self._workers: dict[str, _Worker] = {}
        self._running: dict[str, Stopwatch] = {}
        self._scheduler = self._stopwatch()
        self._task: Any = None
        self._calls: set[asyncio.Task[None]] = set()
        self._told: dict[str, bool] = {}
        """Reasons for which MPS is off on some worker, and True once a person was told."""

    def start(self) -> None:
        self._scheduler.reset()
        self._task = asyncio.run_coroutine_threadsafe(self._watch(), self._client.loop.asyncio_loop)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # For the threads of others.

    def well(self) -> dict[str, WorkerFacts]:
        """Facts about the workers that are not out, by address."""
        return {address: worker.facts for address, worker in list(self._workers.items()) if not worker.out}

    def is_well(self, address: str) -> bool:
        worker = self._workers.get(address)
        return worker is not None and not worker.out

    def some_are_out(self) -> bool:
        return any(worker.out for worker in list(self._workers.values()))

    def news(self) -> list[str]:
        """News that workers told and a person should know; each line is returned once."""
        news = [line for line, told in list(self._told.items()) if not told]
        self._told |= dict.fromkeys(news, True)
        return news

    def slots(self) -> int:
        return sum(facts.threads for facts in self.well().values())

    def scheduler_is_unresponsive(self) -> bool:
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
        is_asked = self._asked.devices or bool(self._asked.partitions)
        for address, facts in seen.items():
            worker = self._workers.get(address)
            if worker is None:
                worker = self._workers[address] = _Worker(facts, self._stopwatch())
            worker.silent = worker.silent + 1 if worker.greeted and not self._asked.is_answered_by(facts) else 0
            why = self._why_out(worker, facts, count)
            worker.facts = facts
            if why and not worker.out:
                self._put_out(address, worker, why)
            if worker.called:
                continue
            if worker.out and not why:  # first, for it may not be able to answer what it is asked
                self._call(worker, self._bring_back(address, worker))
            elif is_asked and (not worker.greeted or worker.silent >= SILENT):
                self._call(worker, self._greet(address, worker))

    def _call(self, worker: _Worker, work: Coroutine[Any, Any, None]) -> None:
        worker.called = True

        async def limited() -> None:
            try:
                await asyncio.wait_for(work, self._timeout)
            except Exception as error:  # called again at a later look
                log.debug("%s: %s", type(error).__name__, error)
            finally:
                worker.called = False

        self._keep(limited())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _greet(self, address: str, worker: _Worker) -> None:
        said = await self._client.run(tell_with_heartbeats, self._asked, workers=[address])
        worker.greeted, worker.silent = True, 0
        problem, no_mps = said.get(address) or ("", "")
        for line in filter(None, (problem, no_mps)):
            log.info("%s: %s", address, line)
        if no_mps:
            self._told.setdefault(no_mps, False)

    async def _bring_back(self, address: str, worker: _Worker) -> None:
        await self._client.run(cancel_attempts_of, self._folder, workers=[address])
        worker.out = ""
        log.warning("Dask worker %s is heard again: it counts again.", address)

    def _why_out(self, worker: _Worker, facts: WorkerFacts, count: bool) -> str:
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
        for key in worker.facts.keys:
            seconds = self._running[key].elapsed() if key in worker.facts.executing else 0.0
            if self._limit is not None and seconds >= self._limit:
                message = (
                    f"The attempt ran for {seconds:.0f} s, far longer than training.timeout; its worker did not end it."
                )
                self._on_end(key, Outcome.TIMEOUT, message, address)
            else:
                self._on_end(key, Outcome.LOST, f"its Dask worker ({address}) {why}", address)
        self._keep(self._replace(address))


def heartbeat_seconds(workers: int) -> float:
    """Seconds between the heartbeats of one worker: Dask's scheduler takes some 200 a second of all together.

    >>> heartbeat_seconds(100), heartbeat_seconds(10_000)
    (1.5, 51.0)
    """
    return workers / 200 + 1
